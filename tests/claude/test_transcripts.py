"""Transcripts kept in the attempt's folder: a session goes on with its past when the CLI's own files are gone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal

import pytest
from claude_agent_sdk.testing import run_session_store_conformance

from claude_scripts import again, report, work
from garrison.agents.claude.transcripts import TranscriptStore
from support import processes, wait_for


def test_the_store_conforms_to_the_sdk(tmp_path):
    """The SDK's own fourteen contracts, each with a folder of its own."""
    made = []

    def make() -> TranscriptStore:
        made.append(TranscriptStore(tmp_path / str(len(made))))
        return made[-1]

    asyncio.run(run_session_store_conformance(make, skip_optional=frozenset({"list_session_summaries"})))
    assert len(made) > 10


def test_a_lost_transcript_is_restored_and_sent_to_the_model(scene):
    """CLI killed in mid-tool, its whole folder gone: the resumed request has the past, the log-in is copied nowhere,
    and nothing is left in a temporary folder."""
    place = scene.place
    temporary = place.root / "tmp"
    temporary.mkdir()
    place.env["TMPDIR"] = str(temporary)
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    child = scene.launch(scene.graph(a=""))

    def tools() -> set[int]:
        return {one.pid for one in processes() if "sleep 987" in one.argv
                and str(place.home) in one.environ.get("GARRISON_HOME", "")}

    old = wait_for("the tool runs", tools)
    config = place.home / "claude"
    (config / ".credentials.json").write_text("{}")
    copies = scene.folder("a") / "transcripts"
    kept = wait_for("the copy is begun", lambda: next(copies.glob("*/*.jsonl"), None))
    wait_for("the call is in the copy", lambda: "sleep 987" in kept.read_text())
    pid = scene.cli("a")
    assert pid is not None
    lost = scene.folder("a") / "config"
    wait_for("the transcript is lost", lambda: shutil.rmtree(lost, ignore_errors=True) or not lost.exists())
    os.kill(pid, signal.SIGKILL)
    place.pid("orchestrator-a", incarnation=2)
    wait_for("the orphans are gone", lambda: not old & tools())
    assert place.finish(child) == 0, place.logs()
    resumed = next(one for one in scene.calls("a") if "RESUMPTION CONTEXT" in one.asked.prompt)
    assert "I write a." in json.dumps(resumed.body["messages"][:-1]), "the transcript was sent"
    assert "Do a." in json.dumps(resumed.body["messages"][:-1])
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
