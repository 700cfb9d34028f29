"""The launcher: the process the user starts; it keeps the guardian running and shows the run's progress."""
