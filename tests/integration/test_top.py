"""`garrison top` on a home of real records: the frame, the commands, and the app driven without a terminal."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual import events

from garrison.cli.main import main
from garrison.cli.top_app import Top
from garrison.errors import RecordError
from garrison.values import asdict
from garrison.views.top_frame import Frame, FrameReader
from support import DEADLINE, UserWorld, wait_for
from top_support import HomeBuilder, build_busy_run, home_builder


@pytest.fixture
def home(user: UserWorld) -> Iterator[HomeBuilder]:
    with home_builder(user.home) as builder:
        yield builder


def row(frame: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in frame["rows"] if one["name"] == name)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = main([*arguments])
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


@pytest.mark.smoke
def test_a_frame_shows_records_and_proc(home: HomeBuilder) -> None:
    build_busy_run(home)
    spinning = home.run("other", "spin")
    home.incarnation("guardian", "crew", "other")
    home.working(spinning, "other", "spin", command="while :; do :; done")
    reader = FrameReader(home.home)
    asdict(reader.read())
    frame = wait_for("the busy one has had the processor", lambda: (row(
        found := asdict(reader.read()), "spin")["cpu"] or 0) > 5 and found)
    states = {one["name"]: one["state"] for one in frame["rows"] if one["run"] == "crew-1"}
    assert states == {"crew-1": "running", "launch": "alive", "guardian-crew": "alive", "processor-crew": "alive",
                      "format_all": "landed", "add_tests": "working", "docs": "queued", "search_index": "died",
                      "release_notes": "waiting"}
    assert row(frame, "guardian-crew")["doing"] == "2 at work, 1 to land, 1 waiting"
    tests, spin = row(frame, "add_tests"), row(frame, "spin")
    assert (tests["lives"], tests["attempt"], tests["usd"], tests["processes"]) == ("1+3", 1, 0.4321, 2)
    assert tests["beat_s"] < DEADLINE
    assert tests["memory"] > 50_000
    assert spin["cpu"] > 5 > tests["cpu"]
    assert row(frame, "crew-1")["processes"] == 7
    assert frame["used"]["processes"] == 10
    assert frame["usd_today"] == 0.4321
    assert frame["agents"] == {"running": 3, "max": 8}
    assert [(one["position"], one["node"], one["status"]) for one in frame["landing"]] == [(1, "docs", "queued")]
    assert [(one["kind"], one["agent"], one["life"], one["why"]) for one in frame["events"]] == [
        ("respawned", "runner-add_tests@crew-1", 2, "first restart in the window: at once"),
        ("died", "runner-add_tests@crew-1", 1, "process 4711 is gone")]


def test_a_change_is_in_the_next_frame(home: HomeBuilder) -> None:
    guardian = home.run("r1", "a", "b")
    home.incarnation("guardian", "crew", "r1")
    reader = FrameReader(home.home)
    assert row(asdict(reader.read()), "a")["state"] == "waiting"
    home.working(guardian, "r1", "a")
    assert row(asdict(reader.read()), "a")["state"] == "working"
    home.sleepers[-1].kill()
    home.sleepers[-1].wait()
    assert row(asdict(reader.read()), "a")["state"] == "died"
    guardian.append("node", {"node": "a", "status": "failed", "attempt": 1, "reason": "exit code 1"}, home.now())
    guardian.append("run", {"status": "failed", "reason": "a failed"}, home.now())
    assert row(asdict(reader.read()), "r1")["state"] == "failed"
    guardian.append("run", {"status": "failed", "reason": "another word"}, home.now())
    assert "another word" in row(asdict(reader.read()), "r1")["doing"]


def test_text_json_and_refusals(home: HomeBuilder, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garrison.cli.top.time.sleep", lambda _seconds: None)  # no use of a processor is compared
    empty = command("top")
    assert (empty.returncode, "no run yet" in empty.stdout, "no runs in" in empty.stderr) == (0, True, True)
    build_busy_run(home)
    once = command("top", "--once")
    assert (once.returncode, once.stderr, "\x1b" in once.stdout) == (0, "", False)
    for words in ("add_tests", "merge queue  1", "waiting for search_index", "process 4711 is gone", "$0.43"):
        assert words in once.stdout
    asked = command("top", "--json", "--run", "crew-1")
    assert row(json.loads(asked.stdout), "docs")["state"] == "queued"
    missing = command("top", "--run", "crew-2")
    assert (missing.returncode, missing.stderr.count("\n"), "did you mean crew-1?" in missing.stderr) == (1, 1, True)
    assert command("top", "--interval", "0").returncode == 2


def test_respawn_signals_the_runner_once_and_needs_a_living_agent(home: HomeBuilder, command: Command) -> None:
    build_busy_run(home)
    for _ in range(2):
        done = command("agents", "respawn", "add_tests")
        assert (done.returncode, done.stderr) == (
            0, "incarnation 3 of orchestrator-add_tests@crew-1 ends and the next one starts\n")
    orders = [json.loads(path.read_text()) for path in (home.home / "signals/runner-add_tests@crew-1").glob("*.json")]
    assert {(one["id"], one["signal_type"], one["payload"]["incarnation"]) for one in orders} == {
        ("orchestrator-add_tests@crew-1-3-kill", "KILL_ORCHESTRATOR", 3)}
    refused = command("agents", "respawn", "release_notes")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "is not alive" in refused.stderr


# ---------------------------------------------------------------------------------------------------------- the app


async def until(pilot: Any, good: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not good():
        assert time.monotonic() < end, screen(pilot.app)
        await pilot.pause(0.02)


def screen(app: Top) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def drive(home: HomeBuilder, play: Callable[[Any, Top], Any], size: tuple[int, int] = (80, 24), **options: Any) -> None:
    async def work() -> None:
        app = Top(FrameReader(home.home), **{"interval": 0.2, **options})
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.frame is not None)
            await play(pilot, app)

    asyncio.run(work())


def test_keys_choose_filter_show_details_and_resize(home: HomeBuilder) -> None:
    build_busy_run(home)

    async def play(pilot: Any, app: Top) -> None:
        await pilot.press("j", "j")
        assert "docs: next in the merge queue" in screen(app)
        await pilot.press("enter")
        assert "docs of run crew-1" in screen(app)
        assert "phase      validating" in screen(app)
        await pilot.press("q")
        for key in ("slash", *"tests"):  # as a terminal hands over what is pasted: none waits for another
            app.post_message(events.Key(key, key if len(key) == 1 else "/"))
        await until(pilot, lambda: "tests" in screen(app).splitlines()[-2])
        await pilot.press("enter")
        shown = screen(app)
        assert "add_tests" in shown
        assert "search_index" not in shown
        assert "filter: tests" in shown
        await pilot.press("escape")
        assert "search_index" in screen(app)
        await pilot.resize_terminal(140, 40)
        await until(pilot, lambda: "PHASE" in screen(app))
        assert all(len(line) == 140 for line in screen(app).splitlines())
        await pilot.press("home")
        assert "crew-1: 1 of 5 landed" in screen(app)
        await pilot.click(offset=(5, 8))
        assert app.selected == "crew-1/node/add_tests"
        await pilot.press("q")

    drive(home, play, interval=60.0)


def test_actions_run_commands_and_show_their_output_and_a_failed_refresh_is_retried(
        home: HomeBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build_busy_run(home)
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\nshift 3\necho "$GARRISON_HOME $*" >> "' + str(tmp_path / "said") + '"\n'
                    'case "$1" in why) printf "because of\\n  this\\n"; exit;; esac\n'
                    'echo "garrison: cannot $2" >&2; exit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))

    async def play(pilot: Any, app: Top) -> None:
        await pilot.press("home", "a")
        assert "select a node first" in screen(app)
        await pilot.press("j", "j", "j", "j", "j", "p")
        assert "Park add_tests (run crew-1)" in screen(app)
        await pilot.press("n")
        assert "Park" not in screen(app)
        await pilot.press("p", "y")
        await until(pilot, lambda: "garrison: cannot park" in screen(app))
        await pilot.press("u", "y")
        await until(pilot, lambda: "garrison: cannot unpark" in screen(app))
        await pilot.press("r", "y")
        await until(pilot, lambda: "garrison: cannot respawn" in screen(app))
        await pilot.press("w")
        await until(pilot, lambda: "because of" in screen(app) and "\n  this" in screen(app))
        await pilot.press("escape", "l")
        assert "logs needs a terminal" in screen(app)
        await pilot.press("escape")
        real = app.reader.read

        def broken() -> Frame:
            raise RecordError("the disk is gone")

        monkeypatch.setattr(app.reader, "read", broken)
        await until(pilot, lambda: "cannot read" in screen(app))
        assert "add_tests" in screen(app)
        monkeypatch.setattr(app.reader, "read", real)
        before = app.frame
        await until(pilot, lambda: app.frame is not before)
        assert "cannot read" not in screen(app)

    drive(home, play)
    rest = "add_tests --run crew-1"
    assert (tmp_path / "said").read_text().splitlines() == [f"{home.home} {words} {rest}" for words in (
        "agents park", "agents unpark", "agents respawn", "why")]
