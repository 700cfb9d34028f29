"""All checks in order, and their remedies in that order. Looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import trees_root
from garrison.doctor import files, machine, processes
from garrison.doctor.findings import ERROR, Finding, judge_bearer, judge_file, judge_life, judge_run, judge_session
from garrison.doctor.fixes import apply_fix
from garrison.errors import GarrisonError
from garrison.processes.run_status import RunStatus, run_statuses

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime

PAUSE = 0.5
"""Seconds between two looks at processes that seem left over: one that has just said its end is still going."""

CHECKS = ("leases", "lives", "orphans", "sessions", "files", "signals", "worktrees", "slots", "locks", "runs", "disk",
          "file system", "git", "tmux", "inotify", "user manager", "pidfd")
"""Every check, in the order of the table."""


def examine(world: Runtime, repo: Path | None = None, wait: Callable[[float], None] | None = None) -> list[Finding]:
    """Everything that is to be said of the home and its machine. `wait(seconds)` passes time between two looks."""
    runs = run_statuses(world)
    found = [*_guarded("lives", lambda: _lives(world)),
             *_guarded("orphans", lambda: _orphans(world, runs, wait)),
             *_guarded("sessions", lambda: _sessions(world)),
             *_guarded("files", lambda: map(judge_file, files.file_facts(world))),
             *_guarded("files", lambda: files.open_findings(world)),
             *_guarded("signals", lambda: files.inbox_findings(world, runs)),
             *_guarded("worktrees", lambda: files.tree_findings(world, runs, repo)),
             *_guarded("runs", lambda: filter(None, map(judge_run, processes.run_facts(world, runs)))),
             *_guarded("machine", lambda: _machine(world, runs))]
    return sorted(found, key=lambda one: CHECKS.index(one.check) if one.check in CHECKS else 0)


def apply_fixes(world: Runtime, found: list[Finding]) -> list[Finding]:
    """Do every remedy, in order; the findings with what came of them."""
    return [apply_fix(world, one) for one in found]


def _guarded(check: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds; one that fails is a finding itself, and keeps nobody from the next."""
    try:
        return list(look())
    except GarrisonError as error:
        return [Finding(check, ERROR, f"could not look: {error}")]
    except OSError as error:
        return [Finding(check, ERROR, f"could not look: {error.strerror}: {error.filename}")]


def _lives(world: Runtime) -> Iterator[Finding]:
    return filter(None, map(judge_life, processes.life_facts(world)))


def _orphans(world: Runtime, runs: dict[str, RunStatus], wait: Callable[[float], None] | None) -> Iterator[Finding]:
    first = [one for fact in processes.bearer_facts(world, runs) if (one := judge_bearer(fact))]
    if not first:
        return iter(())
    if wait is not None:
        wait(PAUSE)
    again = {one.about for fact in processes.bearer_facts(world, runs) if (one := judge_bearer(fact))}
    return iter([one for one in first if one.about in again])


def _sessions(world: Runtime) -> Iterator[Finding]:
    return filter(None, map(judge_session, processes.session_facts(world)))


def _machine(world: Runtime, runs: dict[str, RunStatus]) -> Iterator[Finding]:
    trees = {Path(one.launch.trees) for one in runs.values() if one.launch is not None and one.launch.trees}
    return machine.machine_findings(world.home, trees or {trees_root(world.environ)}, world.environ)
