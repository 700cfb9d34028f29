"""garrison as an ACP agent: an editor's panel starts and follows runs and answers their questions, on stdin and stdout.

`server.py` speaks the protocol, `panel.py` is one open session, `sessions.py` keeps sessions in the home, `commands.py`
parses slash commands and `rail.py` shows a run as plan and tool calls; both of these are pure. All actions on runs go
through `garrison.mcp.crew`, as for clients of MCP: no run is a child of the editor, and none ends with it.
"""
