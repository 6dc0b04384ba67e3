"""The plots of a study's results, the list of all its plots, and `plots`."""
