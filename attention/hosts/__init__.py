"""Host models: how their own attention is wrapped and observed."""
