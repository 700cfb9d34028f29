"""Whom a name means: `ROLE NAME [--run RUN]` → one record, and which life speaks.

`choose` decides and is pure. Without a run: the only record of that name; else that of the caller's own run; else the
only living one; else a refusal that lists them. Light: the doors that cron calls load this file.
"""

from __future__ import annotations

import os

from garrison.errors import NotFound, Refused
from garrison.records.names import Key, check_name, check_role, check_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    from garrison.records.hook import Hook
    from garrison.records.identity import Identity
    from garrison.records.store import Store
    from garrison.supervise.observe import Observer

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
    from garrison.supervise.observe import Observer
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
    from garrison.records.store import Store
    from garrison.settings import find_home

    return Store(find_home(home))


def own_life(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """(run, role-name) of the life this process belongs to, ('', '') if to none."""
    _, run, stem = _life(os.environ if environ is None else environ)
    return run, stem


def latest_attempt(home: Path, run: str, node: str) -> int:
    """The number of a node's latest attempt that was given a folder, 0 if there is none."""
    from garrison.records.run import RunFiles

    return RunFiles(home, run).latest_attempt(node)
