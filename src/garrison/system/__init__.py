"""System: the machine and its programs, one concern per module: processes, event loop, terminals, git, clock.

- Of garrison, only errors and configuration are imported.
- A seam is a small Protocol next to its implementation, passed in; one contract test suite runs over all of them.
- A process is signalled only through a pidfd with a verified start time. Nothing is found or killed by name.
- Children start in their own session with an environment from an allow-list, and write to files, never to our pipes.
- Linux-specific code is here and nowhere else.
"""
