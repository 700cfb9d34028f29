"""Events of the web server, on a home of real records: snapshots, changes, reconnecting clients, shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.conversation.files import AttemptFiles
from garrison.records.journal import Writer, read_all
from garrison.records.json_io import append_line
from garrison.records.run import RunFiles
from garrison.values import asdict
from garrison.views.page_view import LiveState
from garrison.views.run_view import RunReader
from garrison.web import broadcaster, sse
from garrison.web.node import LOG_BYTES
from garrison.web.run_stream import RunStream, replay_since
from top_support import HomeBuilder, apply_patch, build_busy_run
from web_support import PATIENCE, ServerEvent, Site, Stream, site

NODES = ("a", "b", "c")


def none_left(**_: Any) -> None:
    raise OSError(24, "Too many open files")


@pytest.fixture
def guardian(builder: HomeBuilder) -> Iterator[Writer]:
    """Return the journal of the guardian of `r1`, a run under way."""
    writer = builder.run("r1", *NODES)
    yield writer
    writer.close()


def at_work(builder: HomeBuilder, guardian: Writer, node: str) -> None:
    guardian.append("node", {"node": node, "status": "active", "attempt": 1}, builder.now())


def deaths(builder: HomeBuilder, run: str, node: str, number: int) -> None:
    """Append deaths of an agent to its runner's journal."""
    writer = Writer(RunFiles(builder.home, run).process_journal(f"runner-{node}"), f"runner-{node}@{run}#1")
    first = sum(1 for entry in writer.entries if entry.kind == "death")
    for life in range(first + 1, first + number + 1):
        writer.append("death", {"full": f"orchestrator-{node}@{run}", "incarnation": life, "attempt": 1, "why": "KILL",
                                "monotonic": 1.0, "boot_id": "b"}, builder.now())
    writer.close()


async def changes(stream: Stream, number: int) -> list[ServerEvent]:
    return [await stream.until("change") for _ in range(number)]


def journaled(shown: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a snapshot that come from journals."""
    observed = ("state", "phase", "doing", "cost", "cannot", "work")
    nodes = {name: {key: value for key, value in node.items() if key not in observed}
             for name, node in shown["nodes"].items()}
    return {**{part: shown[part] for part in ("status", "reason", "gates", "queue", "timeline", "signals")},
            "nodes": nodes}


@pytest.mark.smoke
async def test_a_snapshot_then_changes_and_observations(tmp_path: Path, builder: HomeBuilder) -> None:
    build_busy_run(builder)
    async with site(tmp_path, observe_every=20 * PATIENCE) as here:  # so that only inotify finds what is written
        shown = (await here.get("/api/runs/crew-1")).json
        assert (shown["status"], shown["write"], shown["dot"][:7]) == ("running", True, "digraph")
        assert shown["nodes"]["add_tests"]["deaths"] == 1 and shown["nodes"]["add_tests"]["doing"]
        assert (shown["costs"]["usd"], shown["costs"]["nodes"]) == (0.4321, {"add_tests": 0.4321})
        assert [one["node"] for one in shown["queue"]["entries"]] == ["docs"]
        living = {one["who"]: one for one in shown["layers"] if one["living"]}
        assert {"launch", "guardian-crew", "orchestrator-add_tests"} <= set(living)
        assert (await here.get("/api/runs")).json[0]["nodes_done"] == 1

        stream = await here.stream("/api/events?run=crew-1")
        first = await stream.until("snapshot")
        assert first.id == first.data["id"] and first.data["write"] and journaled(first.data) == journaled(shown)
        writer = Writer(RunFiles(tmp_path, "crew-1").journal, "guardian-crew@crew-1#1")
        writer.append("node", {"node": "release_notes", "status": "active", "attempt": 1}, builder.now())
        told = await stream.until("change")
        assert told.data["patch"]["nodes"]["release_notes"]["status"] == "working"
        builder.sleepers[0].kill()  # the launcher: no journal records that, only an observation shows it
        builder.sleepers[0].wait()
        writer.append("node", {"node": "release_notes", "status": "impl_complete", "attempt": 1}, builder.now())
        while all(one["living"] for one in (await stream.until("beat")).data.get("layers", [])
                  if one["who"] == "launch"):
            pass  # an observation that had started before
        writer.close()
    assert not (await asyncio.to_thread(lambda: [one for one in stream.seen if one.event == "bye"]))


async def test_a_client_misses_nothing_while_the_server_is_dead(tmp_path: Path, builder: HomeBuilder,
                                                                guardian: Writer) -> None:
    """Ids are places in the journals: another server continues where the last one was."""
    async with site(tmp_path) as here:
        stream = await here.stream("/api/events?run=r1")
        shown = (await stream.until("snapshot")).data
        at_work(builder, guardian, "a")
        deaths(builder, "r1", "a", 3)
        seen = await changes(stream, 4)
    for one in seen:
        shown = apply_patch(shown, one.data["patch"])
    deaths(builder, "r1", "a", 2)
    at_work(builder, guardian, "b")
    builder.enqueue("r1", "a")
    deaths(builder, "r1", "b", 1)
    async with site(tmp_path) as here:
        stream = await here.stream("/api/events?run=r1", after=seen[-1].id)
        missed = await changes(stream, 5)
        at_work(builder, guardian, "c")
        missed += await changes(stream, 1)
        for one in missed:
            shown = apply_patch(shown, one.data["patch"])
        assert not any(one.event == "snapshot" for one in stream.seen)
        assert journaled(shown) == journaled((await here.get("/api/runs/r1")).json)
        ids = [one.id for one in [*seen, *missed]]
        assert len(set(ids)) == len(ids) == 10
        again = await here.stream("/api/events?run=r1", after=missed[-2].id)
        assert (await changes(again, 1))[0].data == missed[-1].data, "from memory: the same"
        for wrong in ("nonsense", missed[-1].id.replace("-g", "-g9"), "00000000" + missed[-1].id[8:]):
            other = await here.stream("/api/events?run=r1", after=wrong)
            first = await other.next()
            assert first is not None and (first.event, first.data.get("missed")) == ("snapshot", True)


def test_a_client_can_continue_from_any_event_id(tmp_path: Path, builder: HomeBuilder) -> None:
    """From every id that was given, the replay leads to the same state, in whatever order the journals were seen."""
    build_busy_run(builder)
    for node in ("add_tests", "search_index"):
        deaths(builder, "crew-1", node, 3)
    stream = RunStream(tmp_path, "crew-1")
    journals = [stream.files.journal, stream.files.process_journal("runner-search_index"),
                stream.files.process_journal("runner-add_tests")]
    events, shown = [], [asdict(stream.snapshot())]
    for path in journals:  # not the order of the times
        for one in stream.followed.read({path}):
            events.append(one)
            shown.append(apply_patch(shown[-1], asdict(one.patch)))
    stream.read()
    whole = journaled(asdict(stream.snapshot()))
    assert len(events) > 10
    for place, one in enumerate(events):
        missed = replay_since(stream.reread(), one.id)
        state = shown[place + 1]
        for data in missed:
            patch = json.loads(data.partition(b"data: ")[2])["patch"]
            state = apply_patch(state, patch)
        assert journaled(state) == whole, f"from event {place}"


def test_compaction_repeats_no_event(tmp_path: Path, builder: HomeBuilder, guardian: Writer) -> None:
    from garrison.run.state import replay_run, to_snapshot

    at_work(builder, guardian, "a")
    stream = RunStream(tmp_path, "r1")
    stream.read()
    before = stream.snapshot()
    guardian.compact(to_snapshot(replay_run(read_all(guardian.path))), builder.now())
    stream.read()
    assert stream.snapshot() == before
    at_work(builder, guardian, "b")
    stream.read()
    assert [entry["node"] for entry in asdict(stream.snapshot())["timeline"]] == [""]
    late = RunStream(tmp_path, "r1")
    late.read()
    assert late.snapshot() == stream.snapshot(), "a later reader sees what compaction kept"


def test_a_record_that_cannot_be_shown_hides_no_other(tmp_path: Path, builder: HomeBuilder, guardian: Writer) -> None:
    guardian.append("node", {"node": "a", "status": "validated", "attempt": 1}, builder.now())  # not from pending
    guardian.append("node", {"status": "active"}, builder.now())
    at_work(builder, guardian, "b")
    stream = RunStream(tmp_path, "r1")
    stream.read()
    shown = asdict(stream.snapshot())
    assert shown["nodes"]["b"]["status"] == "working" and len(shown["problems"]) == 2
    assert "record 5 of guardian" in shown["problems"][0]
    assert shown["status"] == "corrupt" == RunReader(tmp_path).read("r1", details=False).status


async def test_a_failed_observation_is_retried(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], builder: HomeBuilder,
        guardian: Writer) -> None:
    real, fails = broadcaster.HomeObserver.observe, [True]

    def look(self: broadcaster.HomeObserver, runs: list[str]) -> dict[str, LiveState]:
        if fails[0] and real(self, runs)["r1"].processes:
            raise OSError("no /proc today")
        return real(self, runs)

    monkeypatch.setattr(broadcaster.HomeObserver, "observe", look)
    async with site(tmp_path, observe_every=0.05) as here:
        stream = await here.stream("/api/events?run=r1")
        await stream.until("snapshot")
        builder.incarnation("launch", "launch", "r1")
        async with asyncio.timeout(PATIENCE):
            while "no /proc today" not in capfd.readouterr().err:
                await asyncio.sleep(0.05)
        fails[0] = False
        assert (await stream.until("beat")).data["layers"][0]["who"] == "launch"


async def test_a_hundred_clients_get_the_same_events(tmp_path: Path, builder: HomeBuilder, guardian: Writer) -> None:
    async with site(tmp_path) as here:
        streams = await asyncio.gather(*(here.stream("/api/events?run=r1") for _ in range(100)))
        await asyncio.gather(*(stream.until("snapshot") for stream in streams))
        for node in NODES:
            at_work(builder, guardian, node)
        found = await asyncio.gather(*(changes(stream, 3) for stream in streams))
        assert {tuple(one.id for one in told) for told in found} == {tuple(one.id for one in found[0])}


async def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path, builder: HomeBuilder,
                                                           guardian: Writer) -> None:
    async with site(tmp_path) as here:
        stream = await here.stream("/api/events?run=r1")
        await stream.until("snapshot")
        slow = await _deaf(here)
        for number in range(300):
            guardian.append("signal", {"id": f"s{number}", "type": "GUIDANCE", "node": "a", "from": "x" * 20_000},
                        builder.now())
            await stream.until("change")
        await asyncio.to_thread(_drained, slow)


async def _deaf(here: Site) -> socket.socket:
    """Return a client that asks for the events and reads none."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", here.port))
    lines = ["GET /api/events?run=r1 HTTP/1.1", *(f"{name}: {value}" for name, value in here.headers().items())]
    await asyncio.get_running_loop().sock_sendall(slow, "\r\n".join([*lines, "", ""]).encode())
    return slow


def _drained(slow: socket.socket) -> None:
    """Read at last: what had gone out, then that the client was too slow, then the end."""
    slow.setblocking(True)
    slow.settimeout(PATIENCE)
    data = b""
    while chunk := slow.recv(1 << 16):
        data += chunk
        if data.endswith(b"0\r\n\r\n"):
            break
    slow.close()
    assert b"event: bye" in data and b"too slowly" in data and data.count(b"event: change") < 300


async def test_all_streams_end_when_the_server_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     builder: HomeBuilder, guardian: Writer) -> None:
    monkeypatch.setattr("garrison.system.event_loop.INotify", none_left)
    for where, name in ((broadcaster, "POLL_WITHOUT_INOTIFY"), (sse, "SEND_SECONDS")):
        monkeypatch.setattr(where, name, 20 * PATIENCE)  # a stream that waited for one of them would not end in time
    async with site(tmp_path) as here:
        streams = [await here.stream("/api/events?run=r1") for _ in range(3)]
        for stream in streams:
            await stream.until("snapshot")
        guardian.append("run", {"status": "done"}, builder.now())
    for stream in streams:
        rest = await stream.rest()
        assert [one.event for one in rest if one.event != "beat"][-2:] == ["change", "bye"], "with the last change"


async def test_a_node_with_its_log_and_transcript(tmp_path: Path, builder: HomeBuilder) -> None:
    build_busy_run(builder)
    folder = RunFiles(tmp_path, "crew-1").attempt("add_tests", 1)
    log = ("<script>alert(1)</script>\x1b[2J" + "é" * (LOG_BYTES * 3 // 4)).encode() + b"\xc3"
    (folder / "output.log").write_bytes(log)
    files = AttemptFiles(folder)
    for event in ({"kind": "text", "text": "<img src=x onerror=alert(1)>"}, {"kind": "usage"},
                  {"kind": "tool", "name": "Bash", "input": {"command": "ls"}}, {"kind": "result", "usd": 0.5}):
        append_line(files.stream, {"at": builder.now(), "life": 1, **event})
    with files.stream.open("ab") as stream:
        stream.write(b'{"kind": "text", "te')
    async with site(tmp_path) as here:
        base = "/api/runs/crew-1/nodes/add_tests"
        found = (await here.get(base)).json
        assert [one["attempt"] for one in found["attempts"]] == [1] and found["hook"]["phase"] == "executing"
        assert any("died" in line["text"] for line in found["why"])
        text, at = "", 0
        while not text or at < len(log) - 1:
            piece = (await here.get(f"{base}/log?from={at}")).json
            assert piece["next"] > at and piece["more"] == (at == 0), "whether to ask on at once"
            text, at = text + piece["text"], piece["next"]
        assert text == log[:-1].decode(), "no character is torn, and the unfinished one waits"
        assert (await here.get(f"{base}/log?from=-8")).json["text"].endswith("éé")
        waiting = asyncio.create_task(here.get(f"{base}/log?from={at}&wait=20"))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "it waits for the rest of a character"
        with (folder / "output.log").open("ab") as more:
            more.write(b"\xa9!")
        assert (await waiting).json["text"] == "é!"
        session = (await here.get(f"{base}/transcript")).json
        assert [one["kind"] for one in session["blocks"]] == ["text", "tool_use", "result"]
        assert session["blocks"][0]["text"] == "<img src=x onerror=alert(1)>"
        assert (await here.get(f"{base}/transcript?from={session['next']}")).json["blocks"] == []
        for path, status in (("nobody", 404), ("..", 400), ("a%2fb", 404), ("add_tests/log?from=x", 400),
                             ("add_tests/log?attempt=99999999999999999", 400)):
            assert (await here.get(f"/api/runs/crew-1/nodes/{path}")).status == status, path
        assert (await here.get("/api/runs/nobody")).status == 404
        assert (await here.get("/api/events?run=../etc")).status == 400


async def test_an_action_runs_a_command_and_shows_its_message(tmp_path: Path, builder: HomeBuilder,
                                                              guardian: Writer) -> None:
    """Gates are answered, nodes parked, as on a terminal: the guardian finds a signal in its inbox."""
    async with site(tmp_path) as here:
        parked = await here.post("/api/runs/r1/nodes/a/actions", {"action": "park", "text": "-- lunch $(id)"})
        assert parked.status == 200 and "a will be parked" in parked.json["message"]
        refused = await here.post("/api/runs/r1/nodes/a/actions", {"action": "respawn"})
        assert refused.status == 409 and "is not alive" in refused.json["message"]
        gate = "/api/runs/r1/gates/b%231"
        assert (await here.post(gate, {"choice": "Yes"})).status == 404
        option = {"key": "Y", "label": "Yes", "target": "c", "written": "Yes"}
        guardian.append("gate", {"place": "b#1", "node": "b", "kind": "human", "text": "Ship?", "default": "",
                                 "type": "single_select", "deadline": "", "signal": "", "options": [option]},
                        builder.now())
        wrong = await here.post(gate, {"choice": "Perhaps"})
        assert wrong.status == 409 and "[Y] Yes" in wrong.json["message"]
        assert (await here.post(gate, {"choice": "Yes"})).json["ok"]
    said = [json.loads(path.read_text()) for path in sorted((tmp_path / "signals").rglob("*.json"))]
    assert {"action": "park", "who": "a", "text": "-- lunch $(id)"} in [one["payload"] for one in said]
    answer = {"question_id": "b#1", "text": "Yes", "by": "the page", "asked": "Ship?"}
    assert answer in [one["payload"] for one in said]


async def test_nothing_is_read_while_no_page_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(broadcaster.HomeObserver, "observe", lambda self, runs: looks.append(1) or {})
    async with site(tmp_path, observe_every=0.01):
        await asyncio.sleep(0.1)
    assert not looks


async def test_without_inotify_a_heartbeat_finds_new_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             builder: HomeBuilder, guardian: Writer) -> None:
    monkeypatch.setattr("garrison.system.event_loop.INotify", none_left)
    async with site(tmp_path) as here:
        stream = await here.stream("/api/events?run=r1")
        await stream.until("snapshot")
        log = RunFiles(tmp_path, "r1").attempt("a", 1) / "output.log"
        log.parent.mkdir(parents=True)
        waiting = asyncio.create_task(here.get("/api/runs/r1/nodes/a/log?wait=20"))
        await asyncio.sleep(0.1)
        at_work(builder, guardian, "a")
        log.write_text("hello")
        assert (await stream.until("change")).data["node"] == "a" and (await waiting).json["text"] == "hello"
