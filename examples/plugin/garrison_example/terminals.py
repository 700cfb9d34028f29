"""A terminal: `example-quiet` runs agents as plain processes, as `process` does, and has a name of its own.

    garrison launch work.dot --terminal example-quiet
"""

from __future__ import annotations

from garrison.system.terminal import ProcessTerminal


class QuietTerminal(ProcessTerminal):
    """Terminal of one home."""
