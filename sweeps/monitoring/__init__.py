"""Monitoring: what a study will cost, how it stands, how far it is."""
