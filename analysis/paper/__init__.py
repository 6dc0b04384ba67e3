"""The paper: its figures, what does not add up in them, its tables, its bf16 experiment."""
