"""Agents: run the work of one node's attempt.

An agent is started with an `Assignment` in the orchestrator's process and returns `Work`, which the orchestrator's loop
polls. It never decides about phases, results or merges. `command` runs any program by a profile, `claude` runs Claude
sessions, `session_agent` runs an agent turn by turn as a garrison session, and `scripted` plays a YAML file for tests
and demonstrations. `graph` is a library of its own: agents that direct one another.
"""
