"""Every surface shows the same words for the same records: one run per situation, one home, read in every way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from garrison.cli.main import main
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.journal import Writer
from garrison.records.run import Launch, RunFiles
from garrison.run.status import RunStatus, run_statuses
from garrison.system import resource_usage
from garrison.values import asdict, replace
from garrison.views.page_view import HomeObserver, RunLine
from garrison.web.run_stream import RunStream
from top_support import HomeBuilder, home_builder


@dataclass(frozen=True)
class Situation:
    """Records of one run, and the words that every surface must have for them."""

    build: Callable[[HomeBuilder, str], None]
    status: str
    reason: str = ""
    """A part of its reason; '' if it must have none."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Node → its state."""
    doing: dict[str, str] = field(default_factory=dict)
    """Node → a part of what it does."""


RED = "acceptance `make test` failed (exit 1): 2 failed"


def upper(home: HomeBuilder, run: str) -> None:
    """Start launcher and guardian."""
    home.incarnation("launch", "launch", run)
    home.incarnation("guardian", "crew", run)


def node(home: HomeBuilder, guardian: Writer, name: str, *statuses: str, **more: Any) -> None:
    """Journal the statuses of a node, the last one with `more`."""
    for status in statuses:
        guardian.append("node", {"node": name, "status": status, "attempt": 1,
                                 **(more if status == statuses[-1] else {})}, home.now())


def starting(home: HomeBuilder, run: str) -> None:
    home.run(run, "a").close()
    RunFiles(home.home, run).journal.unlink()
    home.incarnation("launch", "launch", run)


def working(home: HomeBuilder, run: str) -> None:
    guardian = home.run(run, "a", "b", "c")
    upper(home, run)
    node(home, guardian, "a", "active", "impl_complete", "validated", commit="0123456789abcdef")
    home.incarnation("runner", "a", run, status="terminated", phase="merged", reason="done")
    home.working(guardian, run, "b")


def asking(home: HomeBuilder, run: str) -> None:
    guardian = home.run(run, "a", "b")
    upper(home, run)
    home.working(guardian, run, "a")
    guardian.append("signal", {"id": "s1", "type": "NEEDS_INPUT", "node": "a", "from": f"runner-a@{run}",
                               "question": {"id": "q1", "text": "which?"}}, home.now())
    folder = RunFiles(home.home, run).attempt("a", 1) / "claude"
    folder.mkdir(parents=True)
    (folder / "waiting").write_text("for an answer: which?")


GATED = """digraph crew { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare];
a [command="true"]; b [command="true"]; ask [shape=hexagon, label="Ship?"]; start -> a -> ask -> b -> exit }"""


def gated(home: HomeBuilder, run: str) -> None:
    guardian = home.run(run, "a", "b")
    upper(home, run)
    RunFiles(home.home, run).graph.write_text(GATED)
    node(home, guardian, "a", "active", "impl_complete", "validated")
    guardian.append("gate", {"place": "ask#1", "node": "ask", "kind": "human", "text": "Ship?", "type": "single_select",
                             "default": "", "deadline": "", "signal": "", "options": []}, home.now())


def queued(home: HomeBuilder, run: str, status: str = "", *, approval: bool = False, **pause: str) -> None:
    guardian = home.run(run, "a", "b")
    upper(home, run)
    node(home, guardian, "a", "active", "impl_complete")
    home.incarnation("runner", "a", run, phase="validating")
    home.enqueue(run, "a", queue=run, **({"approval": True, "status": "held"} if approval else {}))
    if status:
        home.queue_record("state", {"entry": "a-1-0123abcd", "status": status}, queue=run)
    if pause:
        home.queue_record("pause", {"detail": "red", "tip": "0" * 40, "log": "", **pause}, queue=run)


def held(home: HomeBuilder, run: str) -> None:
    guardian = home.run(run, "a", "b")
    upper(home, run)
    home.working(guardian, run, "a")
    guardian.append("signal", {"id": "s1", "type": "GUIDANCE", "node": "a", "hold": "a", "text": "the API is down"},
                    home.now())


def parked(home: HomeBuilder, run: str) -> None:
    home.run(run, "a").close()
    home.incarnation("launch", "launch", run, status="terminated", reason="parked")
    home.incarnation("guardian", "crew", run, status="parked", reason="6 deaths in 600 s")


def ended(home: HomeBuilder, run: str, status: str, why: str, *statuses: str, **more: str) -> None:
    guardian = home.run(run, "a")
    node(home, guardian, "a", *statuses, **more)
    guardian.append("run", {"status": status, "reason": why}, home.now())
    for role, name in (("launch", "launch"), ("guardian", "crew"), ("runner", "a")):
        home.incarnation(role, name, run, status="terminated", reason=status)


def killed(home: HomeBuilder, run: str) -> None:
    guardian = home.run(run, "a", "b")
    node(home, guardian, "a", "active")
    for role, name in (("launch", "launch"), ("guardian", "crew"), ("runner", "a")):
        home.incarnation(role, name, run)
        home.sleepers[-1].kill()
        home.sleepers[-1].wait()


def adhoc(home: HomeBuilder, run: str, status: str, reason: str = "") -> None:
    home.run(run, "a").close()
    files = RunFiles(home.home, run)
    launch = run_records.load(Launch, files.launch)
    run_records.save(files.launch, replace(launch, adhoc=True))
    files.journal.unlink()
    home.incarnation("runner", "a", run, status=status, reason=reason)
    if reason == "failed":
        writer = Writer(files.process_journal("runner-a"), "runner-a#1")
        writer.append("fact", {"name": "failed", "value": RED, "attempt": 1}, home.now())
        writer.close()


def torn(home: HomeBuilder, run: str) -> None:
    home.run(run, "a").close()
    journal = RunFiles(home.home, run).journal
    journal.write_bytes(b"{}\n" + journal.read_bytes())


SITUATIONS = {
    "starting": Situation(starting, "new"),
    "working": Situation(working, "running", "", {"a": "landed", "b": "working", "c": "waiting"},
                         {"a": "landed as 0123456789", "b": "its agent is working", "c": "waiting for b"}),
    "asking": Situation(asking, "waiting", "an answer to the agent of a", {"a": "asks", "b": "waiting"},
                        {"a": "asks you: which?", "b": "waiting for a"}),
    "gated": Situation(gated, "waiting", "an answer at ask", {"a": "landed", "b": "waiting"}, {"b": "waiting for ask"}),
    "queued": Situation(queued, "running", "", {"a": "queued", "b": "waiting"}, {"a": "next in the merge queue"}),
    "on-hold": Situation(lambda home, run: queued(home, run, "held"), "waiting", "release a in the merge queue",
                         {"a": "queued", "b": "waiting"}),
    "testing": Situation(lambda home, run: queued(home, run, "candidate"), "running", "",
                         {"a": "testing", "b": "waiting"}),
    "approval": Situation(lambda home, run: queued(home, run, approval=True), "waiting", "your approval of a",
                          {"a": "waiting for approval", "b": "waiting"}, {"a": "waiting for approval"}),
    "paused": Situation(lambda home, run: queued(home, run, reason="base_red"), "waiting", "the merge queue",
                        {"a": "queued", "b": "waiting"}, {"a": "the queue is paused (base_red)"}),
    "held": Situation(held, "waiting", "you to unpark a", {"a": "parked", "b": "waiting"},
                      {"a": "parked by you: the API is down"}),
    "parked": Situation(parked, "parked", "its guardian is parked: 6 deaths", {"a": "waiting"}),
    "stopped": Situation(lambda home, run: ended(home, run, "stopped", "stopped by a person", "active"), "stopped",
                         "stopped by a person", {"a": "stopped"}, {"a": "stopped; continues when the run is resumed"}),
    "failed": Situation(lambda home, run: ended(home, run, "failed", f"a: {RED}", "active", "failed", reason=RED),
                        "failed", RED, {"a": "failed"}, {"a": RED}),
    "done": Situation(lambda home, run: ended(home, run, "done", "", "active", "impl_complete", "validated"), "done",
                      "", {"a": "landed"}),
    "unchanged": Situation(lambda home, run: ended(home, run, "done", "", "active", "impl_complete", "validated",
                                                 landing="no change"),
                           "done", "", {"a": "no change"}, {"a": "no change"}),
    "journal-parked": Situation(lambda home, run: ended(home, run, "parked", "its guardian is parked: oom", "pending"),
                                "parked", "its guardian is parked: oom", {"a": "waiting"}),
    "killed": Situation(killed, "interrupted", "none of its processes is alive", {"a": "died", "b": "waiting"},
                        {"a": "waiting for a guardian; none is alive"}),
    "adhoc-run": Situation(lambda home, run: adhoc(home, run, "active"), "running"),
    "adhoc-done": Situation(lambda home, run: adhoc(home, run, "terminated", "done"), "done"),
    "adhoc-failed": Situation(lambda home, run: adhoc(home, run, "terminated", "failed"), "failed", RED),
    "adhoc-dead": Situation(lambda home, run: adhoc(home, run, "crashed", "process 7 is gone"), "interrupted",
                            "process 7 is gone"),
    "torn": Situation(torn, "corrupt", "journal"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("truth")
    with home_builder(place) as builder:
        for run, situation in SITUATIONS.items():
            situation.build(builder, run)
        yield place


@dataclass(frozen=True)
class Shown:
    """What one surface shows of a run; None: it does not show that."""

    status: str
    reason: str | None = None
    nodes: dict[str, str] | None = None
    doing: dict[str, str] | None = None


class Surfaces:
    """Everything that shows runs, each read as its reader would; what shows all of them is read once."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.capsys = home, capsys
        self._printed: dict[tuple[str, ...], str] = {}

    def garrison(self, *arguments: str) -> str:
        if arguments not in self._printed:
            main([*arguments, "--home", str(self.home)])
            self._printed[arguments] = self.capsys.readouterr().out
        return self._printed[arguments]

    @cached_property
    def _home_lines(self) -> list[RunLine]:
        return HomeObserver(self.home).lines()

    @cached_property
    def _statuses(self) -> Mapping[str, RunStatus]:
        return run_statuses(Runtime.real(self.home))

    def status_list(self, run: str) -> Shown:
        [line] = [line for line in self.garrison("status", "--all").splitlines() if re.match(rf"{run} +\S+ +\S", line)]
        return Shown(line.split()[1])

    def status_of_all_as_json(self, run: str) -> Shown:
        [body] = [body for body in json.loads(self.garrison("status", "--json")) if body["run_id"] == run]
        assert body["waiting"] == (body["status"] == "waiting")
        return self._body(body)

    def status_as_json(self, run: str) -> Shown:
        return self._body(json.loads(self.garrison("status", run, "--json")))

    def _body(self, body: dict[str, Any]) -> Shown:
        return Shown(body["status"], body["reason"], {node["node"]: node["status"] for node in body["nodes"]},
                     {node["node"]: node["doing"] for node in body["nodes"]})

    def status(self, run: str) -> Shown:
        lines = self.garrison("status", run).splitlines()
        found = re.match(rf"run {run}: (\w+), [^;]*(?:; (.*))?", lines[0])
        assert found is not None, lines[0]
        rows = lines[next((at for at, line in enumerate(lines) if line.startswith("NODE ")), len(lines)):]
        rows = rows[1:rows.index("")] if "" in rows else rows[1:]
        cells = [re.split(" {2,}", row) for row in rows]
        explained = [line.partition(": ")[2] for line in lines if re.match(r"\S+ failed in attempt \d+: ", line)]
        return Shown(found[1], found[2] or "; ".join(explained), {cell[0]: cell[1] for cell in cells})

    def top(self, run: str) -> Shown:
        rows = json.loads(self.garrison("top", "--run", run, "--json"))["rows"]
        nodes = [row for row in rows if row["kind"] == "node"]
        return Shown(next(row["state"] for row in rows if row["kind"] == "run"), None,
                     {row["name"]: row["state"] for row in nodes}, {row["name"]: row["doing"] for row in nodes})

    def metrics(self, run: str) -> Shown:
        found = re.findall(rf'garrison_run_status{{run="{run}",status="(\w+)"}} 1.0', self.garrison("metrics"))
        assert len(found) == 1, found
        return Shown(found[0])

    def page_list(self, run: str) -> Shown:
        [line] = [line for line in self._home_lines if line.run == run]
        return Shown(line.status, line.reason)

    def page(self, run: str) -> Shown:
        stream = RunStream(self.home, run)
        stream.read()
        stream.observe(HomeObserver(self.home).observe([run])[run])
        shown = asdict(stream.snapshot())
        nodes = {name: one for name, one in shown["nodes"].items() if one["state"]}
        assert all(one["status"] == one["state"] for one in nodes.values() if one["place"] in ("landing", "landed"))
        return Shown(shown["status"], shown["reason"], {name: one["state"] for name, one in nodes.items()},
                     {name: one["doing"] for name, one in nodes.items()})

    def _now(self, *words: str) -> str:
        return [line for line in self.garrison(*words).splitlines() if line.startswith("now: ")][-1]

    def why(self, run: str) -> Shown:
        last = self._now("why", "--run", run)
        if len(SITUATIONS[run].nodes) == 1:  # that node is what is asked about
            return self._told(run, dict.fromkeys(SITUATIONS[run].nodes, last))
        found = re.match(rf"now: run {run} is (\w+)", last)
        assert found is not None, last
        return Shown(found[1])

    def why_of_a_node(self, run: str) -> Shown:
        return self._told(run, {name: self._now("why", name, "--run", run) for name in SITUATIONS[run].nodes})

    def _told(self, run: str, lines: dict[str, str]) -> Shown:
        situation = SITUATIONS[run]
        return Shown(situation.status, None, {
            name: place if lines[name].startswith(f"now: {name} is {place}") else lines[name]
            for name, place in situation.nodes.items()})

    def pipeline_status(self, run: str) -> Shown:
        if run == "torn":
            return Shown("corrupt")
        body = json.loads(self.garrison("pipeline", "status", run, "--json"))
        nodes = {name: node["status"] for name, node in body.items() if name not in ("ask", "start")}
        return Shown(SITUATIONS[run].status, None, nodes)

    def clean_and_doctor(self, run: str) -> Shown:
        status = self._statuses[run].status
        is_waiting = SITUATIONS[run].status == "waiting" and status == "running"  # they need not tell the two apart
        return Shown("waiting" if is_waiting else status)


SURFACES = [name for name in vars(Surfaces) if not name.startswith("_") and name != "garrison"]


@pytest.mark.parametrize("surface", SURFACES)
def test_every_surface_has_the_same_words_for_a_run_and_its_nodes(
        home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, surface: str) -> None:
    monkeypatch.setattr("garrison.cli.top.time.sleep", lambda _seconds: None)  # no use of a processor is compared,
    monkeypatch.setattr(resource_usage, "read_processes", cache(resource_usage.read_processes))  # so one look is enough
    wrong = {}
    surfaces = Surfaces(home, capsys)
    for run, expected in SITUATIONS.items():
        shown: Shown = getattr(surfaces, surface)(run)
        agrees = shown.status == expected.status
        if shown.reason is not None:
            agrees = agrees and (expected.reason in shown.reason if expected.reason else shown.reason == "")
        if shown.nodes is not None and expected.status != "corrupt":
            agrees = agrees and shown.nodes == expected.nodes
        if shown.doing is not None:
            agrees = agrees and all(words in shown.doing[name] for name, words in expected.doing.items())
        if not agrees:
            wrong[run] = (shown, expected)
    assert not wrong, "\n".join(f"{run}: {shown}\n   not {expected}" for run, (shown, expected) in wrong.items())


def test_no_surface_shows_a_run_without_processes_as_running(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = json.loads(Surfaces(home, capsys).garrison("status", "--json"))
    assert {body["run_id"] for body in bodies} == set(SITUATIONS)
    for body in bodies:
        alive = any(layer["living"] for layer in body["layers"])
        assert alive or body["status"] not in ("new", "running", "waiting"), body["run_id"]
        assert body["reason"] or body["status"] in ("new", "running", "done"), f"{body['run_id']} gives no reason"
        assert all(node["reason"] or node["status"] != "failed" for node in body["nodes"])
