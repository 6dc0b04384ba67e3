"""Monitoring: what is going on in a study. One survey, and the one view of it."""
