"""Orchestrator: runs one attempt's agent in a terminal session and writes its result."""
