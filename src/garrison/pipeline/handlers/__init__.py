"""Handlers: the code that executes a node, one module per group of types, and the registry of types.

* A handler is a callable, plain or async: `handler(call) -> Outcome`. It knows its `Call`, not the machine.
* It reports its outcome; routing is decided elsewhere. It never writes the run's journal or checkpoint.
* A handler that waits for the user or a signal returns `Waiting` when the run may be suspended.
* An exception becomes a failed outcome; cancelling a handler ends everything it started.
"""
