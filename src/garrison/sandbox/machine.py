"""Machine: its abilities to confine processes, as the probe found them. Pure data."""

from __future__ import annotations

from garrison.values import Value


class Machine(Value):
    """Abilities of this machine to confine this user's processes."""

    bubblewrap: str = ""
    """Path of the program, '' if bubblewrap is missing or does not work."""
    refusal: str = ""
    """Why bubblewrap cannot be used."""
    has_own_proc: bool = True
    """True if a /proc of its own may be mounted; a container may refuse it."""
    can_forbid_namespaces: bool = True
    landlock: int = 0
    """Landlock's ABI, 0 without Landlock."""
    is_installed: bool = True
    """False if there is no bubblewrap at all."""
