"""Listeners: the TCP ports on which a node's programs listen, and the next step of a preview of one.

A node's programs are the descendants of its orchestrator: a marker in an environment could be forged by the process
that started the program. If they have their own network namespace, all ports in it are the node's, except those that
garrison's own processes opened there. In the machine's namespace only sockets that one of them has open are.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.system import processes
from garrison.system.processes import ProcessId
from garrison.system.sockets import Listener, list_listeners
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")
MAX_PROCESSES = 4096
"""Descendants of a node that are inspected."""


class Tree(Value):
    """The present programs of a node."""

    namespace: ProcessId | None
    """A process in their own network namespace; None if they share the machine's."""
    listeners: tuple[Listener, ...] = ()
    """One for each port, by port."""
    reserved: frozenset[int] = frozenset()
    """Ports in the namespace at which garrison itself listens."""

    def find(self, port: int) -> Listener | None:
        return next((each for each in self.listeners if each.port == port), None)


def look_at(root: ProcessId, holder: int = 0) -> Tree | None:
    """Return the programs below a node's orchestrator; None if there are none, or it has ended.

    Args:
        holder: garrison's process with its own listeners in their namespace; 0 for the orchestrator.
    """
    if not processes.is_running(root.pid, root.ticks):
        return None
    below = _descendants(root.pid)
    if not below:
        return None
    own = _network_of(os.getpid())
    inside = [process for process in below if _network_of(process.pid) not in ("", own)]
    names = _owners(below)
    if not inside:
        held = [each for each in list_listeners(os.getpid()) if each.inode in names]
        return Tree(None, _by_port(held, names))
    ours = _sockets_of(holder or root.pid)
    found = list_listeners(inside[0].pid)
    reserved = frozenset(each.port for each in found if each.inode in ours)
    return Tree(inside[0], _by_port([each for each in found if each.port not in reserved], names), reserved)


def _by_port(found: Iterable[Listener], names: Mapping[int, str]) -> tuple[Listener, ...]:
    """Return one listener for each port, preferably IPv4."""
    chosen: dict[int, Listener] = {}
    for each in sorted(found, key=lambda each: (each.port, each.is_v6)):
        chosen.setdefault(each.port, Listener(each.port, each.address, each.inode, names.get(each.inode, "")))
    return tuple(chosen.values())


def _descendants(pid: int) -> list[ProcessId]:
    """Return the living processes below one, parents first."""
    found: list[ProcessId] = []
    queue = processes.child_pids(pid)
    while queue and len(found) < MAX_PROCESSES:
        info = processes.probe(queue.pop(0))
        if info is not None and not info.zombie:
            found.append(info.id)
            queue += processes.child_pids(info.pid)
    return found


def _network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115  # no path: net:[…]
    except OSError:
        return ""


def _sockets_of(pid: int) -> set[int]:
    """Return the inodes of a process's sockets; none if reading them is not permitted."""
    folder, found = f"/proc/{pid}/fd", set()
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  # names only
            with suppress(OSError):
                if match := _SOCKET.match(os.readlink(f"{folder}/{name}")):  # noqa: PTH115
                    found.add(int(match[1]))
    return found


def _owners(below: Iterable[ProcessId]) -> dict[int, str]:
    """Return inode → program of the processes' open sockets."""
    names: dict[int, str] = {}
    for process in below:
        info = processes.probe(process.pid)
        for inode in _sockets_of(process.pid):
            names.setdefault(inode, info.comm if info is not None else "")
    return names


# ---- decision --------------------------------------------------------------------------------------------------------


class Step(StrEnum):
    """Next step of a preview."""

    SERVE = "serve"
    AWAIT_NODE = "await node"
    AWAIT_PORT = "await port"
    SEVERAL = "several"
    """It ends: the user has to name one of several ports."""
    RESERVED = "reserved"
    """It ends: the port is garrison's, not the node's."""
    OVER = "over"
    """It ends: the node has ended."""


ENDS = frozenset({Step.SEVERAL, Step.RESERVED, Step.OVER})
"""Steps that end a preview."""


def decide(tree: Tree | None, port: int, *, is_over: bool) -> tuple[Step, Listener | None]:
    """Return the next step of a preview, and the listener that it serves. Pure.

    | node | its ports | wanted | step |
    |---|---|---|---|
    | over | any | any | over |
    | no program | none | any | await node |
    | at work | garrison's own | that one | reserved |
    | at work | with it | that one | serve |
    | at work | without it | that one | await port |
    | at work | none | any | await port |
    | at work | one | any | serve |
    | at work | several | any | several |

    Args:
        port: the wanted one; 0 for the only one.
        is_over: whether no program of the node will run any more.
    """
    if tree is None:
        return (Step.OVER if is_over else Step.AWAIT_NODE), None
    if port in tree.reserved:
        return Step.RESERVED, None
    if port:
        found = tree.find(port)
        return (Step.AWAIT_PORT if found is None else Step.SERVE), found
    if len(tree.listeners) == 1:
        return Step.SERVE, tree.listeners[0]
    return (Step.SEVERAL if tree.listeners else Step.AWAIT_PORT), None
