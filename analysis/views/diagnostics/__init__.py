"""What attention did while it trained: its records, table and plots; spikes of the loss."""
