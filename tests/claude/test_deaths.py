"""Sessions under kill -9: of the CLI, of each process, during a turn and a tool; what they started ends with them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal

import pytest
from claude_agent_sdk.testing import run_session_store_conformance

from claude_scripts import again, past_of, report, work
from garrison.agents.claude.transcripts import TranscriptStore
from garrison.testing.turn import Fault, Turn
from support import DEADLINE, git, processes, wait_for


def wait_until_called(scene) -> set[int]:
    """Wait until the tool runs and the CLI has written the call into its transcript; return the tool's processes."""
    called = wait_for("the tool runs", scene.sleepers)
    wait_for("the CLI writes its call", lambda: any(
        "I write a." in path.read_text() for path in scene.place.folder.rglob("projects/**/*.jsonl")))
    return called


@pytest.mark.parametrize("who", ["orchestrator", pytest.param("connection", marks=pytest.mark.slow)])
def test_a_death_during_a_tool_call_is_resumed_with_its_history(scene, place, who):
    """The tool's orphans are gone, the transcript is really sent, and the work is done once. Below, the CLI is
    killed."""
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    place.commit("docs", {"docs/kept": ""})
    child = scene.launch(scene.graph(a='path="docs"'))  # where its session is found again
    old = wait_until_called(scene)
    wait_for("the connection writes it into the stream", lambda: any(
        "sleep 987" in path.read_text() for path in place.home.rglob("claude/stream.jsonl")))
    if who == "orchestrator":
        place.kill("orchestrator-a")
    else:
        os.kill(scene.connections()[0], signal.SIGKILL)
    place.pid("orchestrator-a", incarnation=2)
    wait_for("the orphans are gone", lambda: not old & scene.sleepers())
    assert place.finish(child) == 0, place.logs()
    resumed = scene.first_call("RESUMPTION CONTEXT")
    assert "I write a." in past_of(resumed), "the transcript was sent"
    told = resumed.asked.prompt
    assert "This session was interrupted because its process died" in told
    assert "Bash sleep 987; echo a" in told.partition("In progress at that moment")[2], "what was cut off"
    assert "Nothing is committed on the branch yet" in told
    assert "Nobody refused anything" in told, "the CLI's notice of a refused tool is not the user's"
    messages = json.loads(place.command("prompt", "a", "--json").stdout)["parts"]
    assert messages[-1]["text"].strip() == told.strip(), "it is printed as it was sent"
    assert place.finished_work() == [("a", 1, 2)]
    assert "docs/a" in git(place.repo, "ls-tree", "-r", "--name-only", "main")
    assert len(place.deaths()["orchestrator-a"]) == 1
    place.check_nothing_left()


def in_mid_turn(scene):
    """Launch a run of one node whose model hangs within its answer; return the launcher."""
    first = work("a")
    scene.players["a"] = again(Turn(first.blocks, faults=(Fault("hang", "stream", seconds=60),)),
                               after=(first, report(), "Done."))
    child = scene.launch(scene.graph(a=""))
    scene.server.wait_for(1)
    return child


@pytest.mark.slow
def test_deaths_above_do_not_disturb_a_session(scene, place):
    child = in_mid_turn(scene)
    place.kill_and_await("runner-a", "guardian-crew")
    scene.server.release()
    assert place.finish(child) == 0, place.logs()
    assert place.identity("orchestrator-a")["incarnation"] == 1
    assert len(scene.calls("a")) == 2


@pytest.mark.slow
def test_a_death_during_a_turn_with_both_transcripts_lost_starts_another_session(scene, place):
    child = in_mid_turn(scene)
    cli = scene.cli("a")
    for folder in (place.home / "claude", scene.folder("a") / "transcripts"):
        for path in folder.rglob("*.jsonl"):
            path.unlink()
    place.kill_and_await("orchestrator-a")
    assert place.finish(child) == 0, place.logs()
    assert cli is not None
    assert not [one for one in processes() if one.pid == cli]
    assert scene.endings("a")[-1] == "reported"


def test_a_stop_suspends_the_session_and_resume_continues_it(scene, place):
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    child = scene.launch(scene.graph(a=""))
    wait_until_called(scene)
    assert place.command("stop", "r1").returncode == 0
    assert child.wait(DEADLINE) == 130
    assert not [one for one in place.living_processes() if "sandbox.proxy" not in one.argv], "but its idle proxy"
    assert place.finish(place.resume()) == 0, place.logs()
    assert "I write a." in past_of(scene.first_call("RESUMPTION CONTEXT"))


def test_the_store_conforms_to_the_sdk(tmp_path):
    """The SDK's own fourteen contracts, each with a folder of its own."""
    made = []

    def make() -> TranscriptStore:
        made.append(TranscriptStore(tmp_path / str(len(made))))
        return made[-1]

    asyncio.run(run_session_store_conformance(make, skip_optional=frozenset({"list_session_summaries"})))
    assert len(made) > 10


def test_a_lost_transcript_is_restored_and_sent_to_the_model(scene, place):
    """The CLI is killed during a tool, and its folder is gone: the resumed request has the history, the log-in is not
    copied, and nothing is left in a temporary folder."""
    temporary = place.root / "tmp"
    temporary.mkdir()
    place.env["TMPDIR"] = str(temporary)
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    child = scene.launch(scene.graph(a=""))

    old = wait_for("the tool runs", scene.sleepers)
    config = place.home / "claude"
    (config / ".credentials.json").write_text("{}")
    copies = scene.folder("a") / "transcripts"
    kept = wait_for("there is a copy", lambda: next(copies.glob("*/*.jsonl"), None))
    wait_for("the call is in the copy", lambda: "sleep 987" in kept.read_text())
    pid = scene.cli("a")
    assert pid is not None
    lost = scene.folder("a") / "config"
    wait_for("the transcript is lost", lambda: shutil.rmtree(lost, ignore_errors=True) or not lost.exists())
    os.kill(pid, signal.SIGKILL)
    place.pid("orchestrator-a", incarnation=2)
    wait_for("the orphans are gone", lambda: not old & scene.sleepers())
    assert place.finish(child) == 0, place.logs()
    past = past_of(scene.first_call("RESUMPTION CONTEXT"))
    assert "I write a." in past and "Do a." in past, "the transcript was sent"
    assert place.finished_work() == [("a", 1, 2)]
    assert len(place.deaths()["orchestrator-a"]) == 1
    assert scene.endings("a") == ["crash", "reported"], "it is the same session, not a fresh one"
    assert len(list(kept.parent.glob("*.jsonl"))) == 1
    assert not list(temporary.glob("claude-resume-*"))
    assert [path.parent for path in place.home.rglob(".credentials.json")] == [config]
    rows = json.loads(place.command("cost", "--json").stdout)
    lines = [json.loads(line) for line in (scene.folder("a") / "usage.jsonl").read_text().splitlines()]
    billed = [line["usd"] for line in lines if line["kind"] == "result"]
    each = {line["message"]: line["usd"] for line in lines if line["kind"] == "call"}
    assert rows[0]["calls"] == len(each) == 3
    assert rows[0]["usd"] == pytest.approx(sum(each.values()), rel=0.2), (billed, each)
    assert oct(kept.stat().st_mode)[-3:] == "600"
