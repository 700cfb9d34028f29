"""System: the machine and its programs, one concern per module: clock, processes, jobs, event loop, terminals, git.

- Only errors and configuration are imported from garrison.
- A seam is a small Protocol next to its implementation, passed in; one contract test-suite runs over all of them.
- A process is signalled only through a pidfd whose start time was verified. Nothing is found or killed by name.
- Children start in their own session with an environment from an allow-list, and write to files, never to our pipes.
- Code that only works on Linux is here and nowhere else.
"""
