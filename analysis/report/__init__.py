"""The report: one HTML page of everything, its sections, figures and their words."""
