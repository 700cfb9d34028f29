"""Records: the files of a home, and the only ways to change them.

- A record (identity, hook, run file) is a value in a JSON file. `store.Store.update` is the only
  read-modify-write: it applies a pure function under the record's lock.
- A journal is append-only and survives kill -9 at any byte. It has one writer; that of the merge queue has many, under
  its lock.
- A file that cannot be read is an error that names it, never "absent", and it is left in place.
- Every write is atomic, and durable before anything depends on it (`atomic`).
"""
