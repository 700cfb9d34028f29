"""Conversation of an attempt with its agent, told once for every kind of agent that has a session.

An attempt's session is a row of connections: processes, each of which runs the agent's program for one prompt.

1. `attempt`, in the orchestrator, decides with `policy` what follows the endings so far: connect with a prompt, wait,
   ask the user, or finish. It writes the connection's order and its prompt, and starts it.
2. `connection`, the process, takes the session's lock, runs the program and hears its events. What the agent answers
   reaches the attempt's records there and nowhere else: each event `stream.jsonl`, each response `usage.jsonl`, a
   report `report.json`, a question `question.json`, and the end of the turn `endings.jsonl` (`files` lists them all).
3. The process exits, and `attempt` reads how it ended.

Whether a failed call is tried again, and after how long, `policy` decides for each of them, by the classes of
`agents.trouble`: `decide` for a session of an attempt, `decide_program` for a program without one, `decide_message` for
a message in an agent graph (`agents.graph.session_manager`), for whose answer a caller waits.

`agents.claude` and `agents.acp` add what is theirs: the program, its protocol, its settings, and how a lost session is
continued. `session_agent` (turns of a graph) and `command` (a program without a session) share `attempt`.
"""
