"""Common parts of a run's processes: their entry point, spawning, loop and supervisor.

Each process observes and acts in one module (`run/guardian.py`, `node/runner.py`); a pure policy alongside it decides,
and `loop.py` drives both, writes the heartbeat and sleeps until an event or the slow timer. Events only wake it early;
a lost one costs a second. Processes communicate only by records and signals.
"""
