"""`garrison serve` as a process: killed and restarted under an open page, stopped gracefully, refused."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from garrison.cli import main as cli
from garrison.records.journal import Writer
from garrison.records.run import RunFiles
from garrison.values import asdict
from garrison.web.run_stream import RunStream
from support import DEADLINE, PROGRAM, Node, Place, wait_for
from top_support import HomeBuilder, apply_patch, build_busy_run, home_builder
from web_support import ServerEvent, Site


@contextmanager
def served(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Site]]:
    """Start a server; yield it and its address, and kill it at the end."""
    process = subprocess.Popen([*PROGRAM, "--home", str(home), "serve", *options], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), process.stderr.read()
        yield process, site_of(line)
    finally:
        process.kill()
        process.communicate()


def site_of(line: str) -> Site:
    """Return the server whose address was printed."""
    url = urlsplit(line.strip())
    return Site(url.port or 0, {"write": parse_qs(url.query)["token"][0]})


def test_a_page_outlives_its_server(tmp_path: Path) -> None:
    """After a kill -9 and a restart on the same port with the same token the page continues where it was."""
    def journal(builder: HomeBuilder, node: str) -> None:
        writer = Writer(RunFiles(tmp_path, "crew-1").journal, "guardian-crew@crew-1#1")
        writer.append("node", {"node": node, "status": "active", "attempt": 2}, builder.now())
        writer.close()

    async def first(builder: HomeBuilder, here: Site, process: subprocess.Popen[str]) -> str:
        stream = await here.stream("/api/events?run=crew-1")
        await stream.until("snapshot")
        journal(builder, "add_tests")
        told = await stream.until("change")
        process.kill()
        process.wait()
        left = await stream.rest()  # what it sent before it was killed
        assert all(one.event != "bye" for one in left), "it was cut off"
        stream.close()
        return next((one.id for one in reversed(left) if one.id), told.id)

    async def second(here: Site, after: str, process: subprocess.Popen[str]) -> None:
        stream = await here.stream("/api/events?run=crew-1", after=after)
        told = await stream.until("change")
        assert told.data["patch"]["nodes"]["release_notes"]["attempt"] == 2
        assert not any(one.event == "snapshot" for one in stream.seen)
        process.send_signal(signal.SIGTERM)
        assert (await stream.rest())[-1].event == "bye"
        assert await asyncio.to_thread(process.wait, DEADLINE) == 0

    with home_builder(tmp_path) as builder:
        build_busy_run(builder)
        with served(tmp_path, "--port", "0", "--run", "crew-1") as (process, here):
            after = asyncio.run(first(builder, here, process))
            port = here.port
        journal(builder, "release_notes")
        with served(tmp_path, "--port", str(port)) as (process, again):
            assert again.tokens == here.tokens
            refused = subprocess.run([*PROGRAM, "--home", str(tmp_path), "serve", "--port", str(port)], check=False,
                                     capture_output=True, text=True)
            assert (refused.returncode, refused.stdout) == (1, "") and "pass another --port" in refused.stderr
            assert refused.stderr.count("\n") == 1
            asyncio.run(second(again, after, process))


@pytest.mark.slow
def test_a_run_watched_from_its_launch_to_its_end(place: Place) -> None:
    """`launch --serve`: the events of a page add up to the end of the run, with a death; then the server ends."""
    graph = place.graph(Node("a", before=place.hold("work")), Node("b", after=("a",)))
    child = place.launch(graph, "r1", "--serve")
    line = wait_for("the address is printed", lambda: next(
        (one for one in place.logs().splitlines() if one.startswith("http://127.0.0.1:")), ""))
    here = site_of(line)
    place.wait_until_held("work")

    async def watch() -> tuple[dict[str, Any], list[ServerEvent]]:
        stream = await here.stream("/api/events?run=r1")
        shown = (await stream.until("snapshot")).data
        place.kill("orchestrator-a")
        wait_for("its agent is back", lambda: place.identity("orchestrator-a").get("incarnation") == 2)
        place.release("work")
        told = await stream.rest()
        for one in told:
            if one.event == "change":
                shown = apply_patch(shown, one.data["patch"])
        return shown, told

    shown, told = asyncio.run(watch())
    assert place.finish(child) == 0, place.logs()
    assert told[-1].event == "bye"
    assert (shown["status"], {name: shown["nodes"][name]["status"] for name in "ab"}) == (
        "done", {"a": "landed", "b": "landed"})
    assert shown["nodes"]["a"]["deaths"] == 1 and not shown["queue"]["entries"]
    kinds = [one["kind"] for one in shown["timeline"]]
    assert kinds.count("death") == kinds.count("respawn") == 1 and kinds.count("landed") == 2
    feed = RunStream(place.home, "r1")
    feed.read()
    whole = asdict(feed.snapshot())
    assert {part: shown[part] for part in ("status", "queue", "gates", "timeline", "signals")} == {
        part: whole[part] for part in ("status", "queue", "gates", "timeline", "signals")}
    place.check("a", "b", run="r1")


@pytest.mark.parametrize(("options", "code", "why"), [
    (["--run", "nobody"], 1, "nobody"), (["--listen", "0.0.0.0"], 2, "--plain-http"),
    (["--listen", "here"], 2, "not an IP address"), (["--tls-cert", __file__], 2, "pass both --tls-cert and --tls-key"),
])
def test_a_refusal_is_one_line(options: list[str], code: int, why: str, tmp_path: Path,
                               capsys: pytest.CaptureFixture[str]) -> None:
    if options and options[0] != "--run":
        with home_builder(tmp_path) as builder:
            builder.run("r1", "a").close()
    assert cli.main(["serve", "--home", str(tmp_path), *options]) == code
    said = capsys.readouterr()
    assert why in said.err and said.err.count("\n") == 1 and not said.out
    assert not (tmp_path / "web").exists(), "no token was made for nothing"
