"""Network guard for kernels without network namespaces: refuse TCP connections to well-known ports.

Landlock (Linux 6.7 and later) needs no privilege and applies to all descendants, permanently. It knows ports, not
addresses, so the ephemeral ports stay open, from which a server on port 0 gets its own. Real services (443, 80, 22, 53)
do not use them. UDP name look-ups are not prevented, but no such service can be reached after them.
"""

from __future__ import annotations

from garrison.system import landlock
from garrison.system.landlock import ephemeral_ports

__all__ = ["ephemeral_ports", "guard", "refusal"]


def refusal() -> str | None:
    """Return why this kernel cannot guard connections; None if it can."""
    version = landlock.abi()
    if not version:
        return "Landlock is not enabled in this kernel"
    return None if version >= landlock.PORTS_ABI else f"Landlock {version} of this kernel does not support ports"


def guard() -> None:
    """Restrict this thread and all its later children to the ephemeral ports; OSError if the kernel refuses."""
    landlock.restrict(connect=ephemeral_ports())
