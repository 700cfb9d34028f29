"""Tidying of a host's home: the runs of claims that nobody has used for a week, with all that they left.

Home fetched what they made long ago. `garrison clean` removes each, in a process of its own: it never touches one that
lives. What a claim has beside its run is removed here: the job it began from, and its refs in the clone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.dispatch.job import HOST_RUNS, MAX_JOB, Job, base_ref, decode, left_ref, result_ref
from garrison.dispatch.records import AttemptId
from garrison.errors import GarrisonError
from garrison.processes.remote.begin import locked_clone
from garrison.processes.remote.host_run import STARTED_AT, HostRun, begin_folder
from garrison.processes.remote.work import JOB
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.run import load_launch
from garrison.system.git.rescues import ARCHIVE, RESCUES
from garrison.system.newest_entry import newest_entry

if TYPE_CHECKING:
    from pathlib import Path

KEPT_SECONDS = 7 * 86400.0
"""Seconds for which a run is kept after its last change."""
_CLEAN_SECONDS = 600.0


def tidy(home: Path, now: float) -> list[str]:
    """Remove the runs of claims that are older than KEPT_SECONDS at the time `now` (seconds since 1970); return their
    names. One that cannot be removed stays until the next look."""
    runtime = Runtime.real(home)
    return [run for run in find_old(home, now) if _remove(runtime, run)]


def find_old(home: Path, now: float) -> list[str]:
    """Return the runs of claims of which nothing was written for KEPT_SECONDS, by name."""
    names = {name for folder in (home / "runs", home / "claims") for name in atomic.list_names(folder)
             if name.startswith(HOST_RUNS)}
    return sorted(name for name in names if now - _used_at(home, name) > KEPT_SECONDS)


def _used_at(home: Path, run: str) -> float:
    """Return when something of a run was written last; its folders count, too: one that was just made is empty."""
    times = []
    for folder in (home / "runs" / run, begin_folder(home, run)):
        with suppress(FileNotFoundError):
            times.append(folder.stat().st_mtime)
        if (newest := newest_entry(folder)) is not None:
            times.append(newest[0] / 1e9)
    return max(times, default=0.0)


def _remove(runtime: Runtime, run: str) -> bool:
    refs = _refs(runtime, run)
    if runtime.files(run).root.exists():
        argv = [sys.executable, "-P", "-m", "garrison.cli.main", "clean", "--home", str(runtime.home), "--run", run,
                "--force", "--yes"]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, cwd=runtime.home, check=False,
                                  timeout=_CLEAN_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return False
        if done.returncode:
            return False
    if refs is not None:
        host_run, names = refs
        try:
            with locked_clone(host_run.clone):
                git = host_run.git
                names += [name for kind in (ARCHIVE, RESCUES) for name in git.refs(f"{kind}/{run}/")]
                git.delete_refs([name for name in names if git.rev(name)])
        except (GarrisonError, OSError):
            return False
    shutil.rmtree(begin_folder(runtime.home, run), ignore_errors=True)
    return True


def _refs(runtime: Runtime, run: str) -> tuple[HostRun, list[str]] | None:
    """Return the run, and the names of its refs in its clone; None if it has no clone, or cannot be read."""
    try:
        job = decode(Job, (begin_folder(runtime.home, run) / JOB).read_text(), MAX_JOB)
        launch = load_launch(runtime.files(run))
        id_ = AttemptId.parse(launch.claimed_attempt) if launch is not None else None
    except (GarrisonError, OSError, UnicodeDecodeError):
        return None
    if job is None or id_ is None:
        return None
    found = HostRun(runtime, job, id_)
    names = [base_ref(id_), result_ref(id_), left_ref(id_), f"refs/heads/{STARTED_AT}/{run}"]
    return (found, names) if found.clone.is_dir() else None
