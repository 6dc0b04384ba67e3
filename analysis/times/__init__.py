"""Steps and seconds until a target is reached, how many times faster, and `time`."""
