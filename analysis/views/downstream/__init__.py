"""What models can do: scores on the tasks of suites, as tables, CSV and a figure."""
