"""The page's server among many clients: a thousand that follow a run, more than it has room for, those that read
slowly, and those that send half a request, or a byte now and then (slowloris).
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garrison.values import replace
from garrison.web import connections, sse
from garrison.web.connections import Capacity, capacity_of, raise_file_limit
from top_support import HomeBuilder
from web_clients import Crowd
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
async def test_a_thousand_clients_follow_a_run(tmp_path: Path, builder: HomeBuilder) -> None:
    def follow(port: int, token: str) -> None:
        crowd = Crowd(port, token)
        crowd.join(CROWD)
        for number in range(3):
            signal = {"id": f"s{number}", "type": "GUIDANCE", "node": "a", "from": f"person-{number}"}
            guardian.append("signal", signal, builder.now())
            crowd.until(f"person-{number}".encode())
        crowd.leave()

    guardian = builder.run("r1", "a")
    async with site(tmp_path) as here:
        await asyncio.to_thread(follow, here.port, here.tokens["write"])
        assert (await here.get("/api/home")).status == 200


async def test_a_page_beyond_the_limit_is_refused_with_advice(tmp_path: Path) -> None:
    async with site(tmp_path, capacity=Capacity(4096, 3072, 512, 2)) as here:
        opened = await asyncio.gather(*(here.stream("/api/events?runs=1") for _ in range(8)))
        assert sorted(one.status for one in opened) == [200] * 2 + [503] * 6, "however many open at once"
        refused = await here.get("/api/events?runs=1")
        assert refused.status == 503 and refused.headers["retry-after"] == "5"
        assert refused.json["message"].startswith("2 pages are open, which is the limit: close one of them")
        next(one for one in opened if one.status == 200).close()
        async with asyncio.timeout(PATIENCE):
            while (again := await here.stream("/api/events?runs=1")).status != 200:
                again.close()


async def test_a_connection_beyond_the_limit_gets_an_error_page(tmp_path: Path) -> None:
    async with site(tmp_path, capacity=Capacity(4096, 2, 50, 50)) as here:
        streams = [await here.stream("/api/events?runs=1") for _ in range(2)]
        answer = await here.ask("GET", "/", here.headers(accept="text/html"))
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert "no room for another connection; close pages" in answer.body.decode()
        for one in streams:
            one.close()
        async with asyncio.timeout(PATIENCE):
            while (await here.get("/")).status != 200:
                await asyncio.sleep(0.01)


def test_room_is_shared_out_by_how_many_files_a_process_may_open() -> None:
    assert capacity_of(4096) == Capacity(4096, 3072, 512, 1000)
    assert capacity_of(1024) == Capacity(1024, 896, 336, 448)
    for files in (64, 256, 1024, 4096, 1 << 20):
        room = capacity_of(files)
        assert room.strangers + room.streams < room.connections
    with pytest.raises(connections.Overloaded, match=r"448 pages are open.* 1024 files here, `ulimit -n 4096`"):
        capacity_of(1024).check_streams(448)
    capacity_of(1024).check_streams(447)
    with pytest.raises(connections.Overloaded, match=r"^1000 pages are open, which is the limit: close one of them$"):
        capacity_of(4096).check_streams(1000)


def test_the_server_takes_the_open_files_that_it_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert raise_file_limit(600) == 600 == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raise_file_limit(550) == 600, "it is not lowered"
        assert raise_file_limit(before[1] + 1) == before[1], "more than the hard limit is not asked for"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_connection_gets_large_events_in_pieces_and_small_ones_together() -> None:
    """What a connection cannot send at once it copies, so a thousand slow clients must not get all of a snapshot."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    client = sse.Client([bytes(3 * sse.PIECE + 5)])
    for _ in range(10):
        client.put(b"x" * 100)
    client.leave("done")
    await sse.EventStream(client.events())({}, asyncio.Event().wait, send)
    sizes = [len(body) for body in sent if body and body != sse.RETRY]
    assert sizes[:4] == [sse.PIECE] * 3 + [5] and len(sizes) == 5, sizes
    assert sent[-2].startswith(b"x" * 1000 + b"event: bye")


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_half_open_requests_shut_no_client_out(tmp_path: Path, builder: HomeBuilder) -> None:
    guardian = builder.run("r1", "a")
    capacity = replace(capacity_of(FILES), head_seconds=PATIENCE)  # not the deadline ends them
    async with site(tmp_path, capacity=capacity) as here:
        followed = await here.stream("/api/events?run=r1")
        await followed.until("snapshot")
        crowd: list[Connection] = []
        for _ in range(10):
            crowd += await asyncio.gather(*(half_open(here) for _ in range(CROWD // 10)))
            for path in ("/", "/static/main.js", "/api/runs"):
                assert (await here.get(path)).status == 200, "while the crowd is there"
        guardian.append("node", {"node": "a", "status": "skipped", "attempt": 1}, builder.now())
        await followed.until("change")  # an earlier stream continues
        async with asyncio.timeout(PATIENCE):
            while sum(not reader.at_eof() for reader, _ in crowd) > connections.STRANGERS:
                await asyncio.sleep(0.02)
        followed.close()
        for _, writer in crowd:
            writer.close()


async def test_the_head_of_each_request_has_a_deadline(tmp_path: Path) -> None:
    """However often a byte of it comes, and on a connection that has been used; a stream has none."""
    async def dribble(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async with site(tmp_path, capacity=replace(capacity_of(FILES), head_seconds=0.3)) as here:
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


async def test_a_refused_request_is_answered_before_its_body(tmp_path: Path) -> None:
    """The body may be announced, and never come."""
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
