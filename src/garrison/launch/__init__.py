"""Launch: pre-flight checks, creation of runs, and resuming of unfinished runs."""
