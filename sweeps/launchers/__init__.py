"""Launchers: who starts the processes that run trials."""
