"""What lies on disk: the layout of a study, states, measurements, claims."""
