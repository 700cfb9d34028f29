"""Records: the files of a home, and the only functions that change them.

- A record (identity, hook, run file) is a value in a JSON file. `store.Store.update` is the only
  read-modify-write: it applies a pure function under the record's lock.
- A journal is append-only and survives kill -9 at any byte. It has one writer; the merge queue's journal has many,
  under its lock.
- An unreadable file is an error that names it, never "absent", and is left in place.
- Every write is atomic, and durable before anything depends on it (`atomic`).
"""
