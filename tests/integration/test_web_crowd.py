"""The page's server among many clients that send half a request, or a byte now and then (slowloris)."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.web import connections
from top_support import home_builder
from web_support import PATIENCE, READ, Site, site

CROWD = 1000
FILES = 3 * CROWD
"""Open files of this process, which is both ends of each connection."""
HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: "


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"a process may open {hard} files here; the test needs {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def half_open(here: Site, said: bytes = HALF) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(said)
    return reader, writer


async def ended(connection: Connection) -> None:
    """Wait until the server has ended a connection."""
    async with asyncio.timeout(PATIENCE):
        try:
            assert await connection[0].read() == b""
        except ConnectionError:
            return


@pytest.mark.usefixtures("many_files")
def test_a_thousand_half_open_requests_shut_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", PATIENCE)  # not the deadline ends them

    async def scene() -> None:
        async with site(tmp_path) as here:
            followed = await here.stream("/api/events?run=r1")
            await followed.until("snapshot")
            crowd: list[Connection] = []
            for _ in range(10):
                crowd += await asyncio.gather(*(half_open(here) for _ in range(CROWD // 10)))
                for path in ("/", "/static/main.js", "/api/runs"):
                    assert (await here.get(path)).status == 200, "while the crowd is there"
            guardian.append("node", {"node": "a", "status": "skipped", "attempt": 1}, builder.now())
            await followed.until("change")  # a stream from before goes on
            async with asyncio.timeout(PATIENCE):
                while sum(not reader.at_eof() for reader, _ in crowd) > connections.STRANGERS:
                    await asyncio.sleep(0.02)
            followed.close()
            for _, writer in crowd:
                writer.close()

    with home_builder(tmp_path) as builder:
        guardian = builder.run("r1", "a")
        asyncio.run(scene())
        guardian.close()


def test_the_head_of_each_request_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte of it comes, and on a connection that has been used; a stream has none."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)

    async def dribble(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async def scene() -> None:
        async with site(tmp_path) as here:
            silent, slow = await half_open(here, b""), await half_open(here)
            reader, used, status, headers = await here.open("GET", "/api/runs", here.headers())
            assert status == 200
            await reader.readexactly(int(headers["content-length"]))
            used.write(HALF)
            followed = await here.stream("/api/events?runs=1")
            dribbling = [asyncio.create_task(dribble(writer)) for writer in (slow[1], used)]
            await asyncio.gather(*(ended(one) for one in (silent, slow, (reader, used))))
            for task in dribbling:
                task.cancel()
            await asyncio.gather(*dribbling, return_exceptions=True)
            stream = await here.stream("/api/events?runs=1")
            assert (await stream.until("runs")).data["runs"] == []
            assert (await followed.until("runs")).data["runs"] == [] and not followed.reader.at_eof()
            for one in (stream, followed):
                one.close()

    asyncio.run(scene())


def test_the_body_of_a_refused_request_holds_nothing(tmp_path: Path) -> None:
    """It may be announced, and never come."""
    async def scene() -> None:
        async with site(tmp_path) as here:
            for headers, status in ((here.posting(authorization=None), 401), (here.posting(READ), 403),
                                    (here.posting(content_length="9999999"), 413)):
                announced = {"content-length": "1000", **headers}
                lines = [f"{name}: {value}" for name, value in announced.items()]
                said = "\r\n".join(["POST /api/runs/r1/actions HTTP/1.1", *lines, "", ""]).encode()
                reader, writer = await half_open(here, said)
                async with asyncio.timeout(PATIENCE):
                    assert f" {status} ".encode() in await reader.read()
                writer.close()

    asyncio.run(scene())
