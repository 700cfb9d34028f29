"""Begin the run of a claim: wait for the commit that it begins at, make the run, and become its launcher.

`python -P -m garrison.processes.remote.begin --home HOME --run RUN --attempt RUN/NODE/NUMBER`, started by the host's
service (`work.py`). A refusal is left in `refusal` beside the job.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.dispatch.job import MAX_JOB, Job, decode
from garrison.dispatch.records import AttemptId
from garrison.errors import GarrisonError
from garrison.processes.launch import create_run, exec_launcher
from garrison.processes.launch_request import LaunchRequest
from garrison.processes.loop import log_line
from garrison.processes.preflight import prepare_launch
from garrison.processes.remote.host_run import REFUSAL, STARTED_AT, HostRun, begin_folder, graph_of
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.run import LAND_NONE
from garrison.system.git import Git
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

AUTHOR = ("user.name", "user.email")
"""Settings of git that come with a job."""
BASE_SECONDS = 600.0
"""Longest wait for the commit to begin at: home brings it once it knows of the claim."""
_PAUSE = 0.1


def begin(runtime: Runtime, run: HostRun) -> None:
    """Become the launcher of the run; GarrisonError if it cannot begin."""
    prepare_clone(run.clone, runtime.home)
    commit = wait_for_base(run)
    job, git = run.job, run.git
    branch = f"{STARTED_AT}/{run.name}"
    git.update_ref(f"refs/heads/{branch}", commit)
    with locked_clone(run.clone):
        configure(git, {key: job.author[key] for key in AUTHOR if job.author.get(key)})
        if git.rev("HEAD") is None:
            git.run("symbolic-ref", "HEAD", f"refs/heads/{branch}")
    request = LaunchRequest(
        Path(job.node), run.clone, run=run.name, pipeline_id=job.node, base=branch, no_gate=True, land=LAND_NONE,
        setup_key=list(job.lock_files), env=[name for name in job.env if name in runtime.environ], max_agents=1,
        max_respawn=job.max_respawn, max_rework=0, new=True,
        trust_git_config=True, text=graph_of(job))
    prepared = prepare_launch(runtime, request, log_line)
    created = create_run(runtime, replace(prepared, launch=replace(
        prepared.launch, claimed_for=f"{run.id} of {job.home}", claim=str(run.id))), log_line)
    exec_launcher(runtime, created, ["--quiet"])


def prepare_clone(path: Path, home: Path) -> None:
    """Make the clone of a repository, empty, unless it exists."""
    atomic.make_directory(path)
    with locked_clone(path):
        if not (path / ".git" / "HEAD").exists():
            Git(home, home=None).run("init", "--quiet", "--initial-branch=none", str(path))
        configure(Git(path, home=home), {"receive.denyCurrentBranch": "refuse"})


@contextmanager
def locked_clone(path: Path) -> Iterator[None]:
    """Hold the lock under which the runs of a clone change its configuration: git itself waits for nobody."""
    with atomic.locked(path.with_name(f"{path.name}.lock")):
        yield


def configure(git: Git, values: Mapping[str, str]) -> None:
    """Set what is not set so yet; under `locked_clone`, so a lock of git's that is left is that of a killed one."""
    for key, value in values.items():
        if git.run("config", "--get", key, check=False).out.strip() != value:
            (git.common / "config.lock").unlink(missing_ok=True)
            git.run("config", key, value)


def wait_for_base(run: HostRun) -> str:
    """Return the commit to begin at, once home has brought it."""
    end = time.monotonic() + BASE_SECONDS
    while (commit := run.base) is None:
        if time.monotonic() > end:
            raise GarrisonError(f"home did not bring the commit to begin at within {BASE_SECONDS:g} s")
        time.sleep(_PAUSE)
    return commit


def main(argv: Sequence[str] | None = None) -> int:
    """Begin the run; return 1 if it cannot begin."""
    parser = argparse.ArgumentParser(prog="garrison.processes.remote.begin")
    for name in ("--home", "--run", "--attempt"):
        parser.add_argument(name, required=True)
    options = parser.parse_args(argv)
    home, id_ = Path(options.home), AttemptId.parse(options.attempt)
    environ = {**os.environ, "GARRISON_HOME": str(home)}
    folder = begin_folder(home, options.run)
    try:
        runtime = Runtime.real(home, environ)
        job = decode(Job, (folder / "job.json").read_text(), MAX_JOB)
        if job is None:
            raise GarrisonError("its job cannot be read")
        begin(runtime, HostRun(runtime, job, id_))
    except (GarrisonError, OSError) as error:
        log_line(str(error))
        atomic.write(folder / REFUSAL, f"{error}\n".encode(errors="replace"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
