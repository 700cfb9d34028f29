"""Preflight of a run with hosts: each placement has a host that takes work, and the SDK of the dispatcher is there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.dispatch.ssh import HostAccess
from garrison.errors import GarrisonError, Refused
from garrison.pipeline.node_status import VALIDATED
from garrison.records.host_service import queues_path
from garrison.records.hosts import list_hosts
from garrison.records.placement import check_placement, queue_of, stated_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.pipeline.plan import RunPlan
    from garrison.records.hosts import Host

INSTALL = "pip install 'garrison[hosts]'"


REACH_SECONDS = 20.0
_ADD_LINE = 'mkdir -p "$(dirname "$1")"; grep -qxF "$2" "$1" 2>/dev/null || printf "%s\\n" "$2" >>"$1"'


def check_hosts(home: Path, plan: RunPlan, default: Sequence[str],
                report: Callable[[str], None]) -> int:
    """Return the slots of all hosts that may do a node of the plan.

    Refused without the extra for hosts; NotFound for a placement without a host.
    """
    placements = {name: stated_placement(task.attrs, default) for name, task in plan.tasks.items()}
    used = {name: words for name, words in placements.items() if words and plan.initial.get(name) != VALIDATED}
    if not used:
        return 0
    if find_spec("temporalio") is None:
        raise Refused(f"node {next(iter(used))} is for a host, and the extra for hosts is not installed: `{INSTALL}`")
    hosts = [host for host in list_hosts(home)[0] if host.is_set_up]
    slots: dict[str, int] = {}
    for words in sorted(set(used.values())):
        found = check_placement(f"node {next(name for name in used if used[name] == words)}", words, hosts)
        slots |= {host.name: host.slots for host in found}
        if "," in words:
            for host in found:
                _serve_set(home, host, queue_of(words, hosts), report)
    return sum(slots.values())


def _serve_set(home: Path, host: Host, queue: str, report: Callable[[str], None]) -> None:
    """Let a host serve the queue of a set of hosts, too."""
    path = queues_path(Path(host.home))
    try:
        HostAccess.of(home, host).run(["sh", "-c", _ADD_LINE, "sh", str(path), queue], timeout=REACH_SECONDS)
    except GarrisonError as error:
        report(f"note: {host.name} does none of this run's nodes until it can be reached: {error}; launch again then, "
               "or name it alone")
