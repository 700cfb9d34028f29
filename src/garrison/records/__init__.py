"""Records: what is on disk in a home, and the only ways to change it.

- A record (identity, hook, run file) is a frozen dataclass in a JSON file of its own. `store.Store.update` is the only
  read-modify-write: it applies a pure function under the record's lock.
- A journal is append-only, has one writer (that of the merge queue has many, under its lock),
and survives kill -9 at any
  byte.
- A file that cannot be read is an error that names it, never "absent", and it is left in place.
- Every write is atomic, and durable before anything is told about it (`atomic`).
"""
