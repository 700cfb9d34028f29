"""Conversation of an attempt with its agent, in one place for every kind of agent with a session.

An attempt's session is a series of connections: processes, each of which runs the agent's program for one prompt.

1. `attempt`, in the orchestrator, decides with `policy` what follows the endings so far: connect with a prompt, wait,
   ask the user, or finish. It writes the connection's order and its prompt, and starts it.
2. `connection`, the process, takes the session's lock, runs the program and receives its events. What the agent answers
   reaches the attempt's records through `recorder`.
3. The process exits, and `attempt` reads how it ended.

Three questions have one answer each, for these sessions, for the turns of `node.session_attempt` and for the messages
of an agent graph (`agents.graph.session_manager`):

- How does an answer reach its record? `recorder`.
- Is a failed call retried, and after how long? `policy`, by the classes of `agents.trouble`: `decide` for a session
  of an attempt, `decide_program` for a program without one, `decide_message` for a message whose answer a caller waits
  for; `ends_turn` if the agent's program would retry by itself.
- Is there money left for the next call? `records.budget`.

There are two lifecycles on purpose. A session of an attempt must outlive every process: each connection is a process
for one prompt, and what follows is decided from what it left on disk, by the orchestrator alive then. A session of an
agent graph is a call in the caller's process: it dies with its caller, one client answers many messages, and a process
and a lock per message would cost more than the message.

`agents.claude` and `agents.acp` add the differences: the program, its protocol, its settings, and how a lost session is
continued. `session_agent` (turns of a graph) and `command` (a program without a session) share `attempt`.
"""
