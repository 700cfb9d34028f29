"""Dispatch of node attempts to workers: the seam between a run and the machines that do its work.

A run submits attempts; a worker claims one, holds a lease on it by heartbeats, and completes it with the token of its
claim. `base.py` is the seam, `records.py` what passes through it, `lease.py` (pure) when a worker must stop and when
a successor may begin.
"""
