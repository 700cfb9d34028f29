"""garrison as an ACP agent: an editor's panel starts runs, follows and decides them, on standard input and output.

`server.py` speaks the protocol, `panel.py` is one open session, `sessions.py` keeps sessions in the home, `commands.py`
reads what was typed and `rail.py` shows a run as plan and tool calls; both of these are pure. What is done with runs is
done by `garrison.mcp.crew`, as for clients of MCP: no run is a child of the editor, and none ends with it.
"""
