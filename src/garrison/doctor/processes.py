"""Gathering who lives: identities, processes with our marker, sessions, runs. Changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.doctor.findings import BearerFact, LifeFact, RunFact, SessionFact
from garrison.errors import GarrisonError, RecordError, UsageError
from garrison.processes.resume_all import needs_launcher
from garrison.records.identity import ALIVE, Identity
from garrison.records.names import Key, launcher_key
from garrison.supervise.lease import parse_marker
from garrison.system import processes
from garrison.system.process_table import is_tmux
from garrison.system.process_terminal import ProcessTerminal
from garrison.system.tmux_server import supported_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from garrison.processes.run_status import RunStatus
    from garrison.processes.runtime import Runtime
    from garrison.system.terminal import Session, Terminal


def _identities(world: Runtime) -> dict[Key, Identity]:
    records, _ = world.store.list(Identity)
    return {one.key: one for one in records}


def _lives(world: Runtime, known: Mapping[Key, Identity], key: Key) -> bool:
    return key in known and world.observer.judge(known[key]).living


def _supervised(world: Runtime, known: Mapping[Key, Identity], one: Identity) -> bool:
    """Whether the layer that is responsible for a name lives, by name, up to the launcher."""
    above, seen = one.parent, set()
    while above is not None and (key := Key(above["role"], above["name"], one.run_id)) not in seen:
        seen.add(key)
        if _lives(world, known, key):
            return True
        above = known[key].parent if key in known else None
    return one.role != "launch" and bool(one.run_id) and _lives(world, known, launcher_key(one.run_id))


def life_facts(world: Runtime) -> Iterator[LifeFact]:
    """Every identity that claims a life."""
    known = _identities(world)
    for one in known.values():
        if one.status in ALIVE:
            verdict = world.observer.judge(one)
            yield LifeFact(one.key.full, one.run_id, one.status, verdict.state, verdict.why, one.pid is None,
                           _supervised(world, known, one), one)


def bearer_facts(world: Runtime, runs: Mapping[str, RunStatus]) -> Iterator[BearerFact]:
    """Every process that bears a marker of this home, whoever made it."""
    home = os.path.realpath(world.home)
    rows = processes.list_processes()
    above = processes.ancestors(os.getpid()) | {os.getpid()}
    known = _identities(world)
    for row in rows:
        marker = parse_marker(row.marker or "")
        if marker is None or not marker[1] or os.path.realpath(marker[0]) != home:
            continue  # nobody's, a life by hand without a run, or another home's
        _, run, life, incarnation = marker
        try:
            one = known.get(Key.parse(f"{life}@{run}"))
            unreadable = one is None and world.store.path(Identity, Key.parse(f"{life}@{run}")).exists()
        except UsageError:
            one, unreadable = None, False
        standing = runs.get(run)
        current = one is not None and one.incarnation == incarnation
        living = one is not None and (one.status == "held" or world.observer.judge(one).living)
        yield BearerFact(row.pid, row.ticks, row.comm, row.marker or "", life, incarnation, current, living,
                         standing is not None and standing.over,
                         row.pid in above or is_tmux(row.comm) or unreadable)


def session_facts(world: Runtime) -> Iterator[SessionFact]:
    """Every open session of this home's own terminals."""
    known = _identities(world)
    for terminal, session in open_sessions(world.home):
        try:
            key = Key.parse(session.name)
        except UsageError:
            continue
        one = known.get(key)
        lives = one is not None and (one.status == "held" or world.observer.judge(one).living)
        keeper = one is not None and _supervised(world, known, one)
        yield SessionFact(session.name, session.kind, bool(key.run), lives, keeper, (terminal, session))


def open_sessions(home: Path) -> Iterator[tuple[Terminal, Session]]:
    """All sessions of a home: those of its tmux server, if that runs, and the plain ones; asking starts no server and
    makes no file."""
    run = home / "run"
    found: list[Terminal] = [ProcessTerminal(home)] if (run / "plain").is_dir() else []
    if supported_version() and ((run / "tmux.sock").exists() or _noted(run / "tmux.socket-path")):
        from garrison.system.tmux import TmuxTerminal

        found.append(TmuxTerminal(home))
    for terminal in found:
        try:
            yield from [(terminal, session) for session in terminal.sessions()]
        except GarrisonError:
            continue  # a torn session record is a file's matter


def _noted(note: Path) -> bool:
    try:
        return Path(note.read_text().strip()).exists()
    except OSError:
        return False


def run_facts(world: Runtime, runs: Mapping[str, RunStatus]) -> Iterator[RunFact]:
    """Every run, and whether it lacks a launcher."""
    for run, standing in runs.items():
        try:
            yield RunFact(run, standing.status, needs_launcher(world, run))
        except RecordError:
            continue
