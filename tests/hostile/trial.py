"""Try the cases in one confinement: many in one run, a new one only after a case that ruined it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hostile.cases import Case
from hostile.world import CHECKOUT, HERE, Confinement, World, describe_change

FIRST_EDITION = HERE.parents[1] != CHECKOUT
"""The attacked garrison is an older one, which knows no sandbox."""


@dataclass(frozen=True)
class Attempt:
    """How one case went."""

    case: Case
    succeeded: bool | None
    """None: there was nothing to attack."""
    output: str = ""
    note: str = ""
    """Other changes that it made."""


def expectation(case: Case, confinement: Confinement) -> bool:
    """Return whether a case is known to succeed in a confinement."""
    if confinement is Confinement.NONE:
        return FIRST_EDITION or not case.refused_by
    return confinement.is_landlock and bool(case.landlock_gap)


def objections(attempts: Sequence[Attempt], confinement: Confinement) -> list[str]:
    """Return a line for each case that went otherwise than it should."""
    def objection(one: Attempt) -> str:
        if one.succeeded is not None and one.succeeded != expectation(one.case, confinement):
            return f"{'succeeded' if one.succeeded else 'did not succeed'}: {one.output[-400:]!r}"
        return one.note

    return [f"{one.case.name}: {why}" for one in attempts if (why := objection(one))]


def attempt(world: World, case: Case) -> Attempt:
    """Try one case."""
    if case.needs and not case.needs(world):
        return Attempt(case, None)
    world.write_object()
    before = case.watch(world) if case.watch else None
    output = world.attack(case.script)
    succeeded = case.watch(world) != before if case.watch else (case.says or world.secret) in output
    if case.undo:
        subprocess.run(case.undo, shell=True, cwd=world.repo, check=True)
    return Attempt(case, succeeded, output)


@contextmanager
def world_of(confinement: Confinement, **options: str) -> Iterator[World]:
    """Yield a new world without a run."""
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        root.chmod(0o755)
        world = World(root, confinement, **options)
        try:
            yield world
        finally:
            world.close()


@contextmanager
def opened(confinement: Confinement, **options: str) -> Iterator[World]:
    """Yield a world in which both agents are at work."""
    with world_of(confinement, **options) as world:
        world.open_orders()
        yield world


def run(confinement: Confinement, cases: Sequence[Case]) -> Iterator[Attempt]:
    """Try the cases one after the other, and compare at the end of each world what none of them may change."""
    rest = list(cases)
    while rest:
        with opened(confinement) as world:
            untouched = world.untouched() if confinement is not Confinement.NONE else {}
            spoilt = False
            done = None
            while rest and not spoilt:
                if done is not None:
                    yield done
                case = rest.pop(0)
                done = attempt(world, case)
                spoilt = (bool(done.succeeded) and case.ruins) or not world.is_at_work
            yield Attempt(done.case, done.succeeded, done.output, _changes(world, untouched, done, spoilt))


def _changes(world: World, untouched: dict[str, object], last: Attempt, spoilt: bool) -> str:
    """Return what changed that no agent may change, though no case was seen to succeed."""
    if not untouched or last.succeeded or world.confinement.is_landlock:
        return ""
    if spoilt:
        return f"something of the run died of it:\n{world.logs()}"
    now = world.untouched()
    return "; ".join(f"{name} changed: {describe_change(untouched[name], now[name])}" for name in now
                     if now[name] != untouched[name])
