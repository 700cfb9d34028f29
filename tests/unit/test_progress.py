"""Progress that a launcher prints, as text or as JSON; a closed pipe stops nothing."""

from __future__ import annotations

import io
import json
import sys

import pytest

from garrison.cli.workflows import ProgressPrinter
from garrison.processes.loop import log_line
from garrison.records.events import (
    MACHINE,
    REPAIR,
    ChildDied,
    ChildParked,
    ChildSpawned,
    Event,
    GuardianSignal,
    NodeChanged,
    NoteWritten,
    ProcessOpened,
    RunChanged,
)
from garrison.records.journal import Entry
from garrison.run.progress import RunProgress, describe_event
from garrison.run.state import NodeState, RunState
from garrison.workflow import StepStatus
from garrison.workflow.executor import Progress

AT = "2026-01-31T12:34:56.000000Z"

CRASHED = GuardianSignal("1", "ORCHESTRATOR_CRASHED", "a", why="killed by SIGKILL")
WORDS: list[tuple[Event, str]] = [
    (NodeChanged("a", "active"), "a: working"),
    (NodeChanged("a", "pending"), ""),
    (NodeChanged("a", "impl_complete"), "a: queued"),
    (NodeChanged("a", "validated", commit="0123456789abcdef"), "a: landed (0123456789)"),
    (NodeChanged("a", "failed", reason="exit code 1"), "a: failed: exit code 1"),
    (NodeChanged("a", "failed", reason="the gate is red\n\nTraceback\n  x\n2 failed\n"),
     "a: failed: the gate is red; … 2 failed"),
    (NodeChanged("a", "active", 2, "conflict in b.py"), "a: attempt 2: conflict in b.py"),
    (NodeChanged("a", "active", 2), "a: attempt 2: requested"),
    (GuardianSignal("1", "X", effect=NodeChanged("a", "active")), "a: working"),
    (CRASHED, "orchestrator-a died (killed by SIGKILL)"),
    (GuardianSignal("1", "ORCHESTRATOR_CRASHED", "a", why="stopped", departure="stopped"), ""),
    (GuardianSignal("1", "NODE_COMPLETE", "a"), ""),
    (RunChanged("running"), "run running"),
    (GuardianSignal("1", "GUIDANCE", resume={}, run="running"), "run running: resumed"),
    (GuardianSignal("1", "GUIDANCE", resume={}), ""),
    (RunChanged("stopped", "stopped by a person"), "run stopped: stopped by a person"),
    (RunChanged("failed", "a failed"), ""),
    (ChildDied("runner-a@r1", 2, 1.0, "b", why="process 7 is gone"),
     "runner-a died (incarnation 2): process 7 is gone"),
    (ChildSpawned("runner-a@r1", 1), ""),
    (ChildSpawned("runner-a@r1", 2), "runner-a restarted (incarnation 2)"),
    (ChildSpawned("runner-a@r1", 2, why="attempt 2"), ""),
    (ChildSpawned("runner-a@r1", 2, why="attempt 2", follows="nothing"), ""),
    (ChildSpawned("runner-a@r1", 2, why="attempt 2", follows="end"), "runner-a restarted (incarnation 2)"),
    (ChildParked("runner-a@r1", 6, "6 deaths"), "runner-a is parked: 6 deaths"),
    (ProcessOpened(1, 7), ""),
]


@pytest.mark.parametrize(("event", "words"), WORDS)
def test_an_event_has_its_line(event: Event, words: str) -> None:
    assert describe_event(event) == words


def entry(status: str) -> Entry:
    return Entry(3, 1, "t", AT, "node", {"node": "a", "status": status})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


DEATH = ChildDied("guardian-p@r1", 1, 1.0, "b", why="process 7 is gone")


def test_each_event_is_printed_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress()
    progress.begin("r1")
    progress.show(entry("active"))
    progress.show(entry("pending"))
    progress.death(DEATH)
    state = RunState("failed", nodes={"a": NodeState("validated"), "b": NodeState("failed")})
    progress.end("failed", "b failed", state, "1 of 2 landed")
    out = capsys.readouterr().out.splitlines()
    assert out == ["12:34:56  a: working",
                   "          guardian-p died (incarnation 1): process 7 is gone",
                   "run failed: 1 of 2 landed; b failed; "
                   "next: `garrison resume r1 --retry-failed` retries the failed nodes"]


def test_on_a_terminal_lines_break_at_words_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    monkeypatch.setenv("COLUMNS", "50")
    progress = RunProgress()
    progress.begin("r1")
    why = "the table is missing " * 2
    progress.show(Entry(3, 1, "t", AT, "node", {"node": "a", "status": "failed", "reason": why}))
    progress.end("failed", "b failed", RunState("failed"), "1 of 2 landed", "git push\ngit log")
    assert screen.getvalue().splitlines()[2:] == [
        "12:34:56  a: failed: the table is missing the", "          table is missing", "git push", "git log",
        "run failed: 1 of 2 landed; b failed; next:", "  `garrison resume r1 --retry-failed` retries the",
        "  failed nodes"]


def test_each_event_is_printed_as_json_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress(as_json=True)
    progress.show(entry("pending"))
    progress.end("done", "", RunState(nodes={"a": NodeState("validated")}), "1 of 1 landed")
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["kind"], first["seq"], first["data"]) == ("node", 3, {"node": "a", "status": "pending"})
    assert (last["kind"], last["status"], last["done"], last["nodes"]["a"]["status"]) == ("end", "done", 1, "landed")
    progress = RunProgress(quiet=True)
    progress.show(entry("active"))
    progress.death(DEATH)
    progress.end("done", "", RunState(), "0 of 0 landed")
    assert capsys.readouterr().out == "run done: 0 of 0 landed\n"


def test_a_closed_pipe_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    RunProgress().show(entry("active"))


def test_a_line_of_the_log_passes_no_escape_sequence_to_the_terminal(capsys) -> None:
    """The reason of an escalation is written by an agent, and the launcher logs to the user's terminal."""
    log_line("a is parked: \x1b]0;title\x07gone\x1b[2J\n    of two lines")
    assert capsys.readouterr().err == "a is parked: gone\n    of two lines\n"


@pytest.mark.parametrize(("who", "line"), [
    ("target", "target waits for you: it is gone"), (MACHINE, "it is gone"), (REPAIR, "it is gone")])
def test_a_note_for_the_user_is_marked(who: str, line: str) -> None:
    assert describe_event(NoteWritten(who, "it is gone")) == line


# ---- progress of a workflow: a bar with lines above it on a terminal, else JSON lines


STEPS = [Progress("[red]a", StepStatus.RUNNING, 0.0, 0, 2), Progress("[red]a", StepStatus.RUNNING, 1.0, 0, 2, "boom"),
         Progress("[red]a", StepStatus.COMPLETED, 1.5, 1, 2)]


def told(monkeypatch: pytest.MonkeyPatch, to: io.StringIO, *, as_json: bool = False) -> str:
    monkeypatch.setattr(sys, "stderr", to)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressPrinter(as_json=as_json) as printer:
        for one in STEPS:
            printer(one)
    return to.getvalue()


def test_ac_005_progress_is_json_lines_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in told(monkeypatch, io.StringIO()).splitlines()]
    assert lines == [one.to_data() for one in STEPS]
    assert {"step", "status", "elapsed", "done", "total", "error"} == lines[0].keys()
    assert told(monkeypatch, Terminal(), as_json=True) == told(monkeypatch, io.StringIO())


def test_ac_005_progress_is_a_bar_with_lines_above_it_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = told(monkeypatch, Terminal())
    assert "[0/2] [red]a is retried after 1.0 s: boom" in shown
    assert "[1/2] [red]a completed in 1.5 s" in shown
    assert "1/2" in shown.replace("[1/2]", "")
    assert "━" in shown
