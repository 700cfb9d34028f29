"""Files of a home: records, journals, merge queues, temporary files, permissions, inboxes. Changes nothing."""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.config_check import check_config, check_tables
from garrison.config import read_config
from garrison.doctor.findings import RESTORE, ExaminedState, FileState, Finding, Severity, judge_file
from garrison.doctor.fixes import (
    close_home,
    rebuild_queue,
    refuse_signals,
    remove_write_permission,
    repair_queue,
    repair_records,
)
from garrison.errors import GarrisonError, NewerSchema, RecordCorrupt, RecordError, UsageError
from garrison.merge import recovery
from garrison.merge.queue import MergeQueue, QueueReader, target_of_folder
from garrison.node.places import network_notes
from garrison.processes.temp_files import RECORD_FOLDERS, find_abandoned
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.life_lock import is_held
from garrison.records.names import Key
from garrison.records.run import Task
from garrison.run.branch import target_queue
from garrison.system.git import open_repository
from garrison.system.terminal import ProcessTerminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from garrison.doctor.fixes import Fix
    from garrison.processes.runtime import Runtime
    from garrison.records.run import RunFiles

_LONGEST_LAUNCH = 60.0
"""Maximum seconds of a launch from claiming an id to its first record."""


def examine_files(scope: ExaminedState) -> Iterator[Finding]:
    """Find files that are unusable, left over from killed writers, or writable by any user."""
    runtime = scope.runtime
    yield from _examine_records(runtime, "identities", partial(runtime.store.read, Identity))
    yield from _examine_records(runtime, "hooks", partial(runtime.store.read, Hook))
    names = sorted(name for name in atomic.list_names(runtime.home / "runs") if not name.startswith("."))
    launched = frozenset(run_records.list_runs(runtime.home))  # after the names, since launches continue
    for run in names:
        yield from _examine_run(runtime, run, is_launched=run in launched)
    queues = known_queues(runtime, scope.repo)
    for path in sorted((runtime.home / "merge-queue").glob("*/*/journal.jsonl")):
        fix = rebuild_queue(queues[path]) if path in queues else None
        yield from _try_reading(path, partial(read_all, path), movable=False, fix=fix,
                                advice="`garrison doctor --fix --repo DIR` rebuilds it; DIR is its repository")
    for path in sorted((runtime.home / "run" / "plain").glob("[!.]*.json")):
        yield from _try_reading(path, partial(ProcessTerminal(runtime.home).check, path.stem))
    for path in find_abandoned(runtime.home):
        state = FileState.HALF_REMOVED if path.is_dir() else FileState.HALF_WRITTEN
        yield judge_file(path, state, f"{state} by a process that is gone")
    yield from _find_open_to_others(runtime)


def _examine_records(runtime: Runtime, folder_name: str, read: Callable[[Key], object]) -> Iterator[Finding]:
    folder, launched = runtime.home / folder_name, frozenset(run_records.list_runs(runtime.home))
    try:
        names = sorted(atomic.list_names(folder))
    except RecordError as error:
        yield judge_file(folder, FileState.UNREADABLE, str(error))
        return
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            key = Key.parse(name.removesuffix(".json"))
        except UsageError:
            yield judge_file(folder / name, FileState.FOREIGN, "not the name of a record; ignored")
            continue
        fix = repair_records(key.run) if key.run in launched else None  # nothing can be rebuilt for a removed run
        yield from _try_reading(folder / name, partial(read, key), held=is_held(runtime.store.life_path(key)), fix=fix)


def _examine_run(runtime: Runtime, run: str, *, is_launched: bool) -> Iterator[Finding]:
    files = runtime.files(run)
    if not files.root.is_dir():
        yield judge_file(files.root, FileState.FOREIGN, "not a folder of a run")
        return
    if not is_launched:
        if files.root.stat().st_mtime < runtime.clock.time() - _LONGEST_LAUNCH:
            yield judge_file(files.root, FileState.HALF_REMOVED, "a launch was killed before its run began")
        return
    repair = repair_records(run)
    yield from _try_reading(files.launch, partial(runtime.launch, run), movable=False, fix=repair)
    yield from _try_reading(files.journal, partial(_read_journal, files), movable=False, fix=repair)
    for path in sorted(files.root.glob("nodes/*/*/task.json")):
        yield from _try_reading(path, partial(run_records.load, Task, path), fix=repair)
    for path in sorted((files.root / "layers").glob("*.jsonl")):
        if re.search(r"-\d+\Z", path.stem):
            # an archived part of a compacted journal (or of a process with such a name, which is not examined)
            continue
        try:
            held = is_held(runtime.store.life_path(Key.parse(f"{path.stem}@{run}")))
        except UsageError:
            # no process can have this name: its owner is unknown, so it is not moved
            held = True
        yield from _try_reading(path, partial(read_all, path), held=held, fix=repair)


def _read_journal(files: RunFiles) -> None:
    """Read a run's journal; RecordCorrupt if it is empty although nodes have started."""
    if not read_all(files.journal) and any(files.root.glob("nodes/*/*/task.json")) and files.graph.exists():
        raise RecordCorrupt(files.journal, "it is empty or gone, but the run has started")


def _try_reading(path: Path, read: Callable[[], object], *, held: bool = False, movable: bool = True,
                 advice: str = RESTORE, fix: Fix | None = None) -> Iterator[Finding]:
    """Yield the problem of a file by reading it."""
    try:
        read()
    except RecordCorrupt as error:
        yield judge_file(Path(error.path), FileState.TORN, error.why, held=held, movable=movable, advice=advice,
                         fix=fix)
    except NewerSchema as error:
        yield judge_file(path, FileState.NEWER, str(error), held=held)
    except RecordError as error:
        yield judge_file(path, FileState.UNREADABLE, str(error), held=held)
    except (ValueError, KeyError, TypeError) as error:
        yield judge_file(path, FileState.TORN, f"not as expected ({error})", held=held, movable=movable,
                         advice=advice, fix=fix)


def _find_open_to_others(runtime: Runtime) -> Iterator[Finding]:
    """Yield files that any user of the machine may write, and so use to control garrison's processes.

    A home that others may enter is reported as well: it contains prompts, logs and diffs.
    """
    if runtime.home.exists() and runtime.home.stat().st_mode & 0o077:
        yield Finding("files", Severity.WARNING, f"{runtime.home} is open to other users", close_home(runtime.home))
    for path in (runtime.home / name for name in (*RECORD_FOLDERS, "config.toml")):
        if path.exists() and path.stat().st_mode & stat.S_IWOTH:
            yield Finding("files", Severity.WARNING, f"{path} can be written by every user",
                          remove_write_permission(path))


# ---- merge queues ----------------------------------------------------------------------------------------------------


def examine_queues(scope: ExaminedState) -> Iterator[Finding]:
    """Find problems of queues with a readable journal; a damaged one is a finding of `files`."""
    for queue in known_queues(scope.runtime, scope.repo).values():
        with suppress(GarrisonError):  # its journal is damaged, or its repository is gone: reported by other checks
            for problem in recovery.find_problems(queue):
                text = f"{queue.target} of {queue.repo}: {problem.what}"
                if problem.repaired:
                    yield Finding("merge queue", Severity.WARNING, text, repair_queue(queue))
                else:
                    yield Finding("merge queue", Severity.WARNING, text, advice="see the finding")


def known_queues(runtime: Runtime, repo: Path | None) -> dict[Path, MergeQueue]:
    """Return journal → queue of each run, of each journal that names its repository, and of `repo`.

    With `repo`, only those of that repository.
    """
    queues: dict[Path, MergeQueue] = {}
    for run in run_records.list_runs(runtime.home):
        with suppress(GarrisonError):
            queue = target_queue(runtime, runtime.launch(run), "doctor")
            queues[queue.path] = queue
    key = None
    if repo is not None:
        git = open_repository(repo, runtime.home)
        key = git.key
    for path in sorted((runtime.home / "merge-queue").glob(f"{key or '*'}/*/journal.jsonl")):
        with suppress(GarrisonError):
            place = repo or _repository_of(path)
            if path not in queues and place is not None and place.is_dir():
                queue = MergeQueue(runtime.home, place, target_of_folder(path.parent), clock=runtime.clock,
                                   token="doctor", git=open_repository(place, runtime.home))
                if queue.path == path:
                    queues[path] = queue
    return {path: queue for path, queue in queues.items() if key is None or queue.git.key == key}


def _repository_of(journal: Path) -> Path | None:
    entries = QueueReader(journal.parent).refresh().entries.values()
    return next((Path(entry.repo) for entry in entries if entry.repo), None)


# ---- configuration and inboxes ---------------------------------------------------------------------------------------


def examine_config(scope: ExaminedState) -> Iterator[Finding]:
    """Find settings in config.toml that a launch would refuse, and unused ones."""
    home = scope.runtime.home
    try:
        problems = check_config(home)
        check_tables(read_config(home))
        registry.profiles(home)
    except UsageError as error:
        yield Finding("config", Severity.ERROR, str(error))
        return
    for problem in problems:
        yield Finding("config", Severity.ERROR if problem.is_error else Severity.WARNING, problem.text)
    if (home / "claude" / ".credentials.json").exists():
        for note in network_notes(scope.runtime, [name for name in registry.profiles(home)
                                                  if registry.model_profile(name, home).own_log_in]):
            yield Finding("config", Severity.NOTE, note)


def examine_inboxes(scope: ExaminedState) -> Iterator[Finding]:
    """Find signals for processes of ended or removed runs."""
    runtime, folder = scope.runtime, scope.runtime.home / "signals"
    recorded_runs = {key.run for key in runtime.store.keys(Identity)}
    for inbox in sorted(atomic.list_names(folder)):
        try:
            key = Key.parse(inbox)
        except UsageError:
            yield Finding("signals", Severity.NOTE, f"{folder / inbox} is not an inbox; ignored")
            continue
        status = scope.runs.get(key.run)
        is_gone = status is None and key.run != "" and key.run not in recorded_runs  # without a run: created by hand
        waiting = [folder / inbox / name for name in sorted(atomic.list_names(folder / inbox))
                   if name.endswith(".json") and not name.startswith(".")]
        if waiting and (is_gone or (status is not None and status.over)):
            count = "1 signal waits" if len(waiting) == 1 else f"{len(waiting)} signals wait"
            yield Finding("signals", Severity.WARNING,
                          f"{count} for {key.full}, whose run is {'gone' if is_gone else 'over'}",
                          refuse_signals(tuple(waiting)))
