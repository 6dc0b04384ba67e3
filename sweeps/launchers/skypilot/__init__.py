"""SkyPilot: managed jobs on rented machines."""
