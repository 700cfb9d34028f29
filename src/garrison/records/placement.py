"""Placement: where a node's attempts are done, as `hosts=`, `host=` and `--hosts` state it. Pure.

A placement is the names of hosts (`box2,box3`), one label (`gpu`) or `any`; `local` and '' are this machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from garrison.errors import NotFound, UsageError
from garrison.records.host_service import ANY_QUEUE, SET, host_queue, label_queue
from garrison.records.hosts import HostState, check_label
from garrison.records.names import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from garrison.records.hosts import Host

ANY, LOCAL = "any", "local"
ATTRIBUTES = ("hosts", "host")
"""Attributes of a node that say where it runs; the first counts."""


def parse_placement(where: str, words: str) -> tuple[str, ...]:
    """Return the sorted names of a placement, none for this machine; UsageError, which starts with `where`, if it is
    invalid."""
    names = sorted({word for word in re.split(r"[\s,]+", words.strip()) if word})
    if names in ([], [LOCAL]):
        return ()
    if {ANY, LOCAL} & set(names) and len(names) > 1:
        raise UsageError(f"{where}: {quote(words)} names hosts and `{ANY}` or `{LOCAL}`; give only one of these")
    for name in names:
        try:
            check_label(name)
        except UsageError:
            raise UsageError(f"{where}: {quote(name)} is neither the name nor a label of a host") from None
    return tuple(names)


def stated_placement(attributes: Mapping[str, object], default: Sequence[str]) -> str:
    """Return where a node with these attributes runs, as its task stores it; '' for this machine."""
    words = next((str(attributes[name]) for name in ATTRIBUTES if str(attributes.get(name, "")).strip()), None)
    return ",".join(parse_placement("hosts", words) if words is not None else default)


def eligible(placement: str, hosts: Iterable[Host]) -> list[Host]:
    """Return the hosts that may do the work of a placement: those named, those with the label, or all."""
    names = placement.split(",")
    known = list(hosts)
    if names == [ANY]:
        return known
    by_name = {host.name: host for host in known}
    # A name takes precedence over a label, so that a label added later moves no run away from its host.
    if len(names) == 1 and names[0] not in by_name:
        return [host for host in known if names[0] in host.labels]
    return [by_name[name] for name in names if name in by_name]


def check_placement(where: str, placement: str, hosts: Collection[Host]) -> list[Host]:
    """Return the hosts of a placement; NotFound, which starts with `where`, if one is missing or none takes work."""
    found = eligible(placement, hosts)
    missing = sorted(set(placement.split(",")) - {host.name for host in hosts} - {ANY})
    if len(placement.split(",")) > 1 and missing:
        raise NotFound(f"{where}: there is no host {missing[0]}; `garrison host list` shows the existing ones, and "
                       "`garrison host add HOST` adds one")
    if not found:
        what = "there is no host" if placement == ANY else f"no host has the name or label {placement}"
        raise NotFound(f"{where}: {what}; `garrison host list` shows the existing ones, and `garrison host add HOST` "
                       "adds one")
    if all(host.state == HostState.DRAINING for host in found):
        raise NotFound(f"{where}: {describe(placement)} takes no work now (draining); `garrison host list` shows it")
    return found


def queue_of(placement: str, hosts: Iterable[Host]) -> str:
    """Return the queue from which the hosts of a placement take its attempts."""
    names = placement.split(",")
    if names == [ANY]:
        return ANY_QUEUE
    if len(names) > 1:
        return f"{SET}{'+'.join(names)}"
    return host_queue(names[0]) if any(host.name == names[0] for host in hosts) else label_queue(names[0])


def describe(placement: str) -> str:
    """Describe a placement."""
    if placement == ANY:
        return "any host"
    return f"one of {placement.replace(',', ', ')}" if "," in placement else placement
