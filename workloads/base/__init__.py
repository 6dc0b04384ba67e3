"""What every workload is made of: interface, options, loading, devices."""
