"""garrison as an MCP server: another agent starts, follows and controls runs. `crew.py` implements the tools,
`server.py` speaks the protocol.
"""
