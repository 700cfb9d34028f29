"""A run of an hour whose records have the times that its story says, for tests of its timeline."""

from __future__ import annotations

from dataclasses import dataclass

from garrison.merge.config import QueueConfig
from garrison.records import costs, journal
from garrison.records import run as run_records
from garrison.records.journal import Writer
from garrison.records.json_io import append_line
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.system.clock import from_iso, iso
from top_support import HomeBuilder

BEGIN = from_iso("2026-03-01T12:00:00.000000Z")
GRAPH = """digraph story { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]
  parse [shape=box, command="true"]; tests [shape=box, command="true"]; docs [shape=box, command="true"]
  ask [shape=hexagon, label="Release it?"]; release [shape=box, command="true"]; notes [shape=box, command="true"]
  start -> parse -> tests -> ask; start -> docs -> ask; ask -> release [label="[Y] Yes"]; ask -> exit [label="[N] No"]
  release -> notes -> exit }"""


@dataclass
class TimedHome(HomeBuilder):
    """Home whose clock is set by hand: `minute` is the time since the run's start."""

    begin: float = BEGIN
    minute: float = 0.0

    def now(self) -> str:
        return iso(self.begin + 60 * self.minute)

    def queued(self, kind: str, minute: float, **data: object) -> None:
        self.minute = minute
        self.queue_record(kind, data)


@dataclass
class Story:
    """Writers of one run's journals."""

    builder: TimedHome
    run: str

    def __post_init__(self) -> None:
        self.files = RunFiles(self.builder.home, self.run)
        self.writers: dict[str, Writer] = {}

    def guardian(self, minute: float, kind: str, /, **data: object) -> None:
        self._write(self.files.journal, "guardian-story#1", minute, kind, data)

    def runner(self, node: str, minute: float, kind: str, /, **data: object) -> None:
        self._write(self.files.root / "layers" / f"runner-{node}.jsonl", f"runner-{node}#1", minute, kind, data)

    def _write(self, path: object, token: str, minute: float, kind: str, data: dict[str, object]) -> None:
        if str(path) not in self.writers:
            self.writers[str(path)] = Writer(path, token)
        self.writers[str(path)].append(kind, data, iso(self.builder.begin + 60 * minute))

    def node(self, minute: float, node: str, status: str, attempt: int = 1, **data: object) -> None:
        self.guardian(minute, "node", node=node, status=status, attempt=attempt, **data)

    def agent(self, node: str, minute: float, life: int = 1, attempt: int = 1) -> None:
        self.runner(node, minute, "spawn", full=Key("orchestrator", node, self.run).full, incarnation=life,
                    attempt=attempt, why=f"attempt {attempt}" if life == 1 else "first restart in the window: at once")

    def death(self, node: str, minute: float, life: int = 1, attempt: int = 1, kind: str = "crash",
              why: str = "process 4711 is gone") -> None:
        self.runner(node, minute, "death", full=Key("orchestrator", node, self.run).full, incarnation=life,
                    attempt=attempt, monotonic=1.0, boot_id="b", why=why, **{"class": kind})

    def enqueue(self, node: str, minute: float, attempt: int = 1) -> str:
        entry = f"{node}-{attempt}-0123abcd"
        self.builder.queued("enq", minute, entry=entry, run=self.run, node=node, attempt=attempt,
                            branch=f"garrison/{self.run}/{node}", oid="0" * 40, target="main", repo="/repo",
                            recipient="", supersedes=[])
        return entry

    def gate(self, node: str, begin: float, end: float, result: str = "green", attempt: int = 1) -> None:
        entry = f"{node}-{attempt}-0123abcd"
        tree = "1" * 40
        self.builder.queued("state", begin, entry=entry, entries=[entry], status="candidate", base="2" * 40,
                            trees=[tree], commits=["3" * 40])
        self.builder.queued("test", begin, entry=entry, entries=[entry], of="entry", number=1, job=f"{entry}.1",
                            commit="3" * 40, tree=tree, slot=0, command="gate", log="")
        self.builder.queued("state", begin, entry=entry, entries=[entry], status="testing")
        self.builder.queued("verdict", end, entry=entry, entries=[entry], of="entry", job=f"{entry}.1", tree=tree,
                            command="gate", result=result, code=0, reason="", log="")
        if result == "green":
            self.builder.queued("landing", end, entry=entry, entries=[entry], old="2" * 40, new="3" * 40,
                                commits=["3" * 40])
            self.builder.queued("landed", end, entry=entry, commit="3" * 40, old="2" * 40)
        else:
            self.builder.queued("state", end, entry=entry, entries=[entry], status="rejected",
                                reason="the gate is red")

    def paid(self, node: str, minute: float, usd: float, model: str, attempt: int = 1) -> None:
        folder = self.files.attempt(node, attempt) / "claude"
        folder.mkdir(parents=True, exist_ok=True)
        costs.append_usage(folder / "usage.jsonl", costs.UsageRecord(
            "call", f"s-{node}", iso(self.builder.begin + 60 * minute), usd, model, f"m{minute}", 1000, 100))

    def limited(self, node: str, begin: float, end: float | None) -> None:
        """Make a node's session wait for a rate limit."""
        folder = self.files.attempt(node, 1) / "claude"
        folder.mkdir(parents=True, exist_ok=True)
        at = self.builder.begin
        append_line(folder / "endings.jsonl", {"kind": "rate_limit", "at": at + 60 * begin, "reason": "limit reached"})
        if end is not None:
            append_line(folder / "prompts.jsonl", {"at": at + 60 * end, "life": 1, "kind": "resume", "message": "on"})


def story(builder: TimedHome, run: str = "story-1") -> Story:
    """Write the run: what happened in it is listed minute by minute."""
    told = Story(builder, run)
    run_records.save(told.files.launch, Launch(run, "story", "/repo", "main", iso(builder.begin), "/trees",
                                               max_agents=1))
    told.files.graph.write_text(GRAPH)
    config = QueueConfig(gate="true")
    journal.append_shared(builder.home / "merge-queue/repo-1/main/journal.jsonl", "hand", "config", {
        "gate": config.gate, "setup": None, "no_gate": False, "timeout": 10.0, "lock_files": []}, iso(builder.begin))
    told.guardian(0, "run", status="running")
    for name in ("parse", "tests", "docs", "release", "notes"):
        told.node(0, name, "pending")
    told.node(0, "parse", "active", step="parse#1:1")  # parse: set-up, work, a death, checks, lands at 16
    told.runner("parse", 0.5, "job", name="setup", command="make", attempt=1)
    told.runner("parse", 1, "fact", name="setup", value="", attempt=1)
    told.agent("parse", 1)
    told.paid("parse", 3, 0.5, "claude-sonnet-4")
    told.death("parse", 6)
    told.agent("parse", 7, life=2)
    told.paid("parse", 9, 1.5, "claude-sonnet-4")
    told.runner("parse", 11, "job", name="acceptance", command="make check", attempt=1)
    told.runner("parse", 12, "fact", name="acceptance", value="", attempt=1)
    told.node(12, "parse", "impl_complete")
    told.node(12, "docs", "active", step="docs#1:1")  # docs waited for a free agent, asks, waits for a limit
    told.enqueue("parse", 12)
    told.gate("parse", 13, 15)
    told.node(15, "parse", "validated", commit="3" * 40)
    told.agent("docs", 13)
    told.paid("docs", 14, 0.25, "claude-haiku-4")
    told.guardian(16, "signal", id="q1", type="NEEDS_INPUT", node="docs", attempt=1, **{"from": "runner-docs@story-1"},
                  question={"id": "q1", "text": "Which tone?"})
    told.guardian(20, "signal", id="a1", type="INPUT_RESPONSE", node="docs", attempt=1, **{"from": "person"},
                  answer="q1")
    told.limited("docs", 22, 25)
    told.node(28, "docs", "impl_complete")
    told.enqueue("docs", 28)
    told.gate("docs", 28, 30, "red")
    told.node(30, "docs", "active", attempt=2, reason="the gate is red")
    told.agent("docs", 31, attempt=2)
    told.node(34, "docs", "impl_complete", attempt=2)
    told.enqueue("docs", 34, attempt=2)
    told.gate("docs", 34, 36, attempt=2)
    told.node(36, "docs", "validated", attempt=2, commit="4" * 40)
    told.node(36, "tests", "active", step="tests#1:1")
    told.agent("tests", 37)
    told.paid("tests", 40, 0.75, "claude-sonnet-4")
    told.guardian(42, "signal", id="h1", type="USER_GUIDANCE", node="tests", attempt=1, **{"from": "person"},
                  hold="tests", text="lunch")
    told.guardian(44, "signal", id="h2", type="USER_GUIDANCE", node="tests", attempt=1, **{"from": "person"},
                  unhold="tests")
    told.node(46, "tests", "impl_complete")
    told.enqueue("tests", 46)
    told.gate("tests", 47, 49)
    told.node(49, "tests", "validated", commit="5" * 40)
    told.guardian(50, "gate", place="ask#1", node="ask", kind="human", text="Release it?", type="choice",
                  options=[{"label": "Yes", "key": "Y"}], default="", signal="", deadline="")
    return told
