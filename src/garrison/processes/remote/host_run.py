"""Run of a claim in a host's home: its graph, its clone, and what of it home is told."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.claude import messages
from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.dispatch.job import (
    MAX_LINE,
    MAX_NOTES,
    MAX_QUESTION,
    Job,
    JobProgress,
    JobResult,
    JobStatus,
    base_ref,
    check_commit,
    left_ref,
    result_ref,
)
from garrison.dispatch.transport import clone_path
from garrison.errors import GarrisonError, NotFound
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.processes.loop import log_line
from garrison.processes.person_signals import signal_by_person
from garrison.processes.run_state import RunState, replay_run
from garrison.processes.spawn import worktree_path
from garrison.processes.worktree import collect_what_can_be
from garrison.records import costs, journal, signals
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name
from garrison.records.run import Result
from garrison.system.git import Git
from garrison.system.git.rescues import ARCHIVE, rescue_message, rescue_stem
from garrison.system.jobs import read_tail
from garrison.system.terminal_text import clean

if TYPE_CHECKING:
    from garrison.dispatch.records import AttemptId
    from garrison.processes.runtime import Runtime

START, EXIT = "start", "exit"
TAIL_LINES = 20
REFUSAL = "refusal"
"""File of `begin_folder` with the reason why the run could not begin."""
STARTED_AT = "start"
"""Name, before the run's id, of the branch at which a run begins in the clone."""


def begin_folder(home: Path, run: str) -> Path:
    return home / "claims" / run


def graph_of(job: Job) -> str:
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
            # No edge asks for these words here, where all ways lead to the end; but its agent may report them.
            *(Edge(job.node, end, {"label": word}) for word in job.words))))


class HostRun:
    """Run of one claim."""

    def __init__(self, runtime: Runtime, job: Job, id_: AttemptId) -> None:
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
        """Return the commit to begin at, None until home has brought it."""
        return self.git.rev(base_ref(self.id))

    @property
    def branch(self) -> str:
        return branch_name(self.name, self.job.node)

    # ---- what home is told

    def _state(self) -> RunState:
        size = self.files.journal.stat().st_size if self.files.journal.exists() else 0
        if self._journal is None or self._journal[0] != size:
            self._journal = size, replay_run(journal.read_all(self.files.journal))
        return self._journal[1]

    def progress(self) -> JobProgress:
        """Return where the run is."""
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
            return JobResult(host, JobStatus.BROKEN, f"its run could not begin (exit code {code})")
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
        """Keep the commit with everything that was made under the attempt's ref, and return it."""
        names = [f"{ARCHIVE}/{self.name}/{self.job.node}", f"refs/heads/{self.branch}"]
        if not is_done:
            names.insert(0, rescue_stem(self.name, self.job.node, 1))
        head = next((oid for name in names if (oid := self.git.rev(name))), None) or self.base or ""
        if head:
            self.git.update_ref(result_ref(self.id), head)
        return head

    def keep(self) -> None:
        """Keep what a killed run left in its worktree, for home to fetch."""
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
            log_line(f"what run {self.name} left could not be kept: {error}")

    # ---- what home tells

    def answer(self, question: str, text: str, id_: str) -> None:
        """Answer the agent's question."""
        guardian = Key("guardian", self._pipeline(), self.name)
        signals.post(self.runtime.home, signal_by_person(
            guardian, "INPUT_RESPONSE", {"question_id": question, "text": text}, node=self.job.node, attempt=1,
            id=f"{self.name}-{id_}"))

    def _pipeline(self) -> str:
        launch = run_records.load_launch(self.files)
        if launch is None:
            raise NotFound(f"run {self.name} has not begun")
        return launch.pipeline_id

    def tell(self, text: str) -> None:
        """Leave a message for the agent's session."""
        if self.folder.is_dir():
            messages.post(AttemptFiles(self.folder), text, self.runtime.clock.utc())


