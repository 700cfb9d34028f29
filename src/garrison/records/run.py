"""Run files: paths of a run, and its records launch.json, task.json, result.json and runners/NODE.json.

launch.json and graph.dot are written once, before the launcher's identity; a resume needs nothing else. The guardian
writes a task.json for each attempt, so that runner and orchestrator need not parse the graph.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.errors import NewerSchema, RecordCorrupt, RecordError
from garrison.records import atomic, earlier, record
from garrison.records.hook import Hook
from garrison.records.names import Key, integration_branch
from garrison.values import Value, replace

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeVar

    from garrison.records.store import Store

    T = TypeVar("T")


LAND_NODE, LAND_RUN, LAND_NONE, LAND_PR = "node", "run", "none", "pr"
LANDS = (LAND_NODE, LAND_RUN, LAND_NONE, LAND_PR)
"""Words of `Launch.land`: each finished node lands; the whole run lands once, at its exit; nothing lands; a run opens a
pull request at its exit."""

REMOTES = "refs/garrison/remote"
"""Refs that remote branches are fetched to: `<REMOTES>/<remote>/<branch>`."""


class Launch(Value):
    """Options of a launched run; no secrets, only the names of variables that pass through."""

    run_id: str
    pipeline_id: str
    repo: str
    base: str
    created_at: str
    trees: str
    base_oid: str = ""
    setup: str | None = None
    lock_files: list[str] = msgspec.field(default_factory=list)
    """Files whose content decides when set-up runs again; empty: the common ones."""
    gate: str | None = None
    no_gate: bool = False
    env: list[str] = msgspec.field(default_factory=list)
    held_back: list[str] = msgspec.field(default_factory=list)
    """Names of the launcher's variables that its children do not get; shown when a command is not found."""
    agent: str = "command"
    max_agents: int = 2
    max_respawn: int = 10
    max_rework: int = 2
    terminal: str = "auto"
    path: str = ""
    locale: dict[str, str] = msgspec.field(default_factory=dict)
    graph_source: str = ""
    graph_hash: str = ""
    """Hash of the graph's text as stored in the run, and of nested pipelines; empty in older runs."""
    prd_ref: str = ""
    adhoc: bool = False
    auto_approve: bool = False
    """True if gates that wait for the user are approved automatically."""
    max_steps: int | None = None
    """Limit of node visits in the run's flow; None: the graph's, else the default."""
    land: str = LAND_NODE
    """What lands on `base`, and when; one of LANDS. An older run has none: each finished node lands."""
    node_gate: str | None = None
    """Gate of the run's own branch, if nodes do not land on `base`; None: they merge into it untested."""
    approve: bool = False
    """True if the user has to approve the work of every node before it lands."""
    gate_from_target: list[str] = msgspec.field(default_factory=list)
    """Patterns of files that the gate gets from the target."""
    hooks: str = ""
    """Hash of the user's reference-transaction hook that is asked before each landing; '' if none is."""
    failover: list[str] | None = None
    """Agents that take over when a node's agent cannot continue; None: as in its profile."""
    sandbox: str = ""
    """Line about the sandbox in force and its gaps; '' in older runs."""
    remote: str = ""
    """Remote with the base of the run's pull request, '' without one; `base` is the branch's name there."""
    issue: int = 0
    """Number of the issue that the run was taken from, 0 for none."""
    issue_label: str = ""
    """Label by which it was selected, '' for none."""
    issue_text: str = ""
    """Hash of its title and text at that time; '' in older runs."""
    sandbox_mode: str = ""
    """Mode that GARRISON_SANDBOX stated at the launch, '' for none: cron resumes the run without that variable."""
    sandbox_modes: list[str] = msgspec.field(default_factory=list)
    """Modes in force; empty in older runs."""
    sandbox_gaps: bool | None = None
    """True if there are gaps; None in older runs."""
    hosts: list[str] = msgspec.field(default_factory=list)
    """Default placement of nodes: names of hosts, or one label; empty: this machine."""
    claimed_for: str = ""
    """Attempt of another home's run that this run works on as a host, '' for none: only the holder of the claim
    continues it."""
    claim: str = ""
    """Id of that attempt; '' in older runs."""
    commit_hook: bool = False
    """True if the repository's own pre-commit hook is part of the gate."""
    committer: str = ""
    """Committer of what lands, `Name <address>`; '' if git has no name, and in older runs: garrison itself."""
    signer: dict[str, object] = msgspec.field(default_factory=dict)
    """How what lands is signed, as the merge queue records it; empty: not at all."""
    holds_id: bool = False
    """True if its home created the ref that reserves its id in the repository; False in older runs."""
    tick: str = ""
    """Task list that it was started from, in which it ticks what has landed when it ends; '' for none."""
    on_failure: list[str] = msgspec.field(default_factory=list)
    """Words of garrison's command that the launcher runs when the run has failed, before reporting it."""
    launcher_env: list[str] = msgspec.field(default_factory=list)
    """Variables for that command, which only launchers get."""
    programs: list[str] = msgspec.field(default_factory=list)
    """Programs of its agents and of its nodes' commands that were on the PATH at the launch: a run waits for one that
    is missing later, since an update puts it back."""
    subfolder: str = ""
    """Folder of the repository where agents and acceptance start if a node has no `path`, '' for the top."""

    @property
    def claimed_attempt(self) -> str:
        """Return the id of the attempt of another home's run that this run works on, '' for none."""
        return self.claim or earlier.claim_of(self.claimed_for)

    @property
    def stated_sandbox_mode(self) -> str:
        """Return the sandbox mode of this run, '' for the configured one.

        Runs started by older versions have no sandbox and continue without one.
        """
        return self.sandbox_mode or ("" if self.sandbox or self.adhoc else "none")

    @property
    def is_held_by_landlock(self) -> bool:
        return "landlock" in (self.sandbox_modes or earlier.modes_of(self.sandbox))

    @property
    def has_sandbox_gaps(self) -> bool:
        return earlier.has_gaps(self.sandbox) if self.sandbox_gaps is None else self.sandbox_gaps

    def resumed_in(self, resumed: RunSandbox) -> Launch:
        """Return it with the sandbox that the run got when it was resumed."""
        return replace(self, sandbox=resumed.sandbox, sandbox_mode=resumed.sandbox_mode,
                       sandbox_modes=resumed.sandbox_modes, sandbox_gaps=resumed.sandbox_gaps)

    @property
    def onto(self) -> str:
        """Return the branch that nodes start from and land on: `base`, or the run's own."""
        return self.base if self.land == LAND_NODE else integration_branch(self.run_id)

    @property
    def base_ref(self) -> str:
        """Return the ref of the base in the repository: the branch, or the copy of the remote's."""
        return f"{REMOTES}/{self.remote}/{self.base}" if self.remote else f"refs/heads/{self.base}"


class RunSandbox(Value):
    """Sandbox of a run since its last resume, if it differs from the one at launch."""

    sandbox: str
    """As in `Launch`, like the other fields."""
    sandbox_mode: str
    sandbox_modes: list[str] = msgspec.field(default_factory=list)
    sandbox_gaps: bool | None = None


CONTINUE = "continue"
"""`Task.rework` of the attempt after a lost one: it starts at the branch, or at a later snapshot of the work."""


class Task(Value):
    """One attempt at a node: everything that its runner and orchestrator need to know."""

    run_id: str
    node: str
    attempt: int
    label: str = ""
    prd_ref: str = ""
    prompt: str = ""
    agent: str = "command"
    command: str | None = None
    acceptance: str | None = None
    setup: str | None = None
    timeout_s: float | None = None
    silence_s: float | None = None
    """Seconds without evidence of work after which its agent counts as hung; None: only the timeout limits it."""
    skip_agent: bool = False
    allow_empty: bool = True
    """False if an attempt without a change counts as failed; missing in older runs."""
    goal: str = ""
    rework: str = "fresh"
    """Start of an attempt after a refused one: `fresh` at the target's tip, or `merge` (the tip is merged into the
    branch, conflict markers are left for the agent)."""
    rework_reason: str = ""
    """Why the previous attempt failed; empty in the first."""
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    context: dict[str, object] = msgspec.field(default_factory=dict)
    """Pipeline context at the start of this attempt, in a run whose graph has one."""
    preamble: str = ""
    """Summary of the run so far, unless a session remembers it; the prompt starts with it."""
    continues: str = ""
    """Session id of an earlier node that this one continues, '' for none."""
    approve: bool = False
    """True if the user has to approve its work before that lands."""
    words: list[str] | None = None
    """Words that its agent may report besides the statuses, since edges test for them; None (older runs): any."""
    step: str = ""
    """Step of the flow that the attempt is for (`run.flow.step_id`); empty in older runs."""
    ways: list[str] = msgspec.field(default_factory=list)
    """Possible continuations of the pipeline after the node, one per line, if its agent chooses."""
    failover: list[str] | None = None
    """Agents that take over when its agent cannot continue, in this order; None: as in the agent's profile."""
    landed: list[dict[str, str]] = msgspec.field(default_factory=list)
    """Upstream nodes whose work has landed, oldest first: `node`, `task` (its label) and `commit`."""
    hosts: str = ""
    """Where it runs (`records.placement`), '' for this machine."""
    candidate: bool = False
    """True if its work is kept after passing its checks, and never enqueued."""
    judge: str = ""
    """Command that prints a candidate's score, '' for none."""
    work: str = ""
    """Commit of the chosen candidate, which the branch starts from and which lands; '' for an attempt of an agent."""
    subfolder: str = ""
    """Folder of the worktree where its agent and acceptance start, '' for the top."""

    @property
    def may_change(self) -> tuple[str, ...]:
        """Return which files the node may change, by its attribute `files` (patterns separated by commas or blanks)."""
        return tuple(str(self.attributes.get("files") or "").replace(",", " ").split())

    @property
    def here(self) -> Task:
        """Return the part of the task for this machine: a host runs set-up, acceptance and validation itself, and
        watches its agent's silence."""
        if not self.hosts:
            return self
        attributes = {name: value for name, value in self.attributes.items() if name != "validator"}
        return replace(self, setup=None, acceptance=None, silence_s=None, timeout_s=None, attributes=attributes)


class Result(Value):
    """Result of an attempt, written by its orchestrator; ignored unless run, node and attempt are the current ones."""

    run_id: str
    node: str
    attempt: int
    incarnation: int
    status: str
    at: str
    reason: str = ""
    exit_code: int | None = None
    head: str | None = None
    tail: str = ""
    said: dict[str, object] = msgspec.field(default_factory=dict)
    """The agent's report for the pipeline (see `agents.result`)."""
    session: str = ""
    """Session id of the agent, for later nodes of its thread."""
    failure_kind: str = ""
    """One of `ends.RefusedBy`, or ''."""
    refusal: dict[str, object] = msgspec.field(default_factory=dict)
    """Why the work of an agent that reported success is refused (`ends.Refusal`), in addition to the reason as text."""

    def __post_init__(self) -> None:
        if self.status not in ("success", "fail"):
            raise ValueError(f"status {self.status!r} is neither success nor fail")


def read_result(path: Path, run: str, node: str, attempt: int, announced: str | None = None,
                ) -> tuple[Result | None, str]:
    """Return the result in `path` if it is complete and belongs to that run, node and attempt; else None and the
    reason.

    `announced` is the digest in the orchestrator's hook (`Hook.result_digest`): any other file was not written by the
    node's orchestrator. None: it announced nothing, as in an older garrison.
    """
    data = atomic.read(path)
    if data is None:
        return None, ""
    try:
        result = record.decode(Result, data, path)
    except (RecordCorrupt, NewerSchema) as error:
        return None, str(error)
    if (result.run_id, result.node, result.attempt) != (run, node, attempt):
        return None, f"{path} belongs to {result.run_id}/{result.node}/{result.attempt}; ignored"
    # Agents without a sandbox can write to this folder, and a forged result would land.
    if announced is not None and atomic.digest_of(data) != announced:
        return None, f"{path} was not written by the node's orchestrator; ignored"
    return result, ""


RESULT = "result.json"
"""File of an attempt's folder with its result."""


def read_attempt_result(store: Store, files: RunFiles, node: str, attempt: int) -> tuple[Result | None, str]:
    """Return the result of a node's attempt that its orchestrator announced; else None, and the reason if there is a
    file."""
    path = files.attempt(node, attempt) / RESULT
    if not path.exists():
        return None, ""
    try:
        hook = store.read(Hook, Key("orchestrator", node, files.run))
    except RecordError:  # its owner repairs it
        hook = None
    return read_result(path, files.run, node, attempt, hook.result_digest if hook is not None else None)


class RunnerState(Value):
    """Runner state for users' scripts; `status` follows the process."""

    runner_pid: int | None
    node_id: str
    prd_ref: str
    target_dir: str
    identity_file: str
    hook_file: str
    status: str
    started_at: str


class RunFiles:
    """Paths of one run in a home."""

    def __init__(self, home: Path, run: str) -> None:
        self.run = run
        self.root = home / "runs" / run

    @property
    def launch(self) -> Path:
        return self.root / "launch.json"

    @property
    def sandbox(self) -> Path:
        """Return the path of the record of the sandbox since a resume."""
        return self.root / "sandbox.json"

    @property
    def budget(self) -> Path:
        """Limit of the whole run (`budget.RunLimit`); absent without one."""
        return self.root / "budget.json"

    @property
    def launched_graph(self) -> Path:
        return self.root / "graph.dot"

    @property
    def changed_graph(self) -> Path:
        """Return the path of the text after the user's changes; its guardian writes it from its journal."""
        return self.root / "changed.dot"

    @property
    def graph(self) -> Path:
        return self.changed_graph if self.changed_graph.is_file() else self.launched_graph

    @property
    def graphs(self) -> Path:
        return self.root / "graphs"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    def process_journal(self, stem: str) -> Path:
        """Return the path of another process's journal (`stem` is `role-name`)."""
        return self.root / "layers" / f"{stem}.jsonl"

    def process_log(self, stem: str) -> Path:
        return self.root / "layers" / f"{stem}.log"

    def attempt(self, node: str, attempt: int) -> Path:
        return self.root / f"nodes/{node}/{attempt}"

    def latest_attempt(self, node: str) -> int:
        """Return the number of a node's latest attempt that has a folder, 0 if there is none."""
        try:
            names = os.listdir(f"{self.root}/nodes/{node}")  # noqa: PTH208  # called for all nodes by each node
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)

    def runner_state(self, node: str) -> Path:
        return self.root / "runners" / f"{node}.json"


def list_runs(home: Path) -> list[str]:
    """Return the ids of all launched runs in a home, oldest first, without those being removed."""
    folder = home / "runs"
    began = [(at, name) for name in atomic.list_names(folder) if not name.startswith(".")
             and (at := _began_at(f"{folder}/{name}")) is not None]
    return [name for _, name in sorted(began)]


def _began_at(folder: str) -> float | None:
    """Return when a run started, by the time of a file; None if it has none. A run without launch.json is damaged, not
    absent."""
    for mark in ("launch.json", "journal.jsonl", "layers"):
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.stat(f"{folder}/{mark}").st_mtime  # noqa: PTH116  # a Path for each would double the cost
    return None


def save(path: Path, value: object) -> None:
    """Write a run's record durably."""
    atomic.make_directory(path.parent)
    atomic.write(path, record.encode(value))


def load_launch(files: RunFiles) -> Launch | None:
    """Read what a run was launched with, with its sandbox since the last resume; None if absent."""
    launch = load(Launch, files.launch)
    resumed = None
    with suppress(RecordCorrupt):  # a damaged one must not stop the run, which knows its first sandbox
        resumed = load(RunSandbox, files.sandbox)
    if launch is not None and resumed is not None:
        launch = launch.resumed_in(resumed)
    if launch is not None and launch.is_held_by_landlock and launch.terminal in ("auto", "tmux"):
        # Any process that reaches tmux's socket, which Landlock does not block, can run anything as the user. Earlier
        # versions allowed it.
        return replace(launch, terminal="process")
    return launch


def load(kind: type[T], path: Path) -> T | None:
    """Read a run's record; None if absent, RecordError if it cannot be read as one."""
    data = atomic.read(path)
    return None if data is None else record.decode(kind, data, path)
