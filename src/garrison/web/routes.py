"""The routes: who may ask is judged first (`access`), then a request becomes one call, and its answer JSON.

The rule of this room: thin. An error that garrison can utter becomes its own line with a status; what was unforeseen
is told on stderr and to the client as just that.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.records.names import check_node, check_run
from garrison.web import access, actions, chat, node, static_files
from garrison.web.broadcaster import UNTOLD, Hub
from garrison.web.errors import told_mistake
from garrison.web.sse import EventStream, as_json

RUNS = 100
"""Runs that one stream follows at most."""
WAIT_SECONDS = 25
"""How long a piece that is not there yet is waited for at most."""
Answer = Callable[[Request], Awaitable[Response]]


class Page:
    """What the routes need: the home, the hub, who may ask."""

    def __init__(self, home: Path, rules: access.Rules, desks: chat.Desks = chat.claude_desk) -> None:
        self.home, self.rules, self.hub, self.talks = home, rules, Hub(home), chat.Talks(home, desks)

    def leave(self) -> None:
        """Tell everybody that the server stops."""
        self.hub.leave()
        self.talks.leave()

    async def close(self) -> None:
        """End what is under way."""
        await self.hub.close()
        await self.talks.close()

    def app(self) -> ASGIApp:
        """The whole application."""
        return Guard(self.rules, Starlette(routes=self.routes(), exception_handlers={404: _no_such}))

    def routes(self) -> list[Route]:
        """Every address there is."""
        def get(path: str, answer: Answer) -> Route:
            return Route(path, told(answer), methods=["GET"])

        def post(path: str, answer: Answer) -> Route:
            return Route(path, told(answer), methods=["POST"])

        return [
            get("/", static_files.page), get("/chat", static_files.page), get("/static/{name:path}", static_files.file),
            get("/api/runs", self.runs), get("/api/runs/{run}", self.run), get("/api/events", self.events),
            get("/api/runs/{run}/nodes/{node}", self.node), get("/api/runs/{run}/nodes/{node}/log", self.log),
            get("/api/runs/{run}/nodes/{node}/transcript", self.transcript),
            get("/api/crew", self.crew), get("/api/conversations", self.conversations),
            get("/api/conversations/{talk}", self.conversation), get("/api/chat/{talk}/events", self.listen),
            post("/api/chat", self.say), post("/api/chat/{talk}/cancel", self.cancel),
            post("/api/runs/{run}/actions", self.act_on_run),
            post("/api/runs/{run}/nodes/{node}/actions", self.act_on_node),
            post("/api/runs/{run}/gates/{gate:path}", self.answer_gate),
            post("/api/runs/{run}/queue", self.act_on_queue),
            post("/api/runs/{run}/queue/{entry}", self.act_on_entry),
        ]

    # ---- reading

    async def runs(self, request: Request) -> Response:
        """All runs."""
        return answer(await self.hub.runs())

    async def run(self, request: Request) -> Response:
        """One run as it is now."""
        snapshot = await self.hub.snapshot(run_of(request))
        return answer({**snapshot, "write": may_write(request)})

    async def events(self, request: Request) -> Response:
        """What happens in some runs from now on, or since an event that the client saw."""
        listed = "runs" in request.query_params
        client = await self.hub.join(places_of(request), write=may_write(request), listed=listed)
        return streamed(EventStream(client.events(), lambda: self.hub.part(client)))

    async def node(self, request: Request) -> Response:
        """One node in detail."""
        run, name = run_of(request), node_of(request)
        return answer(await asyncio.to_thread(node.detail, self.home, run, name))

    async def log(self, request: Request) -> Response:
        """A piece of what its agent printed."""
        return await self._piece(node.log, request)

    async def transcript(self, request: Request) -> Response:
        """A piece of what its session said."""
        return await self._piece(node.transcript, request)

    async def _piece(self, read: Callable[..., dict[str, Any]], request: Request) -> Response:
        run, name, attempt = run_of(request), node_of(request), number(request, "attempt", 0)
        begin, until = number(request, "from", 0), time.monotonic() + min(number(request, "wait", 0), WAIT_SECONDS)
        folder = node.folder_of(self.home, run, name, attempt)
        with self.hub.watching(folder, folder / "claude") as written:
            while True:
                written.clear()  # before it is read: what is written meanwhile must not be waited for
                piece = await asyncio.to_thread(read, self.home, run, name, attempt, begin)
                left = until - time.monotonic()
                if piece["next"] != begin or piece["ended"] or left <= 0 or self.hub.leaving:
                    return answer(piece)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, UNTOLD)):
                        await written.wait()

    # ---- acting

    async def act_on_run(self, request: Request) -> Response:
        """Stop a run, or go on with it."""
        return await self._command(actions.of_run(run_of(request), await body_of(request)))

    async def act_on_node(self, request: Request) -> Response:
        """Park, unpark or respawn a node, or answer what it asks."""
        return await self._command(actions.of_node(run_of(request), node_of(request), await body_of(request)))

    async def answer_gate(self, request: Request) -> Response:
        """Answer a gate."""
        run, gate, body = run_of(request), request.path_params["gate"], await body_of(request)
        feed = await self.hub.feed(run)
        open_ = feed.followed.projection.state.gates.get(gate)
        if open_ is None:
            raise NotFound(f"no gate {gate!r:.60} is open in run {run}: it was answered meanwhile")
        return await self._command(actions.of_gate(run, open_.node, body))

    async def act_on_queue(self, request: Request) -> Response:
        """Pause the run's merge queue, or let it go on."""
        body, launch = await body_of(request), (await self.hub.feed(run_of(request))).launch
        return await self._command(actions.of_queue(launch.repo, launch.base, body))

    async def act_on_entry(self, request: Request) -> Response:
        """Hold, release, cancel or retry a merge entry."""
        run_of(request)
        return await self._command(actions.of_entry(request.path_params["entry"], await body_of(request)))

    # ---- the butler

    async def crew(self, request: Request) -> Response:
        """Who there is to speak with."""
        return answer(await asyncio.to_thread(chat.crew, self.home))

    async def conversations(self, request: Request) -> Response:
        """What was spoken of."""
        return answer(await asyncio.to_thread(self.talks.kept))

    async def conversation(self, request: Request) -> Response:
        """One conversation."""
        return answer(self.talks.conversation(request.path_params["talk"]))

    async def say(self, request: Request) -> Response:
        """Say something; the events of the answer."""
        message, name = chat.message_of(await body_of(request))
        talk = self.talks.of(name)
        client = talk.say(message)
        return streamed(EventStream(client.events(), lambda: talk.part(client)))

    async def listen(self, request: Request) -> Response:
        """The events of a conversation, since one that was seen."""
        talk = self.talks.of(request.path_params["talk"])
        client = talk.join(last_seen(request))
        return streamed(EventStream(client.events(), lambda: talk.part(client)))

    async def cancel(self, request: Request) -> Response:
        """Give up the message that is being answered."""
        await body_of(request)
        if not await self.talks.of(request.path_params["talk"]).cancel():
            raise Refused("nothing is being answered")
        return answer({"ok": True, "message": "cancelled"})

    async def _command(self, words: list[str]) -> Response:
        return answer({"ok": True, "message": await actions.run_command(self.home, words)})


class Guard:
    """Judges each request before anything of it is read, and puts the headers of `access` on each answer."""

    def __init__(self, rules: access.Rules, inner: ASGIApp) -> None:
        self.rules, self.inner = rules, inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        headers = one_each(scope["headers"])

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        given = request.query_params.get(access.QUERY)
        if given is not None and headers.get("host", "") in self.rules.hosts and scope["method"] == "GET":
            await self._let_in(request, given)(scope, receive, guarded)
            return
        found = access.judge(self.rules, scope["method"], headers)
        if isinstance(found, access.Refusal):
            await refusal(found.status, found.message)(scope, receive, guarded)
            return
        scope["garrison.scope"] = found
        await self.inner(scope, receive, guarded)

    def _let_in(self, request: Request, token: str) -> Response:
        """The printed address: the token becomes a cookie and leaves the address bar."""
        if not self.rules.scope(token):
            return refusal(401, "that address is of another server or an older token; use the one printed last")
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != access.QUERY])
        path = request.url.path if request.url.path in static_files.PAGES else "/"
        there = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        there.headers["set-cookie"] = access.cookie_of(self.rules, token)
        there.headers["cache-control"] = "no-store"
        return there


_HEADERS = [(name.encode(), value.encode()) for name, value in access.HEADERS.items()]


def one_each(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Header names in lower case → values; one said twice has no value that could be believed."""
    found: dict[str, str] = {}
    for name, value in headers:
        word = name.decode("latin-1").lower()
        found[word] = f"{found[word]}, {value.decode('latin-1')}" if word in found else value.decode("latin-1")
    return found


def told(inner: Answer) -> Answer:
    """Errors as answers."""
    async def outer(request: Request) -> Response:
        try:
            return await inner(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except GarrisonError as error:
            return refusal(status_of(error), str(error))
        except Exception as error:
            told_mistake(error)
            return refusal(500, "the server has a mistake in itself; its terminal shows where")
    return outer


def status_of(error: GarrisonError) -> int:
    """The HTTP status of a refusal."""
    kinds = ((NotFound, 404), (UsageError, 400), (Refused, 409))
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)


def answer(body: Any, status: int = 200) -> Response:
    """JSON, kept by nobody."""
    return Response(as_json(body), status, {"cache-control": "no-store"}, "application/json")


def refusal(status: int, message: str) -> Response:
    """A refusal in one line; JSON, which a person can read too."""
    return answer({"ok": False, "message": message}, status)


async def _no_such(request: Request, error: Exception) -> Response:
    return refusal(404, "there is nothing at this address")


def streamed(stream: EventStream) -> Response:
    """An event stream as what a route returns."""
    return stream  # type: ignore[return-value]  # an ASGI application is all that is called


async def body_of(request: Request) -> Mapping[str, object]:
    """A request's JSON object; UsageError for anything else, and for too much of it."""
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


def last_seen(request: Request) -> str:
    """The id of the last event that a client saw; '' where it has seen none."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def places_of(request: Request) -> dict[str, str]:
    """Run → the id of the last event of it that a client saw: the parts of an id stand in the order of the runs."""
    runs = list(dict.fromkeys(check_run(run) for run in request.query_params.getlist("run")))
    if not runs and "runs" not in request.query_params:
        raise UsageError("say run=RUN, or runs=1 for the list of runs")
    if len(runs) > RUNS:
        raise UsageError(f"one stream follows {RUNS} runs at most")
    return dict(zip_longest(runs, last_seen(request).split(",")[:len(runs)], fillvalue=""))


def may_write(request: Request) -> bool:
    """Whether the asking token allows changes."""
    return bool(request.scope["garrison.scope"] == access.WRITE)


def run_of(request: Request) -> str:
    """The run of the address."""
    return check_run(request.path_params["run"])


def node_of(request: Request) -> str:
    """The node of the address."""
    return check_node(request.path_params["node"])


def number(request: Request, name: str, default: int) -> int:
    """A whole number of the query."""
    text = request.query_params.get(name, str(default))
    if len(text) > 15 or not text.removeprefix("-").isdecimal() or not text.isascii():
        raise UsageError(f"{name} should be a whole number")
    return int(text)

