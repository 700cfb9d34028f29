"""`garrison host`: other machines that do the work of nodes, over the user's ssh."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import click

from garrison import extras
from garrison.cli.commands import Group
from garrison.cli.options import home_option, output_options
from garrison.cli.output import align_columns, confirm, print_json, print_message
from garrison.directories import find_home
from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.records.host_service import HostProbe, HostSettings, read_settings
from garrison.records.hosts import Host, HostState, check_host, list_hosts, read_host, write_host
from garrison.system.clock import SystemClock, age_of
from garrison.system.terminal_text import clean
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PROBE_SECONDS = 15.0


@click.group("host", cls=Group)
def host() -> None:
    """Let other machines do the work of nodes, over your ssh and without open ports."""


# ------------------------------------------------------------------------------------------------------- set up, remove


@host.command("add", examples=(
    ("garrison host add build@box2 --slots 8", "a machine that `ssh build@box2` reaches without a password"),
    ("garrison host add gpu1 --label gpu", "an alias of ~/.ssh/config, for nodes with host=\"gpu\""),
    ("garrison host add box2", "again after an interruption, an upgrade here, or to change its slots"),
))
@click.argument("destination")
@click.option("--name", metavar="NAME", help="Its name here (default: the destination's host).")
@click.option("--slots", type=click.IntRange(1, 1000), metavar="N",
              help="Nodes that it works on at once (default: 2, or the current value).")
@click.option("--label", "labels", multiple=True, metavar="LABEL", help="Label that nodes can request (repeatable).")
@click.option("--address", metavar="HOST:PORT",
              help="Address at which it reaches the Temporal server; none: through an ssh tunnel.")
@click.option("--python", metavar="PATH", default="", help="Its Python, 3.11 or newer (default: the newest).")
@home_option
def add_command(destination: str, name: str | None, slots: int | None, labels: tuple[str, ...], address: str | None,
                python: str, home: str | None) -> None:
    """Set up a machine as a host, and wait until its worker answers. Can be repeated.

    It needs Linux, Python 3.11, git, and ssh without a password; the same version of garrison is installed there in its
    own environment. DESTINATION is as for ssh; `local` is this machine.
    """
    from garrison.hosts.access import check_destination
    from garrison.hosts.setup import HostSetup

    extras.require("hosts", "`garrison host add`")
    where = find_home(home)
    ssh = "" if destination == "local" else check_destination(destination)
    called = check_host(name or default_name(destination))
    if address is not None and not re.fullmatch(r"[^\s:/]+:[0-9]{1,5}", address):
        raise UsageError(f"not an address: {address!r}; use HOST:PORT")
    known = _find(where, called)
    wanted = Host(called, ssh, slots or (known.slots if known else 2), list(labels) or (known.labels if known else []),
                  known.state if known else HostState.READY, address=address or "",
                  added_at=known.added_at if known and known.added_at else SystemClock().utc())
    begun = SystemClock().monotonic()
    made = HostSetup(where, wanted, python, print_message).run()
    took = SystemClock().monotonic() - begun
    click.echo(f"{made.name} is ready: {made.slots} slots, after {took:.0f} s; `garrison launch … --hosts {made.name}` "
               "uses it")


def default_name(destination: str) -> str:
    """Return the default name of a host, from its address."""
    if destination == "local":
        return check_host(re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-") or "local")
    name = destination.removeprefix("ssh://").rpartition("@")[2].partition("/")[0]
    name = re.sub(r":[0-9]+\Z", "", name).partition(".")[0] if not name.replace(".", "").isdigit() else name
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")


def _find(home: Path, name: str) -> Host | None:
    try:
        return read_host(home, name)
    except NotFound:
        return None


@host.command("remove", examples=(
    ("garrison host remove box2", "once it has no work; the installation is removed"),
    ("garrison host remove box2 --yes", "now: other hosts continue its work"),
    ("garrison host remove box2 --here", "only from this home, if the machine is gone"),
))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation, even if it has work.")
@click.option("--here", is_flag=True, help="Do not contact the machine, which may be unreachable.")
@home_option
def remove_command(name: str, *, yes: bool, here: bool, home: str | None) -> None:
    """Stop the service of a host, remove its installation, and forget the host."""
    from garrison.hosts.setup import push_settings, remove

    where = find_home(home)
    found = read_host(where, name)
    if not here:
        seen = _look(where, found)
        if seen.probe is not None and seen.probe.working and not yes:
            _ask(name, seen.probe.working)
        if not seen.why and found.is_set_up:
            # drain first: it must not take work during the removal
            push_settings(where, replace(found, state=HostState.DRAINING))
    remove(where, found, print_message, reach=not here)
    click.echo(f"{name} is no longer a host")


def _ask(name: str, working: list[str]) -> None:
    what = ", ".join(map(clean, working[:5]))
    confirm(f"{name} is working on {what}; end it?", f"{name} stays a host",
            f"it works on {what}; `garrison host drain {name}` lets it finish, --yes ends that work")


@host.command("drain", examples=(
    ("garrison host drain box2", "it finishes its work and takes no new work"),
    ("garrison host drain box2 --undo", "it takes work again"),
))
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it take work again.")
@home_option
def drain_command(name: str, *, undo: bool, home: str | None) -> None:
    """Let a host finish its work and take no new work."""
    from garrison.hosts.setup import push_settings

    where = find_home(home)
    changed = replace(read_host(where, name), state=HostState.READY if undo else HostState.DRAINING)
    write_host(where, changed)
    try:
        push_settings(where, changed)
    except GarrisonError as error:
        raise Refused(f"{error}; recorded here, it is told when it connects") from None
    click.echo(f"{name} takes work again" if undo else f"{name} takes no new work")


# ---------------------------------------------------------------------------------------------------------------- show


class SeenHost(Value):
    """Current observation of a host."""

    host: Host
    probe: HostProbe | None = None
    """None if it cannot be reached."""
    why: str = ""
    """Why it cannot be reached, '' if it can."""
    last_seen: str = ""
    tunnel_since: str = ""


def _look(home: Path, found: Host) -> SeenHost:
    from garrison.hosts.access import HostAccess
    from garrison.hosts.keeper import read_state
    from garrison.hosts.setup import probe

    state = read_state(home)
    last, since = state.seen.get(found.name, ""), state.tunnels.get(found.name, "")
    if not found.is_set_up:
        return SeenHost(found, None, f"its set-up was not finished: `garrison host add {found.ssh or 'local'}` "
                                     "continues it", last)
    try:
        seen = probe(HostAccess.of(home, found), found, PROBE_SECONDS)
    except GarrisonError as error:
        return SeenHost(found, None, str(error), last, since)
    return SeenHost(found, seen, "", last, since)


def _look_at_all(home: Path, hosts: list[Host]) -> list[SeenHost]:
    from garrison.hosts.keeper import ensure_keeper

    ensure_keeper(home, 0)
    # all at once: each unreachable host takes PROBE_SECONDS
    with ThreadPoolExecutor(min(16, len(hosts) or 1), "probe") as executor:
        return list(executor.map(lambda each: _look(home, each), hosts))


@host.command("list", examples=(("garrison host list", "slots, load, agents and clock of each host"),))
@output_options
def list_command(as_json: bool, home: str | None) -> None:
    """List the hosts of the home with their current state. Exit code 1 if a record cannot be read."""
    where = find_home(home)
    hosts, errors = list_hosts(where)
    seen = _look_at_all(where, hosts)
    if as_json:
        print_json([ShownHost.of(each) for each in seen])
    elif hosts:
        rows = [_row(each) for each in seen]
        for line in align_columns(["HOST", "STATE", "SLOTS", "LOAD", "AGENTS", "VERSION", "CLOCK", "LABELS"], rows):
            click.echo(line)
    elif not errors:
        click.echo("no hosts; `garrison host add user@machine` sets one up")
    if errors:
        raise Refused(str(errors[0]))


@host.command("show", examples=(("garrison host show box2", "everything about one host, including its work"),))
@click.argument("name")
@output_options
def show_command(name: str, as_json: bool, home: str | None) -> None:
    """Show one host: its work, its agents, and how it is reached. Exit code 1 if it cannot be reached."""
    where = find_home(home)
    (seen,) = _look_at_all(where, [read_host(where, name)])
    if as_json:
        print_json(ShownHost.of(seen))
    else:
        for key, value in _details(seen):
            click.echo(f"{key + ':':13} {value}")
    if seen.why:
        raise Refused(f"{name} cannot be reached")


def _state(seen: SeenHost) -> str:
    probe = seen.probe
    if probe is None:
        age = age_of(seen.last_seen)
        return f"unreachable{f', seen {age} ago' if age else ''}"
    if not probe.running:
        return "its service is not running"
    if not probe.connected:
        return "not connected"
    if probe.why:
        return f"takes no work: {clean(probe.why)[:100]}"
    return "draining" if seen.host.state == HostState.DRAINING else "ready"


def _row(seen: SeenHost) -> list[str]:
    labels, probe = ",".join(seen.host.labels), seen.probe
    if probe is None:
        return [seen.host.name, _state(seen), f"-/{seen.host.slots}", "", clean(seen.why)[:100], "", "", labels]
    agents = [clean(each.program) + ("" if each.ready else " (no log-in)") for each in probe.agents]
    return [seen.host.name, _state(seen), _slots(seen.host, probe), _load(probe), ", ".join(agents) or "none found",
            clean(probe.version), f"{probe.clock_offset:+.1f}s", labels]


def _slots(found: Host, probe: HostProbe) -> str:
    return f"{len(probe.working)}/{found.slots}"


def _load(probe: HostProbe) -> str:
    return f"{probe.load:.1f}/{probe.cores}"


def _details(seen: SeenHost) -> Iterator[tuple[str, str]]:
    found, probe = seen.host, seen.probe
    yield "host", found.name
    yield "ssh", found.ssh or "none: this machine"
    yield "state", _state(seen)
    if seen.why:
        yield "why", clean(seen.why)
    elif probe is not None and probe.why:
        yield "why", clean(probe.why)
    yield "labels", ", ".join(found.labels) or "none"
    yield "home there", found.home
    yield "engine", f"{found.address}{f', through a tunnel to port {found.port} there' if found.port else ''}"
    if found.port:
        yield "tunnel", f"open for {age_of(seen.tunnel_since)}" if seen.tunnel_since else "not open"
    if seen.last_seen:
        yield "last seen", seen.last_seen
    if probe is None:
        return
    yield "slots", f"{_slots(found, probe)} in use"
    yield "works on", ", ".join(map(clean, probe.working)) or "nothing"
    yield "version", clean(probe.version)
    yield "kept by", clean(probe.kept_by)
    yield "load", f"{_load(probe)} cores, {probe.disk_free / 1e9:.1f} GB free"
    yield "clock", f"{probe.clock_offset:+.2f} s from here"
    for agent in probe.agents:
        yield "agent", f"{clean(agent.program)}: {clean(agent.access)}"


class ShownHost(Value):
    """Host for `--json`."""

    name: str
    ssh: str
    slots: int
    labels: list[str]
    state: str
    why: str
    home: str
    address: str
    port: int
    last_seen: str
    tunnel_since: str
    seen: Mapping[str, object]
    """Its own report; empty if it cannot be reached."""

    @classmethod
    def of(cls, seen: SeenHost) -> ShownHost:
        found = seen.host
        return cls(found.name, found.ssh, found.slots, found.labels, _state(seen), seen.why, found.home, found.address,
                   found.port, seen.last_seen, seen.tunnel_since, asdict(seen.probe) if seen.probe is not None else {})


# ---------------------------------------------------------------------------------------------------------- on the host


@host.command("run", examples=(
    ("garrison host run", "on the host: the service that `garrison host add` sets up"),
    ("garrison host run --temporal temporal.example:7233 --namespace crew", "with your team's server"),
))
@click.option("--temporal", metavar="HOST:PORT", help="Address of the Temporal server (default: the settings').")
@click.option("--namespace", metavar="NAME", help="Its namespace.")
@click.option("--slots", type=click.IntRange(1, 1000), metavar="N", help="Attempts to work on at once.")
@home_option
def run_command(temporal: str | None, namespace: str | None, slots: int | None, home: str | None) -> None:
    """Work as a host until a signal ends it: take attempts from the queues and do their work here.

    Runs on the host itself, in the home that `garrison host add` created there. TLS and an API key come from the table
    [hosts] of that home's config.toml, or from the variables of Temporal's tools (TEMPORAL_TLS, …).
    """
    from garrison.hosts.host_run import tidy
    from garrison.hosts.service import HostService, connect_temporal, make_work

    where = find_home(home)
    read_settings(where)
    os.umask(0o077)
    HostService(where, make_work, partial(connect_temporal, where), SystemClock(),
                _overriding(temporal, namespace, slots), tidy).run()


def _overriding(temporal: str | None, namespace: str | None,
                slots: int | None) -> Callable[[HostSettings], HostSettings]:
    return lambda settings: replace(settings, address=temporal or settings.address,
                                    namespace=namespace or settings.namespace, slots=slots or settings.slots)
