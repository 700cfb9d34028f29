"""The outside world, one thing a file: clock, processes, environment, jobs, waker, terminals, git.

The rules of this room:

* Only errors and settings are imported from garrison; records are the neighbour's, not ours.
* A seam is a small Protocol next to its implementations, passed in; one contract suite runs over all of them.
* A process is signalled only through a pidfd whose start time was verified. Nothing is found or killed by name.
* Children start in their own session with a scrubbed environment, and write to files, never to our pipes.
* What only Linux has stands here and nowhere else. `clock` and `processes` stay light: cron's doors load them.
"""
