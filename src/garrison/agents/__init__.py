"""Agents: the programs that do the work of one attempt.

The orchestrator starts an agent with an `Assignment` and polls the `Work` that it returns. An agent never decides about
phases, results or merges. `command` runs any program by a profile, `claude` runs Claude sessions, `session_agent` runs
an agent as a garrison session, and `scripted` plays a YAML file for tests and demonstrations. `graph` is a library of
its own: agents that direct one another.
"""
