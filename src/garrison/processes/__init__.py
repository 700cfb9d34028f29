"""What the processes of a run share: their entry point, how one starts another, their loop and their supervisor.

Each process observes and acts in one module (`run/guardian.py`, `node/runner.py`); a pure policy alongside it decides,
and `loop.py` drives both, writes the heartbeat and sleeps until an event or the slow timer. Events only wake it early;
a lost one costs a second. Processes know each other by records and signals alone.
"""
