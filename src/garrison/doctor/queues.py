"""Merge queues of a home: what a dead processor, a kill or git's garbage collection left. Changes nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.doctor.findings import Finding, Severity
from garrison.doctor.fixes import RepairQueue
from garrison.errors import GarrisonError
from garrison.merge import recovery
from garrison.merge.queue import MergeQueue, QueueReader, target_of_folder
from garrison.processes.run_branch import target_queue
from garrison.records import run as run_records
from garrison.system.git import open_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.doctor.findings import Scope
    from garrison.processes.runtime import Runtime


def examine_queues(scope: Scope) -> Iterator[Finding]:
    """Find what is wrong with queues whose journal can be read; a damaged one is a finding of `files`."""
    for queue in known_queues(scope.runtime, scope.repo).values():
        with suppress(GarrisonError):  # its journal is damaged, or its repository is gone: other checks say so
            for problem in recovery.find_problems(queue):
                text = f"{queue.target} of {queue.repo}: {problem.what}"
                if problem.repairable:
                    yield Finding("merge queue", Severity.WARNING, text, RepairQueue(queue))
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
