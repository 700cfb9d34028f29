"""Hosts: other machines that do the work of nodes, and what connects a run to them.

A run submits attempts; a worker claims one, holds a lease on it by heartbeats, and completes it with the token of its
claim. `attempts.py` is that seam and what passes through it, `lease.py` when a worker must stop and when a successor
may begin, `temporal.py` the backend.

At home: `orchestrator.py` is a node whose work a host does, `relay.py` its way to the backend, `keeper.py` the process
that contains the server, the relay and the tunnels, `setup.py` what `garrison host add` does, `access.py` the way to a
host. On a host: `service.py` claims attempts and does them, each as a run (`host_run.py`); `control.py` starts and
ends it.
"""
