"""Run of a claim in a host's home: its graph, its clone, and its reports to the main machine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.conversation import messages
from garrison.agents.conversation.files import AttemptFiles
from garrison.errors import GarrisonError, NotFound
from garrison.hosts.access import clone_path
from garrison.hosts.attempts import (
    HOST_RUNS,
    MAX_JOB,
    MAX_LINE,
    MAX_NOTES,
    MAX_QUESTION,
    AttemptId,
    HostJob,
    JobProgress,
    JobResult,
    JobStatus,
    base_ref,
    check_commit,
    decode,
    left_ref,
    result_ref,
)
from garrison.launch.launch import create_run, exec_launcher
from garrison.launch.preflight import prepare_launch
from garrison.node.worktree import collect_what_can_be
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.processes.loop import log_line
from garrison.processes.runtime import Runtime
from garrison.processes.spawn import worktree_path
from garrison.records import atomic, costs, journal, signals
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name
from garrison.records.run import LAND_NONE, Result, load_launch
from garrison.run.request import LaunchRequest
from garrison.run.state import RunState, replay_run
from garrison.run.user_signals import signal_by_person
from garrison.system import command
from garrison.system.command import read_tail
from garrison.system.git import Git
from garrison.system.git.rescues import ARCHIVE, RESCUES, rescue_message, rescue_stem
from garrison.system.machine import garrison_argv
from garrison.system.stamps import newest_entry
from garrison.system.terminal_text import clean
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


START, EXIT = "start", "exit"
TAIL_LINES = 20
JOB, REFUSAL = "job.json", "refusal"
"""Files of `begin_folder`: home's job, and why the run could not start."""
STARTED_AT = "start"
"""Prefix, before the run's id, of the branch at which a run starts in the clone."""


def begin_folder(home: Path, run: str) -> Path:
    return home / "claims" / run


def graph_of(job: HostJob) -> str:
    """Return the graph of the run that does a job. Pure."""
    stated = {
        "shape": "box", "label": job.label or job.node, "prompt": job.prompt, "agent": job.agent,
        "command": job.command, "acceptance": job.acceptance, "setup": job.setup,
        "timeout": f"{job.timeout_s:g}s" if job.timeout_s else None,
        "silence": f"{job.silence_s:g}s" if job.silence_s else None,
        "failover": ",".join(job.failover) if job.failover is not None and job.command is None else None,
        "allow_empty": "true" if job.allow_empty else "false", "rework": "none"}
    node = {**{name: str(value) for name, value in job.attributes.items()},
            **{name: value for name, value in stated.items() if value is not None}}
    attributes = {"flow": "dag", **({"goal": job.goal} if job.goal else {}),
                  **({"prd_ref": job.prd_ref} if job.prd_ref else {})}
    begin, end = (name if name != job.node else f"{name}_" for name in (START, EXIT))
    return to_dot(Graph(id=job.node, attrs=attributes, nodes={
        begin: Node(begin, {"shape": "Mdiamond"}), job.node: Node(job.node, node),
        end: Node(end, {"shape": "Msquare"})}, edges=(
            Edge(begin, job.node), Edge(job.node, end),
            # No edge here needs these words, since all paths lead to the end; but its agent may report them.
            *(Edge(job.node, end, {"label": word}) for word in job.words))))


class HostRun:
    """Run of one claim."""

    def __init__(self, runtime: Runtime, job: HostJob, id_: AttemptId) -> None:
        self.runtime, self.job, self.id = runtime, job, id_
        self.name = job.host_run
        self.files = runtime.files(self.name)
        self.folder = self.files.attempt(job.node, 1)
        self.clone = Path(clone_path(str(runtime.home), job.repository))
        self._journal: tuple[int, RunState] | None = None
        self._usage = costs.UsageCache()

    @cached_property
    def git(self) -> Git:
        return Git(self.clone, home=self.runtime.home)

    @property
    def has_begun(self) -> bool:
        return self.files.launch.exists()

    @property
    def base(self) -> str | None:
        """Return the commit to start at, None until home has brought it."""
        return self.git.rev(base_ref(self.id))

    @property
    def branch(self) -> str:
        return branch_name(self.name, self.job.node)

    # ---- reports to the main machine

    def _state(self) -> RunState:
        size = self.files.journal.stat().st_size if self.files.journal.exists() else 0
        if self._journal is None or self._journal[0] != size:
            self._journal = size, replay_run(journal.read_all(self.files.journal))
        return self._journal[1]

    def progress(self) -> JobProgress:
        """Return the progress of the run."""
        if not self.has_begun:
            return JobProgress(self.name, phase="preparing")
        state, node = self._state(), self.job.node
        hook = self.runtime.store.read(Hook, Key("runner", node, self.name))
        key = Key("orchestrator", node, self.name)
        orchestrator, own = self.runtime.store.read(Identity, key), self.runtime.store.read(Hook, key)
        spent = self._spent()
        question = state.questions.get(node)
        last = read_tail(self.folder / "output.log", 1)
        return JobProgress(
            self.name, hook.phase if hook is not None else "planning",
            check_commit(self.git.branch_tip(self.branch) or ""), clean(last)[:MAX_LINE],
            question.id[:64] if question else "", question.text[:MAX_QUESTION] if question else "",
            spent.usd, spent.calls, spent.input, spent.output,
            max(0, orchestrator.incarnation - 1) if orchestrator is not None else 0, self.job.agent,
            ((own.resumption_instructions if own is not None else "") or "")[-MAX_NOTES:])

    def _spent(self) -> costs.Spent:
        return costs.total(each for _, _, path in costs.usage_files(self.runtime.home, self.name)
                           for each in self._usage.read(path))

    def result(self, host: str, code: int) -> JobResult:
        """Return the result, after the launcher has ended with this exit code."""
        refusal = begin_folder(self.runtime.home, self.name) / REFUSAL
        if refusal.exists():
            return JobResult(host, JobStatus.FAIL, refusal.read_text(errors="replace").strip()[:2000])
        if not self.has_begun:
            return JobResult(host, JobStatus.BROKEN, f"its run could not start (exit code {code})")
        state = self._state()
        if state.status not in ("done", "failed"):
            return JobResult(host, JobStatus.BROKEN, f"its run ended {state.status} (exit code {code})")
        node = state.nodes[self.job.node]
        told = run_records.load(Result, self.folder / "result.json") if (self.folder / "result.json").exists() else None
        is_done = state.status == "done" and node.status == "validated"
        head = self._publish(is_done=is_done)
        return JobResult(
            host, JobStatus.SUCCESS if is_done else JobStatus.FAIL, "" if is_done else node.reason or state.reason,
            "" if is_done else node.kind, head, dict(told.said) if told is not None else {},
            read_tail(self.folder / "output.log", TAIL_LINES))

    def _publish(self, *, is_done: bool) -> str:
        """Keep the commit with all of the work under the attempt's ref, and return it."""
        names = [f"{ARCHIVE}/{self.name}/{self.job.node}", f"refs/heads/{self.branch}"]
        if not is_done:
            names.insert(0, rescue_stem(self.name, self.job.node, 1))
        head = next((oid for name in names if (oid := self.git.rev(name))), None) or self.base or ""
        if head:
            self.git.update_ref(result_ref(self.id), head)
        return head

    def keep(self) -> None:
        """Keep a killed run's work from its worktree, for home to fetch."""
        launch = run_records.load_launch(self.files)
        if launch is None:
            return
        tree = worktree_path(launch, self.job.node)
        try:
            name = left_ref(self.id)
            if tree.is_dir():
                self.git.clear_locks(tree, self.branch)
                collect_what_can_be(self.git, tree, self.name, self.job.node, 1)
                self.git.update_ref(name, self.git.create_snapshot(
                    tree, rescue_message(self.job.node, "had when it was cut off")))
            elif tip := self.git.branch_tip(self.branch):
                self.git.update_ref(name, tip)
        except (GarrisonError, OSError) as error:
            log_line(f"the work of run {self.name} could not be kept: {error}")

    # ---- messages from home

    def answer(self, question: str, text: str, id_: str) -> None:
        """Answer the agent's question."""
        guardian = Key("guardian", self._pipeline(), self.name)
        signals.post(self.runtime.home, signal_by_person(
            guardian, signals.InputResponse(question, text), node=self.job.node, attempt=1,
            id=f"{self.name}-{id_}"))

    def _pipeline(self) -> str:
        launch = run_records.load_launch(self.files)
        if launch is None:
            raise NotFound(f"run {self.name} has not started")
        return launch.pipeline_id

    def tell(self, text: str) -> None:
        """Leave a message for the agent's session."""
        if self.folder.is_dir():
            messages.post(AttemptFiles(self.folder), text, self.runtime.clock.utc())


# ---- Start the run of a claim: wait for the commit at which it starts, create the run, and become its launcher.
#
# `python -P -m garrison.hosts.host_run --home HOME --run RUN --attempt RUN/NODE/NUMBER`, started by the
# host's service (`service.py`). A refusal is left in `refusal` alongside the job.


AUTHOR = ("user.name", "user.email")
"""Settings of git that come with a job."""
BASE_SECONDS = 600.0
"""Longest wait for the commit to start at: home brings it once it knows of the claim."""
_PAUSE = 0.1


def begin(runtime: Runtime, run: HostRun) -> None:
    """Become the launcher of the run; GarrisonError if it cannot start."""
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
    """Create an empty clone of a repository, unless it exists."""
    atomic.make_directory(path)
    with locked_clone(path):
        if not (path / ".git" / "HEAD").exists():
            Git(home, home=None).run("init", "--quiet", "--initial-branch=none", str(path))
        configure(Git(path, home=home), {"receive.denyCurrentBranch": "refuse"})


@contextmanager
def locked_clone(path: Path) -> Iterator[None]:
    """Hold the lock under which the runs of a clone change its configuration: git itself does not wait for its lock."""
    with atomic.locked(path.with_name(f"{path.name}.lock")):
        yield


def configure(git: Git, values: Mapping[str, str]) -> None:
    """Set the values that differ; under `locked_clone`, so an existing lock of git is left by a killed one."""
    for key, value in values.items():
        if git.run("config", "--get", key, check=False).out.strip() != value:
            (git.common / "config.lock").unlink(missing_ok=True)
            git.run("config", key, value)


def wait_for_base(run: HostRun) -> str:
    """Return the commit to start at, once home has brought it."""
    end = time.monotonic() + BASE_SECONDS
    while (commit := run.base) is None:
        if time.monotonic() > end:
            raise GarrisonError(f"home did not bring the commit to start at within {BASE_SECONDS:g} s")
        time.sleep(_PAUSE)
    return commit


def main(argv: Sequence[str] | None = None) -> int:
    """Start the run; return 1 if it cannot start."""
    parser = argparse.ArgumentParser(prog="garrison.hosts.host_run")
    for name in ("--home", "--run", "--attempt"):
        parser.add_argument(name, required=True)
    options = parser.parse_args(argv)
    home, id_ = Path(options.home), AttemptId.parse(options.attempt)
    environ = {**os.environ, "GARRISON_HOME": str(home)}
    folder = begin_folder(home, options.run)
    try:
        runtime = Runtime.real(home, environ)
        job = decode(HostJob, (folder / JOB).read_text(), MAX_JOB)
        if job is None:
            raise GarrisonError("its job cannot be read")
        begin(runtime, HostRun(runtime, job, id_))
    except (GarrisonError, OSError) as error:
        log_line(str(error))
        atomic.write(folder / REFUSAL, f"{error}\n".encode(errors="replace"))
        return 1
    return 0


# ---- Tidying of a host's home: the runs of claims that were unused for a week, with all that they left.
#
# Home fetched their work long ago. `garrison clean` removes each, in its own process: it never touches a living
# one. A claim's other files are removed here: its job, and its refs in the clone.


KEPT_SECONDS = 7 * 86400.0
"""Seconds for which a run is kept after its last change."""
_CLEAN_SECONDS = 600.0


def tidy(home: Path, now: float) -> list[str]:
    """Remove the runs of claims that are older than KEPT_SECONDS at the time `now` (seconds since 1970); return their
    names. One that cannot be removed stays until the next time."""
    runtime = Runtime.real(home)
    return [run for run in find_old(home, now) if _remove(runtime, run)]


def find_old(home: Path, now: float) -> list[str]:
    """Return the names of the claims' runs without a write for KEPT_SECONDS."""
    names = {name for folder in (home / "runs", home / "claims") for name in atomic.list_names(folder)
             if name.startswith(HOST_RUNS)}
    return sorted(name for name in names if now - _used_at(home, name) > KEPT_SECONDS)


def _used_at(home: Path, run: str) -> float:
    """Return the time of a run's last write; its folders count as well: a new one is empty."""
    times = []
    for folder in (home / "runs" / run, begin_folder(home, run)):
        with suppress(FileNotFoundError):
            times.append(folder.stat().st_mtime)
        if (newest := newest_entry(folder)) is not None:
            times.append(newest[0] / 1e9)
    return max(times, default=0.0)


def _remove(runtime: Runtime, run: str) -> bool:
    refs = _refs(runtime, run)  # before `clean`, which removes the record of the attempt
    if runtime.files(run).root.exists():
        argv = garrison_argv("clean", "--run", run, "--force", "--yes", home=runtime.home)
        if not command.run(argv, _CLEAN_SECONDS, cwd=runtime.home).ok:
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
        job = decode(HostJob, (begin_folder(runtime.home, run) / JOB).read_text(), MAX_JOB)
        launch = load_launch(runtime.files(run))
        id_ = AttemptId.parse(launch.claimed_attempt) if launch is not None else None
    except (GarrisonError, OSError, UnicodeDecodeError):
        return None
    if job is None or id_ is None:
        return None
    found = HostRun(runtime, job, id_)
    names = [base_ref(id_), result_ref(id_), left_ref(id_), f"refs/heads/{STARTED_AT}/{run}"]
    return (found, names) if found.clone.is_dir() else None


if __name__ == "__main__":
    sys.exit(main())
