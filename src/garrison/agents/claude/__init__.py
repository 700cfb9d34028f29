"""Claude agent: real Claude sessions, started, resumed and bounded by garrison.

* `attempt` runs in the orchestrator: it starts one connection after the other and waits in between, so a session that
  waits costs no process.
* `connection` is its own process, one for each connection to a CLI. Only `client` loads the SDK.
* What follows the end of a connection is decided as for every kind of session (`conversation.policy`), from the class
  of its trouble (`agents.trouble`).
* Facts are kept in the attempt's folder under `claude/` (`conversation.files`), for people and successors alike.
"""
