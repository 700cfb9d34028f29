"""Claude agent: real Claude sessions, started, resumed and bounded by garrison.

* `attempt` runs in the orchestrator: it starts connections one after another and waits in between, so a waiting session
  needs no process.
* `connection` is a separate process for each connection to a CLI. Only `client` loads the SDK.
* What follows the end of a connection is decided as for every kind of session (`conversation.policy`), by the class of
  its failure (`agents.trouble`).
* State is stored in the attempt's folder under `claude/` (`conversation.files`), for users and successors.
"""
