"""Resolve a name on the command line to a run, a node, a record or an incarnation.

`choose` decides and is pure. Without `--run`: the only record of that name; else that of the caller's own run; else the
only living one; else a refusal that lists the candidates. An unknown name is answered with the closest existing one.
Reads names and journals only, because shell completion and cron call it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from garrison.errors import GarrisonError, NotFound, Refused
from garrison.records import atomic
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.names import Key, check_name, check_node, check_role, check_run
from garrison.records.run import RunFiles, runs
from garrison.records.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from garrison.records.hook import Hook
    from garrison.supervise.observer import Observer

    R = TypeVar("R", Identity, Hook)


def choose(candidates: Sequence[Key], own_run: str, living: Callable[[Key], bool], missing: str) -> Key:
    """The one of `candidates` (same role and name, several runs) that is meant; `living` is asked only if need be.

    NotFound with the line `missing` if there is none; Refused with the list if several could be meant.
    """
    if not candidates:
        raise NotFound(missing)
    if len(candidates) == 1:
        return candidates[0]
    mine = [key for key in candidates if own_run and key.run == own_run]
    if mine:
        return mine[0]
    alive = [key for key in candidates if living(key)]
    if len(alive) == 1:
        return alive[0]
    names = ", ".join(f"{key.full}{' (alive)' if key in alive else ''}" for key in candidates)
    raise Refused(f"{candidates[0].role} {candidates[0].name} is in several runs, say which with --run: {names}")


def observer_of(store: Store) -> Observer:
    """What judges the identities of a home; imported late, since most door calls judge nobody."""
    from garrison.supervise.observer import Observer
    from garrison.system.clock import SystemClock
    from garrison.system.processes import RealProcesses

    return Observer(store, RealProcesses(), SystemClock())


def own_run(environ: Mapping[str, str] | None = None) -> str:
    """The run this process belongs to, '' if to none."""
    environ = os.environ if environ is None else environ
    return environ.get("GARRISON_RUN") or _life(environ)[1]


def own_incarnation(store: Store, key: Key, given: int | None, environ: Mapping[str, str] | None = None) -> int | None:
    """The life a write by hand speaks for: `given`, else the environment's if that is a life of `key`, else None.

    None means the living one. GARRISON_INCARNATION without GARRISON_LIFE is about whatever is written.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("GARRISON_INCARNATION", "")
    if given is not None or not text.isascii() or not text.isdigit():
        return given
    home, run, stem = _life(environ)
    if stem and (run, stem) != (key.run, Key(key.role, key.name).full):
        return None
    if home and os.path.realpath(home) != os.path.realpath(store.home):
        return None
    return int(text)


def _life(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """(home, run, role-name) of this process's life marker, empty where there is none."""
    if not (text := environ.get("GARRISON_LIFE", "")):
        return "", "", ""
    from garrison.supervise.lease import read_marker

    home, run, stem, _ = read_marker(text) or ("", "", "", 0)
    return home, run, stem


def find(store: Store, kind: type[R], role: str, name: str, run: str | None) -> Key:
    """The key of an existing record; NotFound or Refused as `choose` says."""
    check_role(role)
    check_name(name)
    what = kind.__name__.lower()
    if run is not None:
        key = Key(role, name, check_run(run) if run else "")
        if not os.path.exists(store.path(kind, key)):  # noqa: PTH110  # light
            raise NotFound(f"no {what} {key.full} in {store.home}; {_hint(store, kind, role, name)}")
        return key
    candidates = [key for key in store.keys(kind) if (key.role, key.name) == (role, name)]
    return choose(candidates, own_run(), lambda key: is_living(store, key),
                  f"no {what} of {role} {name} in {store.home}; {_hint(store, kind, role, name)}")


def is_living(store: Store, key: Key) -> bool:
    """Whether a life of that name is there; a record that cannot be read claims none."""
    from garrison.errors import RecordError
    from garrison.records.identity import Identity

    try:
        identity = store.read(Identity, key)
    except RecordError:
        return False
    return identity is not None and observer_of(store).judge(identity).living


def _hint(store: Store, kind: type[R], role: str, name: str) -> str:
    """What would help somebody who asked for a record that is not there."""
    others = [key.full for key in store.keys(kind) if key.name == name or key.role == role][:5]
    return f"there is {', '.join(others)}" if others else "`create` makes one, `list` shows what there is"


def run_for_new(store: Store, run: str | None) -> str:
    """The run of a record that is being made: the one given, else the caller's own, else none."""
    chosen = own_run() if run is None else run
    return check_run(chosen) if chosen else ""


def home_store(home: str | os.PathLike[str] | Path | None) -> Store:
    """The store of the home that is meant."""
    from garrison.config import find_home
    from garrison.records.store import Store

    return Store(find_home(home))


def own_life(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """(run, role-name) of the life this process belongs to, ('', '') if to none."""
    _, run, stem = _life(os.environ if environ is None else environ)
    return run, stem


def latest_attempt(home: Path, run: str, node: str) -> int:
    """The number of a node's latest attempt that was given a folder, 0 if there is none."""
    from garrison.records.run import RunFiles

    return RunFiles(home, run).latest_attempt(node)


def known_run(home: Path, run: str) -> str:
    """`run`, if the home has it; NotFound, with the nearest."""
    have = runs(home)
    if check_run(run) not in have:
        raise NotFound(f"no run {run} in {home}; {nearest(run, have)}`garrison status` lists the runs")
    return run


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean x? ` for a name that is like one of `known`, else ''. Pure."""
    import difflib

    folded = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[found[0]]}? " if found else ""


def nodes_of(home: Path, run: str) -> list[str]:
    """The nodes of a run: those its guardian's journal names, those that run a pipeline, and those with a folder."""
    files = RunFiles(home, run)
    names: dict[str, None] = {}
    try:
        for entry in read_all(files.journal):
            named = [*entry.data.get("nodes", {}), *entry.data.get("outcomes", {})] if entry.kind == "snapshot" else (
                [entry.data["node"]] if entry.kind in ("node", "gate") else [])
            names |= dict.fromkeys(named)
    except (GarrisonError, KeyError):
        pass  # an unreadable journal is told by `status`; the folders are names enough here
    names |= dict.fromkeys(name.removesuffix(".dot") for name in sorted(atomic.names(files.graphs)))
    names |= dict.fromkeys(sorted(atomic.names(files.root / "nodes")))
    return list(names)


def run_of_node(store: Store, node: str, run: str | None) -> str:
    """The run in which a node is meant: the one given, else the only one that has it, else the one in which somebody
    works on it, else (it is parked, or its turn has not come) the one that is under way.

    NotFound, with the nearest name, if no run has it; Refused with the list if several could be meant.
    """
    check_node(node)
    asked = [known_run(store.home, run)] if run is not None else runs(store.home)
    having = {one: nodes_of(store.home, one) for one in asked}
    candidates = [Key("runner", node, one) for one, nodes in having.items() if node in nodes]
    known = dict.fromkeys(name for nodes in having.values() for name in nodes)
    where = f"run {run} has no node {node}" if run else f"no run in {store.home} has a node {node}"
    worked_on = [key for key in candidates if someone_works_on(store, key)] if len(candidates) > 1 else []
    return choose(candidates, own_run(),
                          lambda key: key in worked_on if worked_on else run_lives(store, key.run),
                          f"{where}; {nearest(node, known)}`garrison status{f' {run}' if run else ''}` shows "
                          f"{'its nodes' if run else 'the runs'}").run


def someone_works_on(store: Store, key: Key) -> bool:
    """Whether somebody works on a node: its runner or its agent."""
    return is_living(store, key) or is_living(store, Key("orchestrator", key.name, key.run))


def run_lives(store: Store, run: str) -> bool:
    """Whether anybody is there who could go on with a run."""
    return any(key.run == run and key.role in ("launch", "guardian") and is_living(store, key)
               for key in store.keys(Identity))


def run_with_guardian(store: Store, run: str | None) -> str:
    """The run that is meant: the one given, else the only one whose guardian lives, else the only one.

    NotFound if there is none; Refused with the list if several could be meant.
    """
    if run is not None:
        return known_run(store.home, run)
    guardians = [key for key in store.keys(Identity) if key.role == "guardian"]
    living = sorted({key.run for key in guardians if is_living(store, key)})
    found = living or runs(store.home)
    if not found:
        raise NotFound(f"no run in {store.home}; `garrison status` lists the runs")
    if len(found) > 1:
        raise Refused(f"several runs could be meant: {', '.join(found)}; say which with --run")
    return found[0]
