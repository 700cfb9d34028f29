"""Launcher: the process that a user starts; it keeps the guardian running and shows the run's progress."""
