"""Gathering what lies on disk: records, journals, signals, trees, slots, locks. Changes nothing."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.doctor.findings import NOTE, WARNING, FileFact, Finding
from garrison.errors import GarrisonError, NewerSchema, RecordCorrupt, RecordError, UsageError
from garrison.merge.slots import is_job_alive
from garrison.processes.temp_files import RECORD_FOLDERS, find_abandoned
from garrison.processes.worktree import find_worktrees, orphan_has_work, run_repository
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.life_lock import is_held
from garrison.records.names import Key
from garrison.records.run import Launch
from garrison.system.git import Git
from garrison.system.process_terminal import ProcessTerminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from garrison.processes.run_status import RunStatus
    from garrison.processes.runtime import Runtime

LOCK_AGE = 60.0
"""Seconds after which a lock file of git is nobody's who is still at it."""


def file_facts(world: Runtime) -> Iterator[FileFact]:
    """Every record, journal and temporary of the home that cannot be used or is left half."""
    for kind in (Identity, Hook):
        folder = world.home / ("identities" if kind is Identity else "hooks")
        try:
            names = sorted(atomic.list_names(folder))
        except RecordError as error:
            yield FileFact(str(folder), "unreadable", str(error))
            continue
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                yield from _record(world, kind, folder / name)
    for run in sorted(name for name in atomic.list_names(world.home / "runs") if not name.startswith(".")):
        yield from _run(world, run)
    for path in sorted((world.home / "merge-queue").glob("*/*/journal.jsonl")):
        for fact in _journal(path, held=True, movable=False):
            yield replace(fact, advice="`garrison merge-queue doctor` in its repository rebuilds it")
    for path in sorted((world.home / "run" / "plain").glob("[!.]*.json")):
        yield from _tried(path, partial(ProcessTerminal(world.home).find, path.stem))
    for path in find_abandoned(world.home):
        what, done = ("removal", "removed") if path.is_dir() else ("half", "written")
        yield FileFact(str(path), what, f"half {done} by a process that is gone")


def _record(world: Runtime, kind: type[Identity] | type[Hook], path: Path) -> Iterator[FileFact]:
    try:
        key = Key.parse(path.name.removesuffix(".json"))
    except UsageError:
        yield FileFact(str(path), "foreign", "no name of a record; passed over")
        return
    read = partial(world.store.read, Identity, key) if kind is Identity else partial(world.store.read, Hook, key)
    yield from _tried(path, read, held=is_held(world.store.life_path(key)))


def _tried(path: Path, read: object, *, held: bool = False, movable: bool = True) -> Iterator[FileFact]:
    assert callable(read)
    try:
        read()
    except RecordCorrupt as error:
        yield FileFact(error.path, "torn", error.why, held, movable)
    except NewerSchema as error:
        yield FileFact(str(path), "newer", str(error), held)
    except RecordError as error:
        yield FileFact(str(path), "unreadable", str(error), held)
    except (ValueError, KeyError, TypeError) as error:
        yield FileFact(str(path), "torn", f"not as it should be ({error})", held, movable)


def _run(world: Runtime, run: str) -> Iterator[FileFact]:
    files = world.files(run)
    if not files.root.is_dir():
        yield FileFact(str(files.root), "foreign", "no folder of a run")
        return
    yield from _tried(files.launch, lambda: run_records.load(Launch, files.launch), movable=False)
    yield from _journal(files.journal, held=_any_held(world, run, "guardian-"), movable=False)
    for path in sorted((files.root / "layers").glob("*.jsonl")):
        if re.search(r"-\d+\Z", path.stem):
            continue  # an old part of a compacted one; or a layer's whose name ends so, which is not moved then
        try:
            held = is_held(world.store.life_path(Key.parse(f"{path.stem}@{run}")))
        except UsageError:
            held = True
        yield from _journal(path, held=held, movable=True)


def _any_held(world: Runtime, run: str, beginning: str) -> bool:
    return any(is_held(path) for path in (world.home / "identities").glob(f"{beginning}*@{run}.life"))


def _journal(path: Path, *, held: bool, movable: bool) -> Iterator[FileFact]:
    yield from _tried(path, lambda: read_all(path), held=held and movable, movable=movable)


def open_findings(world: Runtime) -> Iterator[Finding]:
    """What anybody on the machine may write: whoever can write there tells the layers what to do."""
    for path in (world.home, *(world.home / name for name in (*RECORD_FOLDERS, "config.toml"))):
        if path.exists() and path.stat().st_mode & stat.S_IWOTH:
            yield Finding("files", WARNING, f"{path} may be written by everybody", "close_off", about=str(path))


def inbox_findings(world: Runtime, runs: Mapping[str, RunStatus]) -> Iterator[Finding]:
    """Signals that wait for layers of runs that are over, or of which nothing else is there."""
    recorded = {key.run for key in world.store.keys(Identity)}
    for name in sorted(atomic.list_names(world.home / "signals")):
        try:
            key = Key.parse(name)
        except UsageError:
            yield Finding("signals", NOTE, f"{world.home / 'signals' / name} is no inbox; passed over")
            continue
        standing = runs.get(key.run)
        waiting = [one for one in atomic.list_names(world.home / "signals" / name)
                   if one.endswith(".json") and not one.startswith(".")]
        gone = standing is None and key.run != "" and key.run not in recorded  # without a run: made by hand
        if waiting and (gone or (standing is not None and standing.over)):
            many = "1 signal waits" if len(waiting) == 1 else f"{len(waiting)} signals wait"
            said = f"{many} for {key.full}, whose run is {'gone' if gone else 'over'}"
            yield Finding("signals", WARNING, said, "refuse",
                          about=[world.home / "signals" / name / one for one in sorted(waiting)])


def tree_findings(world: Runtime, runs: Mapping[str, RunStatus], repo: Path | None) -> Iterator[Finding]:
    """Trees of runs that are over, stale locks in trees where nobody lives, slots that nobody uses."""
    gone: set[str] = set()
    folders: dict[Path, Git] = {}
    wanted = None if repo is None else Git(repo).common
    for standing in runs.values():
        launch = standing.launch
        if launch is None:
            continue
        try:
            git = run_repository(launch)
        except GarrisonError as error:
            if launch.repo not in gone and wanted is None:
                gone.add(launch.repo)
                yield Finding("worktrees", NOTE if standing.over else WARNING,
                              f"the repository of run {standing.run} cannot be used: {error}",
                              advice="put it back; if it was moved: `garrison rescue list --repo DIR`")
            continue
        if wanted is not None and git.common != wanted:
            continue
        folders.setdefault(Path(launch.trees) / git.key, git)
        yield from _trees(world, git, standing, launch)
    for folder, git in folders.items():
        yield from _slots(folder, git, runs)
        yield from _registered(folder, git)


def _trees(world: Runtime, git: Git, standing: RunStatus, launch: Launch) -> Iterator[Finding]:
    for left in find_worktrees(git, launch):
        if standing.over:
            work = "with work that no ref has" if _tried_work(git, left) else "with nothing that is not kept"
            yield Finding("worktrees", WARNING, f"{left.path} is left of run {standing.run}, {work}", "give_back",
                          about=(git, left))
        elif left.what == "tree" and not _somebody(standing, left.node):
            own = git.git_dir(left.path)
            old = [name for name in ("index.lock", "HEAD.lock") if _is_old(own / name, world.clock.time())]
            if old and own != git.common:
                yield Finding("locks", WARNING, f"{', '.join(old)} of {left.path}, where nobody works", "unlock",
                              about=(git, left, [own / name for name in old]))


def _tried_work(git: Git, left: object) -> bool:
    try:
        return orphan_has_work(git, left)  # type: ignore[arg-type]
    except (GarrisonError, OSError):
        return True


def _somebody(standing: RunStatus, node: str) -> bool:
    return any(full.partition("@")[0] in (f"runner-{node}", f"orchestrator-{node}") for full in standing.living)


def _is_old(path: Path, now: float) -> bool:
    try:
        return now - path.stat().st_mtime > LOCK_AGE
    except OSError:
        return False


def _slots(folder: Path, git: Git, runs: Mapping[str, RunStatus]) -> Iterator[Finding]:
    busy = any(not one.over for one in runs.values() if one.launch is not None
               and Path(one.launch.trees) / git.key == folder)
    if busy or any(is_held(path) for path in (git.common / "garrison").glob("*/processor.lock")):
        return
    left = [path for path in sorted(folder.glob("slot-*.lock")) if not is_held(path)
            and not is_job_alive(_job(path.with_suffix(".json")))]
    if left:
        yield Finding("slots", WARNING, f"{len(left)} gate slots in {folder}, and no run that needs one", "clear_slots",
                      about=(git, folder))


def _job(memory: Path) -> str:
    import json

    try:
        return str(json.loads(memory.read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _registered(folder: Path, git: Git) -> Iterator[Finding]:
    """Worktrees in our folder that git still lists though their directory is gone."""
    real = folder.resolve()
    for tree in git.worktrees():
        if tree.path.is_relative_to(real) and not tree.path.exists():
            yield Finding("worktrees", WARNING, f"{tree.path} is registered in {git.root}, but gone", "unregister",
                          about=(git, tree.path))
