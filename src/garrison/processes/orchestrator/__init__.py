"""The orchestrator: runs one attempt's agent inside a terminal session and writes its result."""
