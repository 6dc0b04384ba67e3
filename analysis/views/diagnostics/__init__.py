"""What attention did while it trained, as tables, lines and maps."""
