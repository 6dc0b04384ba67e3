"""One trial's files: JSON records, measurements, diagnostics, and what is wrong with them."""
