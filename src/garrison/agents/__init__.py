"""The Agent seam: who does the work of a node.

An agent is started with an `Assignment` in the orchestrator's process and gives `Work` that the orchestrator's loop
polls; it never decides about phases, results or merges. `command` runs any program by a profile; `scripted` plays a
YAML file for tests and demonstrations and says so wherever it shows.
"""
