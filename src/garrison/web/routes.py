"""Routes of the web server: judge who may ask (`access`), turn a request into one call and its result into JSON."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from garrison.errors import NotFound, Refused, UsageError
from garrison.records.names import check_node, check_run
from garrison.web import access, actions, chat, node, static_files
from garrison.web.broadcaster import POLL_WITHOUT_INOTIFY, Broadcaster
from garrison.web.errors import Handler, json_answer, no_such_address, refusal, with_errors
from garrison.web.sse import EventStream

RUNS = 100
"""Runs that one event stream follows at most."""
WAIT_SECONDS = 25
"""How long a request may wait for more of a log."""


class Page:
    """The web application: the home, its runs, its conversations, and who may ask."""

    def __init__(self, home: Path, rules: access.Rules, open_butler: chat.OpenButler = chat.claude_butler) -> None:
        self.home, self.rules, self.broadcaster = home, rules, Broadcaster(home)
        self.conversations = chat.Conversations(home, open_butler)

    def leave(self) -> None:
        """Tell all clients that the server stops."""
        self.broadcaster.leave()
        self.conversations.leave()

    async def close(self) -> None:
        """Stop what is under way."""
        await self.broadcaster.close()
        await self.conversations.close()

    def app(self) -> ASGIApp:
        """Return the whole application."""
        return Guard(self.rules, Starlette(routes=self.routes(), exception_handlers={404: no_such_address}))

    def routes(self) -> list[Route]:
        """Return every address there is."""
        def get(path: str, handler: Handler) -> Route:
            return Route(path, with_errors(handler), methods=["GET"])

        def post(path: str, handler: Handler) -> Route:
            return Route(path, with_errors(handler), methods=["POST"])

        return [
            get("/", static_files.index), get("/chat", static_files.index),
            get("/static/{name:path}", static_files.file),
            get("/api/runs", self.runs),
            get("/api/runs/{run}", self.run),
            get("/api/events", self.events),
            get("/api/runs/{run}/nodes/{node}", self.node),
            get("/api/runs/{run}/nodes/{node}/log", self.log),
            get("/api/runs/{run}/nodes/{node}/transcript", self.transcript),
            post("/api/runs/{run}/actions", self.act_on_run),
            post("/api/runs/{run}/nodes/{node}/actions", self.act_on_node),
            post("/api/runs/{run}/gates/{gate:path}", self.answer_gate),
            post("/api/runs/{run}/queue", self.act_on_queue),
            post("/api/runs/{run}/queue/{entry}", self.act_on_entry),
            get("/api/crew", self.crew),
            get("/api/conversations", self.list_conversations),
            get("/api/conversations/{conversation}", self.conversation),
            post("/api/chat", self.send_message),
            get("/api/chat/{conversation}/events", self.conversation_events),
            post("/api/chat/{conversation}/cancel", self.cancel_answer),
        ]

    # ---- runs

    async def runs(self, request: Request) -> Response:
        """Return all runs."""
        return json_answer(await self.broadcaster.runs())

    async def run(self, request: Request) -> Response:
        """Return one run as it is now."""
        snapshot = await self.broadcaster.snapshot(run_of(request))
        return json_answer({**snapshot, "write": may_write(request)})

    async def events(self, request: Request) -> Response:
        """Stream what happens in some runs from now on, or since an event that the client saw."""
        with_list = "runs" in request.query_params
        client = await self.broadcaster.join(cursors_of(request), write=may_write(request), with_list=with_list)
        return streamed(EventStream(client.events(), lambda: self.broadcaster.part(client)))

    async def node(self, request: Request) -> Response:
        """Return one node in detail."""
        run, name = run_of(request), node_of(request)
        return json_answer(await asyncio.to_thread(node.detail, self.home, run, name))

    async def log(self, request: Request) -> Response:
        """Return a piece of what a node's agent printed."""
        return await self._piece(node.log, request)

    async def transcript(self, request: Request) -> Response:
        """Return a piece of a node's session."""
        return await self._piece(node.transcript, request)

    async def _piece(self, read: Callable[..., dict[str, Any]], request: Request) -> Response:
        run, name, attempt = run_of(request), node_of(request), number(request, "attempt", 0)
        begin, until = number(request, "from", 0), time.monotonic() + min(number(request, "wait", 0), WAIT_SECONDS)
        folder = node.attempt_folder(self.home, run, name, attempt)
        with self.broadcaster.watching(folder, folder / "claude") as written:
            while True:
                written.clear()  # before it is read: what is written meanwhile must not be waited for
                piece = await asyncio.to_thread(read, self.home, run, name, attempt, begin)
                left = until - time.monotonic()
                if piece["next"] != begin or piece["ended"] or left <= 0 or self.broadcaster.leaving:
                    return json_answer(piece)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_WITHOUT_INOTIFY)):
                        await written.wait()

    # ---- actions

    async def act_on_run(self, request: Request) -> Response:
        """Stop or resume a run."""
        return await self._command(actions.of_run(run_of(request), await body_of(request)))

    async def act_on_node(self, request: Request) -> Response:
        """Park, unpark, respawn or cancel a node, or answer its question."""
        return await self._command(actions.of_node(run_of(request), node_of(request), await body_of(request)))

    async def answer_gate(self, request: Request) -> Response:
        """Answer a gate."""
        run, place, body = run_of(request), request.path_params["gate"], await body_of(request)
        stream = await self.broadcaster.stream(run)
        gate = stream.page.model.state.gates.get(place)
        if gate is None:
            raise NotFound(f"no gate {place!r:.60} is open in run {run}; it has been answered")
        return await self._command(actions.of_gate(run, gate.node, body))

    async def act_on_queue(self, request: Request) -> Response:
        """Pause or resume the merge queue of a run's target."""
        body, launch = await body_of(request), (await self.broadcaster.stream(run_of(request))).launch
        return await self._command(actions.of_queue(launch.repo, launch.base, body))

    async def act_on_entry(self, request: Request) -> Response:
        """Hold, release, cancel or retry a merge entry."""
        run_of(request)
        return await self._command(actions.of_entry(request.path_params["entry"], await body_of(request)))

    async def _command(self, words: list[str]) -> Response:
        return json_answer({"ok": True, "message": await actions.run_command(self.home, words)})

    # ---- the butler

    async def crew(self, request: Request) -> Response:
        """Return the butler and its specialists."""
        return json_answer(await asyncio.to_thread(chat.crew, self.home))

    async def list_conversations(self, request: Request) -> Response:
        """Return all conversations."""
        return json_answer(await asyncio.to_thread(self.conversations.list))

    async def conversation(self, request: Request) -> Response:
        """Return one conversation."""
        return json_answer(self.conversations.read(request.path_params["conversation"]))

    async def send_message(self, request: Request) -> Response:
        """Send a message to the butler; stream the events of its answer."""
        message, name = chat.message_of(await body_of(request))
        conversation = self.conversations.get(name)
        client = conversation.send(message)
        return streamed(EventStream(client.events(), lambda: conversation.part(client)))

    async def conversation_events(self, request: Request) -> Response:
        """Stream the events of a conversation, since one that the client saw."""
        conversation = self.conversations.get(request.path_params["conversation"])
        client = conversation.join(last_event_id(request))
        return streamed(EventStream(client.events(), lambda: conversation.part(client)))

    async def cancel_answer(self, request: Request) -> Response:
        """Cancel the answer that is under way."""
        await body_of(request)
        if not await self.conversations.get(request.path_params["conversation"]).cancel():
            raise Refused("no answer is under way")
        return json_answer({"ok": True, "message": "cancelled"})


class Guard:
    """Judges each request before anything of it is read, and puts the headers of `access` on each answer."""

    def __init__(self, rules: access.Rules, inner: ASGIApp) -> None:
        self.rules, self.inner = rules, inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        headers = joined_headers(scope["headers"])

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        token = request.query_params.get(access.QUERY)
        if token is not None and headers.get("host", "") in self.rules.hosts and scope["method"] == "GET":
            await self._log_in(request, token)(scope, receive, guarded)
            return
        verdict = access.judge(self.rules, scope["method"], headers)
        if isinstance(verdict, access.Refusal):
            await refusal(verdict.status, verdict.message)(scope, receive, guarded)
            return
        scope["garrison.scope"] = verdict
        await self.inner(scope, receive, guarded)

    def _log_in(self, request: Request, token: str) -> Response:
        """Turn the token of the printed address into a cookie, so that it leaves the address bar."""
        if not self.rules.scope(token):
            return refusal(401, "this address is of another server or has an old token; use the one printed last")
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != access.QUERY])
        path = request.url.path if request.url.path in static_files.PAGES else "/"
        redirect = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        redirect.headers["set-cookie"] = access.cookie_of(self.rules, token)
        redirect.headers["cache-control"] = "no-store"
        return redirect


_HEADERS = [(name.encode(), value.encode()) for name, value in access.HEADERS.items()]


# ---- parts of a request


def joined_headers(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return header names in lower case → values; of one sent twice both, which no check accepts."""
    found: dict[str, str] = {}
    for name, value in headers:
        word = name.decode("latin-1").lower()
        found[word] = f"{found[word]}, {value.decode('latin-1')}" if word in found else value.decode("latin-1")
    return found


async def body_of(request: Request) -> Mapping[str, object]:
    """Return a request's JSON object; UsageError for anything else, and for too much of it."""
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > access.BODY_BYTES:
            raise UsageError(f"a request has at most {access.BODY_BYTES >> 10} KiB")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("send a JSON object") from None
    if not isinstance(body, dict):
        raise UsageError("send a JSON object")
    return body


def last_event_id(request: Request) -> str:
    """Return the id of the last event that a client saw; '' if it has seen none."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def cursors_of(request: Request) -> dict[str, str]:
    """Return run → the id of its last event that a client saw: the parts of an id are in the order of the runs."""
    runs = list(dict.fromkeys(check_run(run) for run in request.query_params.getlist("run")))
    if not runs and "runs" not in request.query_params:
        raise UsageError("pass run=RUN, or runs=1 for the list of runs")
    if len(runs) > RUNS:
        raise UsageError(f"one stream follows {RUNS} runs at most")
    return dict(zip_longest(runs, last_event_id(request).split(",")[:len(runs)], fillvalue=""))


def may_write(request: Request) -> bool:
    """Return whether the request's token allows changes."""
    return bool(request.scope["garrison.scope"] == access.WRITE)


def run_of(request: Request) -> str:
    """Return the run of the address."""
    return check_run(request.path_params["run"])


def node_of(request: Request) -> str:
    """Return the node of the address."""
    return check_node(request.path_params["node"])


def number(request: Request, name: str, default: int) -> int:
    """Return a whole number of the query."""
    text = request.query_params.get(name, str(default))
    if len(text) > 15 or not text.removeprefix("-").isdecimal() or not text.isascii():
        raise UsageError(f"{name} should be a whole number")
    return int(text)


def streamed(stream: EventStream) -> Response:
    """Return an event stream as what a route returns."""
    return stream  # type: ignore[return-value]  # an ASGI application is all that is called
