"""Preflight of a run with hosts: each placement has a host that takes work, and the SDK of the dispatcher is there."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.pipeline.node_status import VALIDATED
from garrison.records.hosts import list_hosts
from garrison.records.placement import check_placement, stated_placement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.pipeline.plan import RunPlan

INSTALL = "pip install 'garrison[hosts]'"


def check_hosts(home: Path, plan: RunPlan, default: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return the placement of each node, '' for this machine, and the slots of all hosts that may do one.

    Refused without the extra for hosts; NotFound for a placement without a host.
    """
    placements = {name: stated_placement(task.attrs, default) for name, task in plan.tasks.items()}
    used = {name: words for name, words in placements.items() if words and plan.initial.get(name) != VALIDATED}
    if not used:
        return placements, 0
    if find_spec("temporalio") is None:
        raise Refused(f"node {next(iter(used))} is for a host, and the extra for hosts is not installed: `{INSTALL}`")
    hosts, _ = list_hosts(home)
    slots = {host.name: host.slots for name, words in used.items()
             for host in check_placement(f"node {name}", words, hosts)}
    return placements, sum(slots.values())
