"""One trial's files: measurements as columns, JSON records, and what is wrong with them."""
