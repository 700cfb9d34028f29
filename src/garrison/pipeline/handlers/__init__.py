"""What runs a node: one module a kind of work, and the registry that says which type means which.

The rules of this room:

* A handler is a callable, plain or async: `handler(call) -> Outcome`. It knows its `Call` and nothing of the machine.
* It says how it went; where the run goes next is decided elsewhere. It never writes the run's journal or checkpoint.
* "Not yet" is an answer too: a handler that waits for a person or a signal returns `Waiting` when the run may stop.
* What it raises becomes a failed outcome; cancelling it ends everything that it started.
"""
