"""garrison as an MCP server: another agent begins, follows and settles runs. `crew.py` does what each tool asks,
`server.py` speaks the protocol."""
