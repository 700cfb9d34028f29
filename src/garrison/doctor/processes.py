"""Processes of a home: identities, marked processes, sessions, runs, hosts. Changes nothing and contacts no host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import read_config
from garrison.doctor.findings import (
    ExaminedState,
    Finding,
    Severity,
    judge_container,
    judge_identity,
    judge_process,
    judge_run,
    judge_session,
)
from garrison.errors import GarrisonError, RecordError, UsageError
from garrison.launch.resume import needs_launcher
from garrison.plugins import PluginGroup, load
from garrison.records.hosts import list_hosts
from garrison.records.identity import ALIVE, Identity
from garrison.records.names import Key, launcher_key, parse_marker
from garrison.sandbox import container
from garrison.system import processes
from garrison.system.processes import is_tmux
from garrison.system.terminal import ProcessTerminal
from garrison.system.tmux_server import has_socket, supported_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from garrison.processes.runtime import Runtime
    from garrison.system.terminal import Terminal, TerminalSession

_PAUSE = 0.5
"""Seconds after which an apparent orphan is checked again: an incarnation that has just ended is still exiting."""


# ---- identities ------------------------------------------------------------------------------------------------------


def examine_identities(scope: ExaminedState) -> Iterator[Finding]:
    """Find identities that claim a process which is gone."""
    runtime = scope.runtime
    identities = _identities(runtime)
    for identity in identities.values():
        if identity.status in ALIVE:
            verdict = runtime.observer.judge(identity)
            if finding := judge_identity(identity, verdict.state, verdict.why, by_hand=identity.pid is None,
                                         supervised=_is_supervised(runtime, identities, identity)):
                yield finding


def _identities(runtime: Runtime) -> dict[Key, Identity]:
    records, _ = runtime.store.list(Identity)
    return {identity.key: identity for identity in records}


def _is_supervised(runtime: Runtime, identities: Mapping[Key, Identity], identity: Identity) -> bool:
    """Return whether any ancestor is alive, by name from its parent up to the launcher."""
    parent, seen = identity.parent, set()
    while parent is not None and (key := Key(parent["role"], parent["name"], identity.run_id)) not in seen:
        seen.add(key)
        if _is_alive(runtime, identities.get(key)):
            return True
        parent = identities[key].parent if key in identities else None
    return identity.role != "launch" and bool(identity.run_id) and _is_alive(
        runtime, identities.get(launcher_key(identity.run_id)))


def _is_alive(runtime: Runtime, identity: Identity | None) -> bool:
    return identity is not None and runtime.observer.judge(identity).living


# ---- processes -------------------------------------------------------------------------------------------------------


def examine_processes(scope: ExaminedState) -> Iterator[Finding]:
    """Find orphans: processes whose incarnation is over."""
    orphans = list(_find_orphans(scope))
    if orphans and scope.wait is not None:
        scope.wait(_PAUSE)
    remaining = {orphan.fix for orphan in _find_orphans(scope)} if orphans else set()
    yield from (orphan for orphan in orphans if orphan.fix in remaining)


def _find_orphans(scope: ExaminedState) -> Iterator[Finding]:
    """Judge every process with a marker of this home."""
    runtime = scope.runtime
    home = os.path.realpath(runtime.home)
    table = processes.list_processes()
    # the doctor may run in a shell with an ended agent's marker: it must not end itself or its shell
    own = processes.ancestors(os.getpid()) | {os.getpid()}
    identities = _identities(runtime)
    for process in table:
        marker = parse_marker(process.marker or "")
        if marker is None or not marker[1] or os.path.realpath(marker[0]) != home:
            continue  # without a marker, registered by hand without a run, or of another home
        _, run, name, incarnation = marker
        try:
            key = Key.parse(f"{name}@{run}")
            identity = identities.get(key)
            # an unreadable record may belong to a living process: repair it first
            unreadable = identity is None and runtime.store.path(Identity, key).exists()
        except UsageError:
            identity, unreadable = None, False
        status = scope.runs.get(run)
        is_preview = name.startswith("preview-") and processes.probe(incarnation) is not None  # its number is a pid
        is_current = identity is not None and identity.incarnation == incarnation
        if finding := judge_process(process, name, incarnation,
                                    is_alive=is_current and _is_held_or_alive(runtime, identity),
                                    run_over=status is not None and status.over,
                                    exempt=process.pid in own or is_tmux(process.comm) or unreadable or is_preview):
            yield finding


def _is_held_or_alive(runtime: Runtime, identity: Identity | None) -> bool:
    return identity is not None and (identity.status == "held" or runtime.observer.judge(identity).living)


def examine_containers(scope: ExaminedState) -> Iterator[Finding]:
    """Find containers of this home without an owner: an engine was killed, or the machine went down."""
    home = os.path.realpath(scope.runtime.home)
    for left in container.list_left():
        if os.path.realpath(left.home) == home:
            yield judge_container(left)


# ---- sessions --------------------------------------------------------------------------------------------------------


def examine_sessions(scope: ExaminedState) -> Iterator[Finding]:
    """Find sessions whose incarnation is over and which no process will close."""
    runtime = scope.runtime
    identities = _identities(runtime)
    for terminal, session in open_sessions(runtime.home):
        try:
            key = Key.parse(session.name)
        except UsageError:
            continue
        identity = identities.get(key)
        if finding := judge_session(terminal, session, has_run=bool(key.run),
                                    is_alive=_is_held_or_alive(runtime, identity),
                                    supervised=identity is not None and _is_supervised(runtime, identities, identity)):
            yield finding


def open_sessions(home: Path) -> Iterator[tuple[Terminal, TerminalSession]]:
    """Yield all sessions of a home, in its tmux server and as plain processes, without starting a server."""
    run = home / "run"
    terminals: list[Terminal] = [ProcessTerminal(home)] if (run / "plain").is_dir() else []
    if supported_version() and has_socket(run):
        from garrison.system.tmux import TmuxTerminal

        terminals.append(TmuxTerminal(home))
    for terminal in terminals:
        try:
            yield from [(terminal, session) for session in terminal.sessions()]
        except GarrisonError:
            continue  # a torn session record is found by `files`


# ---- runs ------------------------------------------------------------------------------------------------------------


def examine_runs(scope: ExaminedState) -> Iterator[Finding]:
    """Find unfinished runs without a launcher."""
    for run, status in scope.runs.items():
        try:
            finding = judge_run(status, needs_launcher=needs_launcher(scope.runtime, run))
        except RecordError:
            continue
        if finding:
            yield finding


# ---- hosts -----------------------------------------------------------------------------------------------------------


def examine_hosts(scope: ExaminedState) -> Iterator[Finding]:
    """Find hosts without a tunnel, unfinished set-ups, and a missing engine."""
    home = scope.runtime.home
    hosts, errors = list_hosts(home)
    for error in errors:
        yield Finding("hosts", Severity.ERROR, str(error), advice="`garrison host add HOST` writes it again")
    if not hosts:
        return
    try:
        own, state = not read_config(home).hosts().temporal, load(PluginGroup.PARTS, "hosts.state")(home)
    except GarrisonError as error:
        yield Finding("hosts", Severity.ERROR, str(error))
        return
    is_kept = load(PluginGroup.PARTS, "hosts.is_kept")(home)
    if not is_kept and any(host.is_set_up for host in hosts):
        yield Finding("hosts", Severity.WARNING, "the keeper of the hosts is not running",
                      advice="`garrison host list` starts it, as does each run with remote nodes")
    if is_kept and own and state.server:
        yield Finding("hosts", Severity.WARNING, f"the Temporal server does not answer: {state.server}")
    for host in hosts:
        if not host.is_set_up:
            yield Finding("hosts", Severity.WARNING, f"the set-up of {host.name} was not finished",
                          advice=f"`garrison host add {host.ssh or 'local'} --name {host.name}` continues it")
        elif is_kept and host.port and host.name not in state.tunnels:
            why = state.troubles.get(host.name, "its tunnel is not open yet")
            yield Finding("hosts", Severity.WARNING, f"{host.name} is not connected: {why}")
