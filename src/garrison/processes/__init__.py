"""Processes of a run: launcher, guardian, runners, orchestrators and the merge processor.

Each has a package and the same shape: `process.py` observes and acts, `policy.py` decides (pure), `loop.py` drives
both, writes the heartbeat and sleeps until an event or the slow timer. Events only wake the loop early; a lost one
costs a second. Processes know each other by records and signals alone.
"""
