"""What is on disk: names, records, journals, signals and the two locks of a life.

The rules of this room:

* Files a person can read: one JSON object a record, JSON lines a journal. `ls` and `cat` explain a garrison.
* Every write is atomic and durable (`atomic.py`); every change of a record runs in `Store.update` under its lock.
* A torn or foreign file is an error that names it, never "empty". Readers never repair.
* No clock, no randomness and no process is asked here: times, ids and observations are arguments.
* Light: the doors that cron calls load only this room, so nothing but the standard library is imported, and of that
  neither typing nor datetime nor uuid (docs/decisions/0002-records-without-msgspec.md has the figures).
"""
