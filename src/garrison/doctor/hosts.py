"""Hosts of a home: whether their engine runs, and which cannot be reached. Looks at records only, asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.config import read_config
from garrison.doctor.findings import Finding, Scope, Severity
from garrison.errors import GarrisonError
from garrison.hosts.keeper import is_running, read_state
from garrison.records.hosts import list_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECK = "hosts"


def examine_hosts(scope: Scope) -> Iterator[Finding]:
    """Find hosts without a tunnel, a set-up that was not finished, and an engine that does not run."""
    home = scope.runtime.home
    hosts, errors = list_hosts(home)
    for error in errors:
        yield Finding(CHECK, Severity.ERROR, str(error), advice="`garrison host add HOST` writes it again")
    if not hosts:
        return
    try:
        own, state = not read_config(home).hosts().temporal, read_state(home)
    except GarrisonError as error:
        yield Finding(CHECK, Severity.ERROR, str(error))
        return
    is_kept = is_running(home)
    if not is_kept and any(host.is_set_up for host in hosts):
        yield Finding(CHECK, Severity.WARNING, "the keeper of the hosts does not run",
                      advice="`garrison host list` starts it, and each run with remote nodes does")
    if is_kept and own and state.server:
        yield Finding(CHECK, Severity.WARNING, f"the Temporal server does not answer: {state.server}")
    for host in hosts:
        if not host.is_set_up:
            yield Finding(CHECK, Severity.WARNING, f"the set-up of {host.name} was not finished",
                          advice=f"`garrison host add {host.ssh or 'local'} --name {host.name}` goes on")
        elif is_kept and host.port and host.name not in state.tunnels:
            why = state.troubles.get(host.name, "its tunnel is not open yet")
            yield Finding(CHECK, Severity.WARNING, f"{host.name} is not connected: {why}")
