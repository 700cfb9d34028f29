"""The `claude` agent: real Claude sessions, begun, resumed and bounded by garrison.

The rules of this room: only `stretch` (a process of its own, one for each stretch of a session) imports the SDK; the
orchestrator that starts it stays light, and a session that waits costs no process at all. What is decided from how a
stretch ended is in `decide`, what a failure means in `failures`, what a session may cost in `budget`; all three are
pure. What happened is in the attempt's folder, under `claude/`, for people and for successors alike.
"""
