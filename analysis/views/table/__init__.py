"""The error table laid out: its tables and notes, and the same as CSV."""
