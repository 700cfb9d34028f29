"""Hosts: other machines that do the work of nodes, and their connection to a run.

A run submits attempts; a worker claims one, keeps a lease on it by heartbeats, and completes it with the token of its
claim. `attempts.py` is that seam and its records, `lease.py` decides when a worker must stop and when a successor
may start, `temporal.py` is the backend.

At home: `orchestrator.py` is a node whose work a host does, `relay.py` its connection to the backend, `keeper.py` the
process that contains the server, the relay and the tunnels, `setup.py` implements `garrison host add`, `access.py`
reaches a host. On a host: `service.py` claims attempts and does them, each as a run (`host_run.py`); `control.py`
starts and ends it.
"""
