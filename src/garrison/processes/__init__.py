"""Processes of a run: launcher, guardian, runner, orchestrator and merge processor.

Each process is the same loop (`loop`): observe everything, decide, act, send a heartbeat, sleep until an event or the
rescan timer. Events only wake the loop early, so a lost one costs a second. In each package, `policy` decides and is
pure, and `process` observes and acts. Processes know each other by records, journals and signals alone.
"""
