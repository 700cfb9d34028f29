"""Terminal of the page: what its routes allow, what a hostile screen does there, and who has the keyboard."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from operator import not_
from pathlib import Path
from typing import TypeVar

import pytest

from agent_terminal import ECHO, agent_in_tmux
from garrison.records import signals
from garrison.records.names import Key
from garrison.system.terminal import TerminalSession
from garrison.system.tmux import TmuxTerminal
from garrison.system.tmux_server import supported_version
from garrison.web import terminals
from support import DEADLINE
from web_support import READ, Site, Stream, site

T = TypeVar("T")
pytestmark = pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")
TERMINAL = "/api/runs/r1/nodes/a/terminal"
SCREEN = {"columns": 100, "rows": 30}
HOSTILE = (r"printf '\033]52;c;aGk=\007\033]0;TITLE\007\033]8;;http://evil.example\033\\link\033]8;;\033\\\033[6n\033[c"
           r"\033[>c\033P+q544e\033\\\033[2J\033[Hcalm'; exec sleep 600")
FLOOD = r"printf 'begun\n'; yes \"$(printf '\033[31m%0200d' 7)\" & sleep 600"
"""Prints as fast as it can."""


def window(home: Path, session: TerminalSession) -> str:
    return TmuxTerminal(home).ask(session, "#{window_width}x#{window_height}")


async def drawn(stream: Stream, pattern: str) -> str:
    """Read until what was drawn so far matches; return all of it."""
    text = ""
    async with asyncio.timeout(DEADLINE):
        while not re.search(pattern, text, re.DOTALL):
            text += (await stream.until("screen")).data
    return text


async def until(what: str, ask: Callable[[], Awaitable[T]], is_wanted: Callable[[T], bool] = bool) -> None:
    end = time.monotonic() + DEADLINE
    while not is_wanted(await ask()):
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


async def keyboard(here: Site, id_: str, *, hold: bool = True) -> tuple[int, str]:
    answer = await here.post(f"/api/terminals/{id_}/keyboard", {"hold": hold, **SCREEN})
    return answer.status, answer.json.get("message", "")


def test_one_user_types_at_a_time_and_the_journal_records_which(tmp_path: Path) -> None:
    async def scene(home: Path, session: TerminalSession) -> None:
        async with site(home) as here, site(home) as other:
            stream, second = await here.stream(TERMINAL), await other.stream(TERMINAL)
            ready = (await stream.until("ready")).data
            twin = (await second.until("ready")).data["terminal"]
            assert (ready["columns"], ready["rows"], ready["read_only"]) == (200, 50, "")
            assert ready["title"] == "run r1 · a · attempt 1 · incarnation 1"
            await drawn(stream, "listening")
            assert window(home, session) == "200x50", "who only looks changes nothing"
            typed = f"/api/terminals/{ready['terminal']}/keys"
            assert (await here.post(typed, {"text": "x"})).status == 409, "read-only unless asked"

            assert (await keyboard(here, ready["terminal"]))[0] == 200
            assert window(home, session) == "100x30"
            assert (await keyboard(other, twin)) == (
                409, "somebody is typing to a on another page; only one user can at a time")
            assert (await here.post(typed, {"text": "hé;\x03\x1bOA\x00\x02d"})).status == 200
            assert (await here.post(typed, {"text": "\x1b[200~p1\np2\x1b[201~"})).status == 200
            await drawn(stream, re.escape("hM-CM-)")), "tmux's own prefix starts no command"
            await until("all keys arrive", lambda: asyncio.to_thread(TmuxTerminal(home).capture, session),
                        lambda screen: "hM-CM-);^C^[[A^@^Bdp1^Mp2" in screen)

            assert (await keyboard(here, ready["terminal"], hold=False))[0] == 200
            assert window(home, session) == "200x50"
            assert (await here.post(typed, {"text": "x"})).status == 409
            assert (await keyboard(other, twin))[0] == 200
            second.close()  # a page that was closed types no longer
            await until("the keyboard is free", lambda: keyboard(here, ready["terminal"]),
                        lambda answer: answer[0] == 200)
            assert (await other.post(f"/api/terminals/{twin}/keys", {"text": "x"})).status == 404, "its id has ended"
            stream.close()
            await until("its terminal is gone", lambda: here.post(typed, {"text": "x"}),
                        lambda answer: answer.status == 404)
        texts = [posted.signal.payload["text"] for posted in signals.list_pending(home, Key("runner", "a", "r1"))
                 if posted.signal is not None and posted.signal.signal_type == "X-KEYBOARD"]
        assert texts == 3 * ["the user types to the agent on the page", "the user on the page no longer types"]
        await until("no client is left", lambda: asyncio.to_thread(TmuxTerminal(home).list_clients, session, "x"), not_)

    with agent_in_tmux(tmp_path, ECHO) as (_, session):
        asyncio.run(scene(tmp_path, session))


def test_reading_and_typing_need_their_rights(tmp_path: Path) -> None:
    async def scene(home: Path) -> None:
        async with site(home) as here:
            for status, headers in ((401, here.headers(authorization=None)),
                                    (401, here.headers(authorization="Bearer x")),
                                    (403, here.headers(origin="http://127.0.0.1:3000")),
                                    (403, here.headers(sec_fetch_site="same-site")), (421, here.headers(host="evil"))):
                assert (await here.ask("GET", TERMINAL, headers)).status == status, headers
            stream = await here.stream(TERMINAL)
            id_ = (await stream.until("ready")).data["terminal"]
            body = json.dumps({"hold": True, **SCREEN}).encode()
            for path in (f"/api/terminals/{id_}/keyboard", f"/api/terminals/{id_}/keys"):
                for status, headers in ((401, here.posting(authorization=None)), (403, here.posting(READ)),
                                        (403, here.posting(origin="http://127.0.0.1:3000")),
                                        (403, here.posting(x_garrison=None)),
                                        (415, here.posting(content_type="text/plain"))):
                    assert (await here.ask("POST", path, headers, body)).status == status, (path, headers)
            assert (await here.post("/api/terminals/guess/keys", {"text": "x"})).status == 404
            assert (await here.post(f"/api/terminals/{id_}/keys", {"text": "x" * 4001})).status == 400
            assert (await here.post(f"/api/terminals/{id_}/keyboard", {"hold": True})).status == 400
            status, why = await keyboard(here, id_)
            assert status == 409 and "its command reads no keyboard" in why
            assert (await here.get("/api/runs/r1/nodes/b/terminal")).json["message"].startswith(
                "orchestrator-b@r1 has no session yet")
            assert (await here.get("/api/runs/r1/nodes/../terminal")).status == 400
            stream.close()

    with agent_in_tmux(tmp_path, "exec sleep 600", keyboard=False):
        asyncio.run(scene(tmp_path))


def test_a_hostile_screen_is_drawn_and_nothing_else(tmp_path: Path) -> None:
    async def scene() -> None:
        async with site(tmp_path) as here:
            stream = await here.stream(TERMINAL)
            text = await drawn(stream, "calm")
            assert not re.search("\x1b\\]|\x1bP|TITLE|evil", text), text
            stream.close()

    with agent_in_tmux(tmp_path, HOSTILE):
        asyncio.run(scene())


def test_the_terminal_says_why_it_ended(tmp_path: Path) -> None:
    async def scene(home: Path, session: TerminalSession) -> None:
        async with site(home, terminals=terminals.Terminals(home, limit=2, look_every=0.05)) as here:
            stream, second = await here.stream(TERMINAL), await here.stream(TERMINAL)
            await stream.until("ready")
            await second.until("ready")
            assert "2 terminals are open, which is the limit" in (await here.get(TERMINAL)).json["message"]
            second.close()
            await asyncio.to_thread(TmuxTerminal(home).close, session, grace=0)
            assert (await stream.until("end")).data["why"].startswith("the session of a has ended")
            assert await stream.next() is None
            assert "its session has ended" in (await here.get(TERMINAL)).json["message"]

    with agent_in_tmux(tmp_path, "exec sleep 600") as (_, session):
        asyncio.run(scene(tmp_path, session))


def test_a_flood_costs_a_slow_page_and_the_server_a_bounded_amount(tmp_path: Path) -> None:
    """A page that reads nothing for a while gets the screen as it is then, not all that went by."""
    async def scene(home: Path) -> None:
        async with site(home) as here:
            stream = await here.stream(TERMINAL)
            await drawn(stream, "7")
            for _ in range(2):  # 300 ms of a flood are tens of megabytes
                await asyncio.sleep(0.1)
                begin, size = time.monotonic(), 0
                while time.monotonic() - begin < 0.3:
                    size += len((await stream.until("screen")).data)
                assert size < 4 * terminals.BYTES_A_SECOND
            stream.close()

    with agent_in_tmux(tmp_path, FLOOD):
        asyncio.run(scene(tmp_path))
