"""`garrison status`: views fit every width, with and without colours, and agents' text is cleaned."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from garrison.cli import status as render
from garrison.cli import why
from garrison.cli.main import main
from garrison.cli.render import StyledText, table, text, width
from garrison.cli.terminal import frame, terminal_of
from garrison.config import Timing
from garrison.ends import WaitKind
from garrison.pipeline.questions import OpenWait, Question
from garrison.records import run as run_records
from garrison.records.run import Launch
from garrison.records.store import Store
from garrison.run.state import NodeState
from garrison.run.status import Status
from garrison.sandbox.proxy.allowed_hosts import HostRights, RefusedHost
from garrison.values import fields_of, replace
from garrison.views.limits import Used, limits
from garrison.views.node_view import FailedNode, Incarnations, NodeView
from garrison.views.page_view import run_line
from garrison.views.process_view import ProcessView
from garrison.views.run_view import RunInFull, RunReader, RunView
from garrison.views.usage import RunCosts
from garrison.views.waits import PersonWait, show_question
from timeline_support import Story, TimedHome

EVIL = "\x1b]0;owned\x07\x1b[2Jred 日本語\x07"


def layer(role: str, name: str, incarnation: int) -> ProcessView:
    return ProcessView(f"{role}-{name}@r1", role, name, "active", incarnation, "alive", True, "executing", 4711, 0.4,
                     False, 90.0, None, "process 4711 is alive")


def node(name: str, place: str, doing: str = "its agent is working", attempt: int = 1) -> NodeView:
    journaled = fields_of(NodeState(attempt=attempt))
    del journaled["status"]
    return NodeView(**journaled, node=name, place=place, doing=doing, asks=False, parking=None, phase="executing",
                    agent_phase="executing", state="queued" if place == "landing" else place, signs=None, attempts=3,
                    deaths=0, incarnations=Incarnations(1, 2), runner=layer("runner", name, 1),
                    agent=layer("orchestrator", name, 2), since_s=75.0, refused_hosts=[])


def view(*nodes: NodeView, in_full: bool = True, **more: Any) -> RunView:
    counts = {place: sum(each.place == place for each in nodes)
              for place in ("landed", "landing", "working", "failed", "waiting")}
    failed = [FailedNode(each.node, 1, each.doing, f"one\n\t{EVIL}", "/home/runs/r1") for each in nodes
              if each.place == "failed"]
    line = RunView(**{"run_id": "r1", "status": Status.RUNNING, "reason": "", "gates": [], "questions": [],
                      "counts": counts, "total": len(nodes), "pipeline_id": "crew", "repo": "/repo", "base": "main",
                      "adhoc": False, "created_at": "", "age_s": 90.0, "step": "",
                      "processes": [layer("guardian", "crew", 2)], "deaths": 0, "folder": "/home/runs/r1", **more})
    return RunInFull(**fields_of(line), nodes=list(nodes), failed=failed, queue=None, landing=[], events=[],
                     limits=limits(Launch("r1", "crew", "/repo", "main", "", ""), Timing(), Used())
                     ) if in_full else line


FULL = view(node("format_all", "landed", doing="landed as 0123456789"), node("add_tests", "landing"),
            node("a_very_long_name_that_goes_on_and_to_the_limit", "working"),
            node("bad", "failed", doing=f"exit code 3: {EVIL}"),
            node("later", "waiting", doing="waiting for add_tests"),
            step=f"its launcher is not running {EVIL}", reason=EVIL)


@pytest.mark.parametrize("columns", [None, 200, 100, 60, 40, 20])
def test_everything_is_shown_at_every_width(columns: int | None) -> None:
    lines = [*render.render_overview([FULL], columns), *render.render_run(FULL, columns, verbose=True)]
    folder = "  /home/runs/r1"  # a path is not cut: it is there to be copied
    assert all(columns is None or width(line) <= columns or line[-1].text == folder.strip() for line in lines)
    said = text(lines, colours=False)
    assert "\x1b" not in said
    assert "\x07" not in said
    for word in ("r1", "running", "queued", "working", "failed", "waiting", "guardian", "日本語", "--max-respawn"):
        assert word in said, (columns, word)
    assert columns is not None or "a_very_long_name_that_goes_on_and_to_the_limit" in said


@pytest.mark.parametrize(("terminal", "environ", "colours", "in_place"), [
    (True, {"TERM": "xterm"}, True, True), (False, {"TERM": "xterm"}, False, False),
    (True, {"TERM": "dumb"}, False, False), (True, {"TERM": "xterm", "NO_COLOR": "1"}, False, True),
    (False, {"FORCE_COLOR": "1"}, True, False), (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, False, False)])
def test_colours_are_the_only_escapes_and_follow_the_environment(terminal: bool, environ: dict[str, str],
                                                                 colours: bool, in_place: bool) -> None:
    here = terminal_of(terminal, environ, (80, 24))
    assert (here.colours, here.interactive, here.columns) == (colours, in_place, 80 if terminal else None)
    shown, plain = (text(render.render_run(FULL, 100), colours=each) for each in (colours, False))
    assert ("\x1b[1;31mfailed" in shown) == colours
    assert [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()] == plain.splitlines()


@pytest.mark.parametrize(("counts", "room"), [
    ((5, 0, 0, 0, 0, 0, 0, 0, 0, 0), 30), ((1, 0, 1, 1, 1, 96, 0, 0, 0, 0), 30), ((0, 0, 3, 2, 0, 7, 0, 1, 0, 0), 8),
    ((1, 1, 0, 0, 1, 0, 2, 0, 1, 0), 9), ((999, 0, 1, 0, 0, 0, 0, 0, 0, 0), 8), ((1, 1, 1, 1, 1, 1, 1, 1, 0, 0), 8)])
def test_the_bar_is_full_and_shows_every_place(counts: tuple[int, ...], room: int) -> None:
    named = dict(zip(render.BLOCKS, [*counts, *[0] * (len(render.BLOCKS) - len(counts))], strict=True))
    found = render.bar_shares(named, sum(counts), room)
    assert sum(found.values()) == room
    assert all((share > 0) == (named[place] > 0) for place, share in found.items()), found


def test_a_table_becomes_blocks_on_a_narrow_screen_and_a_frame_never_scrolls() -> None:
    rows = [[StyledText("a"), StyledText("up"), StyledText("1"), StyledText("why " * 20)]]
    assert text(table(("NAME", "STATUS", "N", "WHY"), rows, 44), colours=False).startswith("NAME  STATUS  N  WHY\na ")
    assert text(table(("NAME", "STATUS", "N", "WHY"), rows, 22), colours=False).startswith("a  up\n  n 1\n  why why")
    lines = render.render_run(FULL, 60, verbose=True)
    drawn = frame(lines, terminal_of(True, {"TERM": "xterm", "NO_COLOR": "1"}, (60, 12)))
    assert drawn.count("\n") == 11
    assert "more lines" in drawn.splitlines()[-2]
    assert drawn.startswith("\x1b[H")


def test_a_short_status_leaves_out_what_is_normal() -> None:
    dead = replace(layer("runner", "bad", 3), verdict="dead", living=False, why="process 4711 is gone")
    new = replace(layer("runner", "new", 1), verdict="starting", why="within its start deadline")
    ran = replace(FULL, processes=[layer("guardian", "crew", 2), dead, new], reason="bad: exit code 3",
                  status=Status.FAILED)
    short, full = (text(render.render_run(ran, 200, verbose=verbose), colours=False) for verbose in (False, True))
    assert "runner-bad@r1" in short and not re.search("guardian-crew@r1|runner-new@r1|--max-respawn", short)
    assert "guardian-crew@r1" in full and "--max-respawn" in full
    assert ("PHASE      ATTEMPT" in full, "ATTEMPT" in short) == (True, False)
    assert short.count("exit code 3") == 1, "a reason once"
    assert short.splitlines()[-1] == "next: its launcher is not running red 日本語", "the next step comes last"
    over = text(render.render_run(replace(ran, step=""), 200), colours=False)
    assert over.splitlines()[-1] == "next: `garrison resume r1 --retry-failed` retries the failed nodes"


def test_why_ends_with_the_complete_line_that_allows_a_refused_host() -> None:
    host = RefusedHost("pypi.example.org:443", "not allowed", "", "", entry="pypi.example.org")
    failed = replace(node("bad", "failed"), refused_hosts=(host,),
                     host_settings=HostRights(Path("/h/" * 30 + "config.toml"), ("default",)))
    told = why.cut(why.tell_node(view(failed, status=Status.FAILED), failed, {}), 80)
    said = re.sub(r"\n *", " ", text(told, colours=False)).strip()
    assert "network: bad: pypi.example.org:443 was refused" in said
    assert said.endswith('config.toml: hosts = ["default", "pypi.example.org"]'), said
    undone = view(node("back", "undone"), status=Status.DONE, step="")
    assert why.tell_run(undone)[-1].startswith("next: `garrison merge-queue retry back` enqueues it again, ")


@pytest.mark.parametrize(("waits", "last"), [
    (1, "waits for you: park0 is parked: `garrison agents unpark park0 --run r1` lets it continue (not now)"),
    (2, "and 1 more: `garrison status r1 --verbose`"), (9, "and 8 more: `garrison status r1 --verbose`")])
def test_twelve_nodes_fit_a_small_terminal_and_waits_come_last(waits: int, last: str, tmp_path: Path) -> None:
    """Each node has a line with its full name; failures are explained if there is room."""
    asked = [PersonWait(WaitKind.PARKED, "not now", f"park{number}") for number in range(waits)]
    long = [node(f"a_name_of_as_many_words_as_fit_{number}", "working", doing="much to say " * 20)
            for number in range(9)]
    failed = [node(f"bad_{number}", "failed", doing=f"exit {number}") for number in range(3)]
    earlier = [view(run_id=f"old-{number}", status=Status.DONE, reason="red " * 40, in_full=False, repo=str(tmp_path))
               for number in range(8)]
    runs = [*earlier, view(*long, *failed, waits=asked)]
    command = render.StatusTable(RunReader(tmp_path), None, verbose=False, everything=False)
    lines = command.picture(runs, 80)
    assert len(lines) <= render.SCREEN and all(width(line) <= 80 for line in lines)
    said = text(lines, colours=False)
    assert all(each.node in said for each in long)
    assert all(f"exit {number}" in said for number in range(3)) and "see: " not in said
    assert said.startswith("old-") and "more: `garrison status --all`" in said
    assert " ".join(said.split()).endswith(last)
    assert "see: " in text(command.picture([*earlier, view(failed[0])], 80), colours=False)


def test_the_first_start_of_an_attempt_counts_as_no_restart() -> None:
    again = view(replace(node("a", "working", attempt=2), runner=layer("runner", "a", 2)))
    said = text(render.render_run(again, None, verbose=True), colours=False)
    assert re.search(r"^a +working +executing +2/\d+ +- ", said, re.MULTILINE), said
    said = text(render.render_run(FULL, None, verbose=True), colours=False)
    assert re.search(r"^format_all +landed +executing +1/\d+ +1 ", said, re.MULTILINE), said
    assert "attempt 2: its agent is working" in text(render.render_run(again, None), colours=False)


def test_each_change_is_printed_once() -> None:
    first = render.changed_lines(None, FULL)
    assert len(first) == 2 + 5
    assert render.changed_lines(FULL, FULL) == []
    first_two, last, rest = FULL.details.nodes[:2], FULL.details.nodes[2], FULL.details.nodes[3:]

    def with_last(node: NodeView) -> RunView:
        return replace(FULL.details, nodes=[*first_two, node, *rest])

    assert render.changed_lines(FULL, with_last(replace(last, since_s=99.0))) == [], "an age is not an event"
    assert render.changed_lines(FULL, with_last(replace(last, attempt=2))) == [
        "a_very_long_name_that_goes_on_and_to_the_limit: working, executing, attempt 2: its agent is working"]


def test_a_run_that_waits_for_the_user_shows_the_question() -> None:
    gate = OpenWait("ask#1", "human", Question("ask#1", "ask", f"Ship it? {EVIL}"))
    waits = view(node("a", "landed"), status=Status.WAITING, gates=[gate],
                 waits=[PersonWait(WaitKind.GATE, gate.question.text, "ask", show_question(gate))])
    said = text(render.render_run(waits, None), colours=False)
    assert said.startswith("run r1: waiting, 1 of 1 landed")
    assert "ask asks you: Ship it?" in said.splitlines()[-1] and "\x1b" not in said
    assert any("Ship it?" in line for line in render.changed_lines(None, waits))
    assert render.changed_lines(waits, waits) == []


def test_a_node_that_asks_is_counted_once_in_the_list_of_runs() -> None:
    """As on the page of the run; approvals are asked for at the landing."""
    line = run_line(view(counts={"landed": 1, "working": 3, "landing": 1}, asking={"working": 2, "landing": 1}),
                    RunCosts({}, {}, 0.0))
    assert line.counts == {"landed": 1, "working": 1, "asking": 3}


def test_finished_runs_are_read_only_if_they_are_shown(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    home = TimedHome(tmp_path / "home")
    for number in range(12):
        told = Story(home, f"r{number}")
        repo = "/other" if number == 11 else str(tmp_path)
        run_records.save(told.files.launch, Launch(told.run, "p", repo, "main", home.now(), "/trees"))
        os.utime(told.files.launch, (number, number))
        told.guardian(0, "run", status="running")
        told.node(1, "a", "active")
        told.guardian(2, "run", status="failed" if number == 1 else "done")
        if number == 2:
            told.guardian(3, "run", status="running")
    read, listed = list[str](), list[object]()
    reading, listing = RunReader.read, Store.keys
    monkeypatch.setattr(RunReader, "read", lambda *arguments, **named: read.append(arguments[1]) or reading(
        *arguments, **named))
    monkeypatch.setattr(Store, "keys", lambda *arguments: listed.append(arguments) or listing(*arguments))
    monkeypatch.setenv("GARRISON_HOME", str(home.home))
    monkeypatch.chdir(tmp_path)

    def shown(*words: str) -> str:
        read.clear()
        listed.clear()
        assert main([*words]) == 0
        return capsys.readouterr().out

    said = shown("status")
    assert set(read) == {"r1", "r2", "r6", "r7", "r8", "r9", "r10"}  # one failed, one restarted, the last five
    assert [line.split()[0] for line in said.splitlines()[:6]] == ["r1", "r6", "r7", "r8", "r9", "r10"]
    assert "5 more: `garrison status --all`" in said
    assert len(json.loads(shown("status", "--json"))) == len(read) == 12
    shown("status", "--all")
    assert set(read) == {f"r{number}" for number in range(12)}
    assert len(listed) == 2  # for all, and for the run that is shown in full
    shown("answer")
    assert set(read) == {"r1", "r2"}
    shown("why", "a")
    assert read == ["r10"] and len(listed) < 5
    monkeypatch.chdir("/")
    assert "r11" in shown("status")
    assert set(read) == {"r1", "r2", "r7", "r8", "r9", "r10", "r11"}  # the last five of all


def test_a_repository_with_many_runs_lists_the_unfinished_and_the_last_five(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = [view(run_id=f"r{number}", repo=str(tmp_path), status=Status.DONE, in_full=False) for number in range(9)]
    others = [view(run_id="o", repo="/other", status=Status.DONE, in_full=False)]
    stopped = [view(run_id="s", repo=str(tmp_path), status=Status.STOPPED, in_full=False, step="it waits")]
    listed = render.list_recent([*stopped, *mine, *others])
    assert [each.run_id for each in listed] == ["s", "r4", "r5", "r6", "r7", "r8"]
    assert [each.run_id for each in render.of_this_folder([*mine, *others, *stopped])][-2:] == ["r8", "s"]
    hinted = replace(stopped[0], step="`garrison resume s` continues it", reason="stopped by a person")
    assert text(render.render_recent([hinted], 0, 120), colours=False).endswith("; `garrison resume s` continues it\n")
    monkeypatch.chdir("/")
    assert [each.run_id for each in render.list_recent([*mine, *others])] == ["r5", "r6", "r7", "r8", "o"]
