"""Several runs of a home at once: one stream for all, the list of runs, new and removed ones, their status."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from garrison.records import run as run_records
from garrison.records.journal import Writer
from garrison.records.run import RunFiles
from garrison.values import replace
from garrison.views.page_view import HomeObserver
from garrison.views.run_view import RunReader
from garrison.web import routes
from garrison.web.metrics import run_metrics
from top_support import HomeBuilder
from web_support import PATIENCE, ServerEvent, Site, Stream, site

BOTH = "/api/events?run=r1&run=r2&runs=1"


def begin(builder: HomeBuilder, guardian: Writer, node: str) -> None:
    guardian.append("node", {"node": node, "status": "active", "attempt": 1}, builder.now())


async def snapshots(stream: Stream) -> dict[str, ServerEvent]:
    found = [await stream.until("snapshot") for _ in range(2)]
    return {one.data["run"]: one for one in found}


async def test_the_first_run_of_a_home_is_listed_at_once(tmp_path: Path, builder: HomeBuilder) -> None:
    async with site(tmp_path, observe_every=1000.0) as here:
        assert (await here.get("/")).status == 200 and (await here.get("/api/runs")).json == []
        assert (await here.get("/api/events")).status == 400
        stream = await here.stream("/api/events?runs=1")
        told = (await stream.until("runs")).data
        assert told == {"home": str(tmp_path), "runs": []}
        builder.run("r1", "a").close()
        assert [one["run"] for one in (await stream.until("runs")).data["runs"]] == ["r1"]
        builder.run("r2", "a").close()
        assert {one["run"] for one in (await stream.until("runs")).data["runs"]} == {"r1", "r2"}


async def test_the_first_event_can_be_had_alone_and_the_stream_continues_after_it(tmp_path: Path,
                                                                                builder: HomeBuilder) -> None:
    guardian = builder.run("r1", "a")
    async with site(tmp_path) as here:
        async def first_event(query: str) -> list[str]:
            [event] = filter(None, (await here.get(f"/api/events?{query}&first=1")).body.decode().split("\n\n"))
            return event.split("\n")

        first, name, data = await first_event("run=r1")
        assert name == "event: snapshot" and json.loads(data.removeprefix("data: "))["run"] == "r1"
        assert (await first_event("run=gone"))[0] == "event: gone"
        assert (await first_event("runs=1"))[0] == "event: runs"
        guardian.append("node", {"node": "a", "status": "active", "attempt": 1}, builder.now())
        stream = await here.stream("/api/events?run=r1", after=first.removeprefix("id: "))
        found = await stream.next()
        assert found is not None and found.event == "change", "nothing again, nothing missed"


async def test_the_disk_usage_of_a_run_has_its_own_address(tmp_path: Path, builder: HomeBuilder) -> None:
    builder.run("r1", "a").close()
    async with site(tmp_path) as here:
        before = (await here.get("/api/runs/r1/disk")).json
        assert before["records"] > 0 and before["worktrees"] == 0
        (RunFiles(tmp_path, "r1").root / "output.log").write_bytes(b"x" * 100_000)
        after = (await here.get("/api/runs/r1/disk")).json
        assert after["records"] - before["records"] >= 100_000
        assert (await here.get("/api/runs/r9/disk")).status == 404


async def test_one_stream_of_several_runs_continues_in_each(tmp_path: Path, builder: HomeBuilder) -> None:
    first, second = builder.run("r1", "a", "b"), builder.run("r2", "a", "b")
    async with site(tmp_path) as here:
        stream = await here.stream(BOTH)
        shown = await snapshots(stream)
        assert set(shown) == {"r1", "r2"} and [one["run"] for one in (await stream.until("runs")).data["runs"]]
        begin(builder, first, "a")
        one = await stream.until("change")
        begin(builder, second, "a")
        two = await stream.until("change")
        assert (one.data["run"], two.data["run"]) == ("r1", "r2")
        assert two.id == f"{one.data['id']},{two.data['id']}", "its position in both"
    begin(builder, second, "b")
    begin(builder, first, "b")
    async with site(tmp_path) as here:
        again = await here.stream(BOTH, after=two.id)
        missed = [await again.until("change") for _ in range(2)]
        assert [(told.data["run"], told.data["node"]) for told in missed] == [("r1", "b"), ("r2", "b")]
        assert not any(told.event == "snapshot" for told in again.seen)
        half = await here.stream(BOTH, after=f"{one.data['id']},")
        assert (await half.until("change")).data["run"] == "r1"
        assert (await half.until("snapshot")).data["run"] == "r2", "whose events it has not seen"


async def test_a_missing_run_does_not_affect_the_others(tmp_path: Path, builder: HomeBuilder) -> None:
    guardian = builder.run("r2", "a")
    async with site(tmp_path) as here:
        assert (await here.get("/api/events?run=r1")).status == 404
        stream = await here.stream(BOTH)
        assert (await stream.until("gone")).data["run"] == "r1"
        assert (await stream.until("snapshot")).data["run"] == "r2"
        begin(builder, guardian, "a")
        assert (await stream.until("change")).data["run"] == "r2"


async def test_a_removed_run_is_gone_and_its_name_can_be_reused(tmp_path: Path, builder: HomeBuilder) -> None:
    builder.run("r1", "old").close()
    async with site(tmp_path, observe_every=0.05) as here:
        stream, alone = await here.stream("/api/events?run=r1&runs=1"), await here.stream("/api/events?run=r1")
        await stream.until("snapshot")
        shutil.rmtree(RunFiles(tmp_path, "r1").root)
        assert "removed" in (await stream.until("gone")).data["why"]
        assert [one.event for one in (await alone.rest())[-2:]] == ["gone", "bye"], "there is nothing more"
        builder.run("r1", "new").close()
        again = await here.stream("/api/events?run=r1&runs=1")
        assert "new" in (await again.until("snapshot")).data["nodes"]


def make_ad_hoc(files: RunFiles) -> None:
    launch = run_records.load(run_records.Launch, files.launch)
    run_records.save(files.launch, replace(launch, adhoc=True))
    files.journal.unlink()


async def test_page_list_and_status_agree_on_the_status_of_a_run(tmp_path: Path, builder: HomeBuilder) -> None:
    """An ad-hoc run has no journal with its status; a damaged journal would show another one."""
    for run in ("adhoc", "torn", "lost"):
        builder.run(run, "a").close()
        builder.incarnation("guardian", "crew", run)
    make_ad_hoc(RunFiles(tmp_path, "adhoc"))
    torn = RunFiles(tmp_path, "torn").journal
    torn.write_bytes(b"{}\n" + torn.read_bytes())
    RunFiles(tmp_path, "lost").journal.unlink()
    async with site(tmp_path) as here:
        async def shown(run: str) -> str:
            stream = await here.stream(f"/api/events?run={run}")
            status = (await stream.until("snapshot")).data["status"]
            stream.close()
            return str(status)

        for status in ("new", "running"):
            expected = {"adhoc": status, "torn": "corrupt", "lost": "corrupt"}
            async with asyncio.timeout(PATIENCE):
                while await shown("adhoc") != status:  # until the last observation counts as old
                    await asyncio.sleep(0.05)
            assert {run: await shown(run) for run in expected} == expected
            assert {each["run"]: each["status"] for each in (await here.get("/api/runs")).json} == expected
            assert {run: RunReader(tmp_path).read(run).status for run in expected} == expected
            for run in expected:
                builder.incarnation("runner", "a", run)


def test_list_and_metrics_count_open_questions(tmp_path: Path, builder: HomeBuilder) -> None:
    def waiting(reader: RunReader) -> list[int]:
        page = HomeObserver(tmp_path).lines()[0].gates
        metric = next(metric for metric in run_metrics([reader.read("r1")]) if metric.name == "garrison_questions_open")
        return [page, len(reader.read("r1", details=False).questions), int(metric.samples[0].value)]

    guardian, reader = builder.run("r1", "a", "b"), RunReader(tmp_path)
    builder.working(guardian, "r1", "a")
    guardian.append("signal", {"id": "s1", "type": "NEEDS_INPUT", "node": "a", "from": "runner-a@r1",
                               "question": {"id": "q1", "text": "which?"}}, builder.now())
    assert waiting(reader) == [0, 0, 0], "its agent is at work again: it was settled in another way"
    folder = RunFiles(tmp_path, "r1").attempt("a", 1) / "claude"
    folder.mkdir(parents=True)
    (folder / "waiting").write_text("for an answer: which?")
    assert waiting(reader) == [1, 1, 1]
    option = {"key": "Y", "label": "Yes", "target": "b", "written": "Yes"}
    guardian.append("gate", {"place": "b#1", "node": "b", "kind": "human", "text": "Ship?", "type": "single_select",
                             "default": "", "deadline": "", "signal": "", "options": [option]}, builder.now())
    assert waiting(reader) == [2, 2, 2]
    guardian.append("gate", {"place": "b#2", "node": "b", "kind": "signal", "text": "", "type": "single_select",
                             "default": "", "deadline": "", "signal": "deployed", "options": []}, builder.now())
    assert waiting(reader) == [2, 2, 2], "a signal is not a user's answer"


async def test_a_page_is_sent_the_status_of_an_ad_hoc_run_when_it_changes(tmp_path: Path, builder: HomeBuilder) -> None:
    builder.run("r1", "a").close()
    make_ad_hoc(RunFiles(tmp_path, "r1"))
    async with site(tmp_path, observe_every=0.05) as here:
        stream = await here.stream("/api/events?run=r1")
        assert (await stream.until("snapshot")).data["status"] == "new"
        builder.incarnation("runner", "a", "r1")
        while (beat := await stream.until("beat")).data.get("status") is None:
            pass  # an observation that had started before
        assert beat.data["status"] == "running"


async def test_a_fault_of_the_server_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 capfd: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("so\nit is")

    async def ask(here: Site) -> str:
        found = await here.get("/api/crew")
        assert (found.status, found.json["ok"]) == (500, False)
        return capfd.readouterr().err

    monkeypatch.delenv("GARRISON_DEBUG", raising=False)
    monkeypatch.setattr(routes.chat, "read_members", broken)
    async with site(tmp_path) as here:
        said = await ask(here)
        assert said.count("\n") == 1 and "ZeroDivisionError: so it is" in said and "test_web_runs.py:" in said
        monkeypatch.setenv("GARRISON_DEBUG", "1")
        assert "Traceback" in await ask(here)
