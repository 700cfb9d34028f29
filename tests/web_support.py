"""The page's server on a home, in this process, and clients of it that send exactly the bytes a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.web import server
from garrison.web.access import READ, WRITE, load_tokens
from support import DEADLINE

PATIENCE = DEADLINE
"""Seconds after which an expected message counts as lost."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ServerEvent:
    id: str
    event: str
    data: Any


@dataclass
class Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int
    seen: list[ServerEvent] = field(default_factory=list)
    _rest: bytes = b""

    async def next(self, seconds: float = PATIENCE) -> ServerEvent | None:
        """Return the next event; None at the end of the stream."""
        async with asyncio.timeout(seconds):
            while b"\n\n" not in self._rest:
                chunk = await self._chunk()
                if not chunk:
                    return None
                self._rest += chunk
        block, _, self._rest = self._rest.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in block.decode().splitlines() if not line.startswith(":"))
        if "data" not in fields:  # a comment, or how soon to come back
            return await self.next(seconds)
        told = ServerEvent(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
        self.seen.append(told)
        return told

    async def until(self, event: str, seconds: float = PATIENCE) -> ServerEvent:
        while (told := await self.next(seconds)) is not None:
            if told.event == event:
                return told
        raise AssertionError(f"the stream ended without {event}")

    async def rest(self) -> list[ServerEvent]:
        while await self.next() is not None:
            pass
        return self.seen

    async def _chunk(self) -> bytes:
        line = await self.reader.readline()
        if not line.strip():
            return b""
        data = await self.reader.readexactly(int(line, 16)) if int(line, 16) else b""
        await self.reader.readline()
        return data

    def close(self) -> None:
        self.writer.close()


@dataclass
class Site:
    """Listening server, with its tokens."""

    port: int
    tokens: Mapping[str, str]
    opened: list[asyncio.StreamWriter] = field(default_factory=list)
    """Its clients' ends of all connections: closed once the server has ended, unless a test closed them."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def headers(self, scope: str = WRITE, **more: str | None) -> dict[str, str]:
        """Return what a correct client sends; `more` replaces headers (None: leaves one out), with `_` for `-`."""
        honest: dict[str, str | None] = {"host": self.host, "authorization": f"Bearer {self.tokens[scope]}"}
        honest |= {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in honest.items() if value is not None}

    def posting(self, scope: str = WRITE, **more: str | None) -> dict[str, str]:
        """Return the same for a change."""
        return self.headers(scope, **{"content_type": "application/json", "x_garrison": "1", **more})

    async def open(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"",
                   ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int, dict[str, str]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        counted = (body or method == "POST") and "transfer-encoding" not in headers
        length = {"content-length": str(len(body))} if counted else {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**length, **headers}.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        found = dict(line.lower().split(": ", 1) if line.startswith("content") else line.split(": ", 1)
                     for line in head[1:] if line)
        return reader, writer, int(head[0].split()[1]), found

    async def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        reader, writer, status, found = await self.open(method, path, headers or self.headers(), body)
        async with asyncio.timeout(PATIENCE):
            data = await reader.readexactly(int(found.get("content-length", "0"))) if method != "HEAD" else b""
        writer.close()
        return Answer(status, found, data)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def post(self, path: str, body: Any) -> Answer:
        return await self.ask("POST", path, self.posting(), json.dumps(body).encode())

    async def stream(self, path: str, after: str = "", method: str = "GET", body: Any = None) -> Stream:
        headers = self.posting() if method == "POST" else self.headers()
        if after:
            headers["last-event-id"] = after
        data = json.dumps(body).encode() if body is not None else b""
        reader, writer, status, _ = await self.open(method, path, headers, data)
        return Stream(reader, writer, status)


@asynccontextmanager
async def site(home: Path, **options: Any) -> AsyncIterator[Site]:
    """Yield a server on a free port; it is stopped gracefully at the end, which must not take long."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    tokens = load_tokens(home)
    stop = asyncio.Event()
    task = asyncio.create_task(server.serve(home, server.Endpoint(), tokens, ready.set_result, stop=stop, **options))
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        await task
    made = Site(ready.result(), tokens)
    try:
        yield made
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task
        for writer in made.opened:
            writer.close()


__all__ = ["READ", "WRITE", "Answer", "ServerEvent", "Site", "Stream", "site"]
