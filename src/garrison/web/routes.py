"""Routes of the web server: authorize each request (`access`), turn it into one call, and the result into JSON."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from garrison.errors import NotFound, Refused, UsageError
from garrison.launch.disk import measure_run
from garrison.processes.runtime import Runtime
from garrison.records.events import FlowAdvanced, GuardianSignal, decode
from garrison.records.journal import read_all
from garrison.records.names import check_node, check_run
from garrison.records.run import RunFiles
from garrison.schedules.starts import Schedules, show_all
from garrison.values import Value, replace
from garrison.views.changes import Changes
from garrison.views.diff import CONTEXT, FileDiff
from garrison.views.waits import REVIEW
from garrison.web import access, actions, changes, chat, connections, node, page_files
from garrison.web.begin import (
    Beginnings,
    CommandLine,
    RunDefaults,
    StartOffer,
    lint_graph,
    order_added,
    order_again,
    order_edited,
    order_of,
    read_offer,
)
from garrison.web.broadcaster import POLL_WITHOUT_INOTIFY, Broadcaster
from garrison.web.history import PAGE, Histories, Wanted
from garrison.web.phones import Phones
from garrison.web.responses import Handler, body_of, handle_errors, json_answer, refusal, unknown_address
from garrison.web.sse import EventStream
from garrison.web.terminals import Terminals, size_of, typed_of
from garrison.web.webhooks import Webhooks

RUNS = 100
"""Most runs that one event stream follows."""
FIRST_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
QUERY = 200
"""Characters of a search."""
WAIT_SECONDS = 25
"""Longest wait of a request for more of a log."""


class Page:
    """Web application: the home, its runs, its conversations, and the access rules."""

    def __init__(self, home: Path, rules: access.Rules, broadcaster: Broadcaster, open_butler: chat.OpenButler,
                 webhooks: Webhooks, terminals: Terminals | None = None) -> None:
        self.home, self.rules, self.broadcaster, self.webhooks = home, rules, broadcaster, webhooks
        self.conversations = chat.Conversations(home, open_butler)
        self.histories = Histories(home)
        self.changes = changes.ChangeReader(home)
        self.terminals = terminals or Terminals(home)
        self.beginnings = Beginnings(home)
        self.phones = Phones(home, rules)

    def leave(self) -> None:
        """Tell all clients that the server is stopping."""
        self.broadcaster.leave()
        self.conversations.leave()
        self.terminals.leave()

    async def close(self) -> None:
        """Stop all work in progress."""
        await self.broadcaster.close()
        await self.conversations.close()
        await self.terminals.close()
        await self.webhooks.close()
        await self.beginnings.close()

    def app(self) -> ASGIApp:
        return AccessGuard(self.rules, Starlette(routes=self.routes(), exception_handlers={404: unknown_address}),
                           self.broadcaster.expect)

    def routes(self) -> list[Route]:
        """Return all routes."""
        def get(path: str, handler: Handler) -> Route:
            return Route(path, handle_errors(handler), methods=["GET"])

        def post(path: str, handler: Handler) -> Route:
            return Route(path, handle_errors(handler), methods=["POST"])

        def read(path: str, call: Callable[[Request], object]) -> Route:
            """Return the route of a call that reads files, in a thread."""
            async def handler(request: Request) -> Response:
                return json_answer(await asyncio.to_thread(call, request))
            return get(path, handler)

        return [
            get("/", page_files.send_index), get("/chat", page_files.send_index),
            get("/static/{name:path}", page_files.send_file),
            *([post(access.WEBHOOK, self.receive_webhook)] if self.webhooks.are_on else []),
            post(access.EXCHANGE, self.session),
            get("/service_worker.js", page_files.send_worker),
            post(access.PAIR, self.phones.pair),
            post(access.CHALLENGE, self.phones.challenge),
            post(access.DEVICE_SESSION, self.phones.begin_session),
            get("/api/device", self.phones.describe),
            post(access.SUBSCRIBE, self.phones.subscribe),
            post(f"{access.BUTTON}{{token}}", self.phones.press_button),
            read("/api/runs/{run}/notices/{key:path}", lambda asked: find_answer(
                self.home, run_of(asked), asked.path_params["key"])),
            get("/api/home", self.home_facts),
            get("/api/begin", self.offer),
            post("/api/begin", self.begin),
            get("/api/begin/{beginning}", self.beginning),
            post("/api/lint", self.lint),
            read("/api/schedules", lambda _: show_all(Schedules(self.home), time.time())),
            post("/api/schedules/{schedule}", self.act_on_schedule),
            get("/api/plans", self.plans),
            get("/api/lessons", self.lessons),
            post("/api/lessons/{lesson}", self.act_on_lesson),
            get("/api/runs", self.runs),
            get("/api/runs/{run}", self.run),
            read("/api/runs/{run}/timeline", lambda asked: self.histories.timeline(run_of(asked))),
            read("/api/runs/{run}/disk", lambda asked: measure_run(Runtime.real(self.home), run_of(asked))),
            read("/api/runs/{run}/history/{list}", lambda asked: self.histories.page(
                run_of(asked), asked.path_params["list"], wanted_of(asked))),
            get("/api/events", self.events),
            read("/api/runs/{run}/nodes/{node}", lambda asked: node.node_detail(
                self.home, run_of(asked), node_of(asked))),
            get("/api/runs/{run}/nodes/{node}/log", lambda asked: self._piece(node.read_log, asked)),
            get("/api/runs/{run}/nodes/{node}/transcript", lambda asked: self._piece(node.read_transcript, asked)),
            read("/api/runs/{run}/nodes/{node}/changes", self.read_changes),
            read("/api/runs/{run}/nodes/{node}/diff", self.read_diff),
            read("/api/runs/{run}/nodes/{node}/artefact", self.read_artefact),
            get("/api/runs/{run}/nodes/{node}/terminal", self.open_terminal),
            get("/api/runs/{run}/gates/{gate:path}", self.read_decision),
            read("/api/runs/{run}/nodes/{node}/{file}/search", self.search),
            post("/api/runs/{run}/actions", self.act_on_run),
            post("/api/runs/{run}/again", self.begin_again),
            post("/api/runs/{run}/tasks", self.add_task),
            post("/api/runs/{run}/nodes/{node}/edit", self.edit_node),
            post("/api/runs/{run}/nodes/{node}/actions", self.act_on_node),
            post("/api/runs/{run}/gates/{gate:path}", self.answer_question),
            post("/api/runs/{run}/queue", self.act_on_queue),
            post("/api/runs/{run}/queue/{entry}", self.act_on_entry),
            post("/api/terminals/{terminal}/keyboard", self.hand_keyboard),
            post("/api/terminals/{terminal}/keys", self.type_keys),
            read("/api/crew", lambda _: chat.read_members(self.home)),
            read("/api/conversations", lambda _: self.conversations.list()),
            get("/api/conversations/{conversation}", self.conversation),
            post("/api/chat", self.send_message),
            get("/api/chat/{conversation}/events", self.conversation_events),
            post("/api/chat/{conversation}/cancel", self.cancel_answer),
        ]

    async def session(self, request: Request) -> Response:
        """Exchange the ticket or session of the request for a new session."""
        await body_of(request)
        now = time.time()
        given = self.rules.read_pass(access.bearer_of(request.headers), now)
        made = self.rules.issue_session(given, now) if given is not None else None
        if made is None:
            return refusal(request, access.NO_ACCESS.status, access.NO_ACCESS.message)
        return json_answer({"ok": True, "session": made[0], "seconds": made[1]})

    async def receive_webhook(self, request: Request) -> Response:
        """Poll the forges because one of them has sent a delivery."""
        return await self.webhooks.receive(request, combine_headers(request.scope["headers"]))

    # ---- runs

    async def home_facts(self, request: Request) -> Response:
        return json_answer({"home": str(self.home), "write": may_write(request)})

    async def runs(self, request: Request) -> Response:
        return json_answer(await self.broadcaster.runs())

    async def run(self, request: Request) -> Response:
        snapshot = await self.broadcaster.snapshot(run_of(request))
        return json_answer(replace(snapshot, write=may_write(request)))

    async def events(self, request: Request) -> Response:
        """Stream the events of runs from now on, or since the last event that the client saw.

        With `first`, send the first event alone.
        """
        if "first" in request.query_params:
            run = next(iter(cursors_of(request)), "")
            return Response(await self.broadcaster.first(run, write=may_write(request)), 200, FIRST_HEADERS)
        with_list = "runs" in request.query_params
        client = await self.broadcaster.join(cursors_of(request), write=may_write(request), with_list=with_list)
        return as_response(EventStream(client.events(), lambda: self.broadcaster.part(client)))

    def search(self, request: Request) -> node.TextMatch:
        """Find the next line of a node's log or transcript that contains a text."""
        return node.find_text(
            self.home, run_of(request), node_of(request), query_number(request, "attempt", 0),
            request.path_params["file"], request.query_params.get("q", "")[:QUERY], query_number(request, "from", 0),
            backwards=request.query_params.get("back", "") == "1")

    def read_changes(self, request: Request) -> Changes | changes.NoChanges:
        """Return the changes of an attempt at a node, by default the latest."""
        return self.changes.read(look_of(request), max(0, query_number(request, "from", 0)))

    def read_diff(self, request: Request) -> FileDiff:
        """Return lines of one changed file, with the requested number of unchanged ones around them."""
        return self.changes.diff(
            look_of(request), request.query_params.get("head", ""), query_number(request, "file", 0),
            query_number(request, "from", 0), context=query_number(request, "context", CONTEXT),
            big=request.query_params.get("big", "") == "1")

    def read_artefact(self, request: Request) -> changes.ArtefactEnd:
        return self.changes.artefact(run_of(request), node_of(request), query_number(request, "attempt", 1),
                                     request.query_params.get("name", ""))

    async def read_decision(self, request: Request) -> Response:
        """Return what the user decides at a question: last outcomes, what they changed, costs."""
        run, place = run_of(request), request.path_params["gate"]
        model = (await self.broadcaster.stream(run)).page.model
        entries = model.queue.entries if model.queue is not None and place.startswith(REVIEW) else {}
        entry = entries.get(place.removeprefix(REVIEW))
        asked = model.state.waits.get(place)
        if entry is None and asked is None:
            raise NotFound(f"no question {place!r:.60} is open in run {run}; it has been answered")
        question, node_name = ("", entry.node) if entry is not None else (asked.node if asked is not None else "", "")
        return json_answer(await asyncio.to_thread(self.changes.decision, run, question, node_name))

    async def _piece(self, read: Callable[..., node.Piece], request: Request) -> Response:
        run, name, attempt = run_of(request), node_of(request), query_number(request, "attempt", 0)
        begin, stop = query_number(request, "from", 0), query_number(request, "until", -1)
        until = time.monotonic() + min(query_number(request, "wait", 0), WAIT_SECONDS)
        folder = node.attempt_folder(self.home, run, name, attempt)
        with self.broadcaster.watching(folder, folder / "claude") as written:
            while True:
                written.clear()  # before reading: a write in between must wake the wait below
                piece = await asyncio.to_thread(read, self.home, run, name, attempt, begin, stop)
                left = until - time.monotonic()
                if piece.next != begin or piece.ended or left <= 0 or self.broadcaster.stopping:
                    return json_answer(piece)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_WITHOUT_INOTIFY)):
                        await written.wait()

    # ---- starting work

    async def offer(self, _request: Request) -> Response:
        """Return what can be started, with the defaults of the command line."""
        return json_answer(await asyncio.to_thread(self.read_offer))

    def read_offer(self) -> StartOffer:
        """Return what can be started here."""
        here: Path | None
        try:
            here = Path.cwd()
        except FileNotFoundError:  # removed, or replaced, since the server was started in it
            here = None
        return read_offer(self.home, here, os.environ.get("PATH", ""))

    async def begin(self, request: Request) -> Response:
        """Start a task, a list of tasks or an issue in the background."""
        body, offer = await body_of(request), await asyncio.to_thread(self.read_offer)
        if body.get("kind") == "plan":  # it may be the first of its repository
            plans = (await actions.read_plans(self.home)).plans
            offer = replace(offer, places=(*offer.places, *(RunDefaults(plan.repo) for plan in plans)))
        return json_answer(self.beginnings.start(order_of(body, offer)))

    async def begin_again(self, request: Request) -> Response:
        """Launch a run's graph again."""
        await body_of(request)
        return json_answer(self.beginnings.start(await asyncio.to_thread(order_again, self.home, run_of(request))))

    async def beginning(self, request: Request) -> Response:
        return json_answer(self.beginnings.look(request.path_params["beginning"]))

    async def lint(self, request: Request) -> Response:
        """Return the errors and warnings of a graph that is being edited."""
        return json_answer(await asyncio.to_thread(lint_graph, await body_of(request)))

    async def add_task(self, request: Request) -> Response:
        """Add a task to an active run."""
        return await self._order(order_added(run_of(request), await body_of(request)))

    async def edit_node(self, request: Request) -> Response:
        """Change a node that has not started."""
        return await self._order(order_edited(run_of(request), node_of(request), await body_of(request)))

    async def _order(self, order: CommandLine) -> Response:
        message = await actions.run_command(self.home, order.words, order.text)
        return json_answer({"ok": True, "message": message, "command": order.command})

    # ---- actions

    async def act_on_run(self, request: Request) -> Response:
        """Stop or resume a run."""
        return await self._command(actions.run_command_words(run_of(request), await body_of(request)))

    async def act_on_node(self, request: Request) -> Response:
        """Park, unpark, respawn or cancel a node, or answer its question."""
        run, name = run_of(request), node_of(request)
        return await self._command(actions.answered_through(
            actions.node_command_words(run, name, await body_of(request)), self.phones.name_of(request)))

    async def answer_question(self, request: Request) -> Response:
        """Answer a question."""
        run, place, body = run_of(request), request.path_params["gate"], await body_of(request)
        stream = await self.broadcaster.stream(run)
        if place.startswith(REVIEW):
            queue = stream.page.model.queue
            entry = queue.entries.get(place.removeprefix(REVIEW)) if queue is not None else None
            if entry is None or entry.run != run:
                raise NotFound(f"nothing waits for approval as {place!r:.60}; it has been decided")
            comments = await asyncio.to_thread(actions.comments_of, body, lambda number, since: self.changes.path(
                changes.Look(run, entry.node, entry.attempt, since), entry.oid, number))
            return await self._command(actions.review_command_words(run, entry.node, body, entry.attempt, entry.oid,
                                                                    comments))
        asked = stream.page.model.state.waits.get(place)
        if asked is None:
            raise NotFound(await asyncio.to_thread(_describe_settled, self.home, run, place))
        return await self._command(actions.answered_through(
            actions.answer_command_words(run, asked.node, body), self.phones.name_of(request), place))

    async def act_on_queue(self, request: Request) -> Response:
        """Pause or resume the merge queue of a run's target, or of the run's own branch."""
        body, launch = await body_of(request), (await self.broadcaster.stream(run_of(request))).launch
        return await self._command(actions.queue_command_words(launch.repo, (launch.base, launch.onto), body))

    async def act_on_entry(self, request: Request) -> Response:
        """Hold, release, cancel or retry a merge entry."""
        run_of(request)
        return await self._command(actions.entry_command_words(request.path_params["entry"], await body_of(request)))

    async def act_on_schedule(self, request: Request) -> Response:
        """Start a schedule's command now, pause it or resume it."""
        return await self._command(actions.named_command_words(
            actions.SCHEDULE, request.path_params["schedule"], await body_of(request)))

    async def plans(self, _request: Request) -> Response:
        """List the plans that have not started."""
        return json_answer(await actions.read_plans(self.home))

    async def lessons(self, request: Request) -> Response:
        """List the lessons of a repository."""
        repo = await self._repo(request.query_params.get("repo", ""))
        return json_answer(await actions.read_lessons(self.home, repo))

    async def act_on_lesson(self, request: Request) -> Response:
        """Keep a proposed lesson, by a commit that the gate tests or in the home, or drop one."""
        body = await body_of(request)
        words = actions.named_command_words(actions.LESSON, request.path_params["lesson"], body)
        repo = await self._repo(actions.text_of(body, "repo", required=True))
        return json_answer({"ok": True, "message": await actions.run_command(
            self.home, words, repo=repo, seconds=actions.GATE_SECONDS)})

    async def _repo(self, named: str) -> str:
        """Return a repository that a request names; NotFound for one without runs here."""
        if named not in {place.repo for place in (await asyncio.to_thread(self.read_offer)).places}:
            raise NotFound(f"{named!r:.200} has no runs here")
        return named

    async def _command(self, words: list[str]) -> Response:
        return json_answer({"ok": True, "message": await actions.run_command(self.home, words)})

    # ---- terminals

    async def open_terminal(self, request: Request) -> Response:
        """Stream what draws the session of a node's agent."""
        terminal = await self.terminals.open(run_of(request), node_of(request))
        return as_response(EventStream(terminal.events(), lambda: self.terminals.part(terminal)))

    async def hand_keyboard(self, request: Request) -> Response:
        """Give the keyboard to the user of a terminal (`hold`), with the size of their screen, or take it back."""
        terminal, body = self.terminals.get(request.path_params["terminal"]), await body_of(request)
        if not isinstance(body.get("hold"), bool):
            raise UsageError("pass hold, true or false")
        await (terminal.take_keyboard(size_of(body)) if body["hold"] else terminal.release_keyboard())
        return json_answer({"ok": True, "hold": terminal.has_keyboard})

    async def type_keys(self, request: Request) -> Response:
        """Type into the session of a terminal that has the keyboard."""
        terminal = self.terminals.get(request.path_params["terminal"])
        await terminal.type(typed_of(await body_of(request)))
        return json_answer({"ok": True, "message": "typed"})

    # ---- the butler

    async def conversation(self, request: Request) -> Response:
        return json_answer(await self.conversations.read(request.path_params["conversation"], wanted_of(request)))

    async def send_message(self, request: Request) -> Response:
        """Send a message to the butler; stream the events of its answer."""
        body = await body_of(request)
        message, name = chat.message_of(body)
        conversation = self.conversations.get(name)
        client = conversation.send(message, chat.agreed_to(body), chat.place_of(body))
        return as_response(EventStream(client.events(), lambda: conversation.part(client)))

    async def conversation_events(self, request: Request) -> Response:
        """Stream the events of a conversation, since one that the client saw."""
        conversation = self.conversations.get(request.path_params["conversation"])
        client = conversation.join(last_event_id(request))
        return as_response(EventStream(client.events(), lambda: conversation.part(client)))

    async def cancel_answer(self, request: Request) -> Response:
        """Cancel the current answer."""
        await body_of(request)
        if not await self.conversations.get(request.path_params["conversation"]).cancel():
            raise Refused("no answer is in progress")
        return json_answer({"ok": True, "message": "cancelled"})


class AccessGuard:
    """Authorize each request before its body is read, and add the headers of `access` to each response."""

    def __init__(self, rules: access.Rules, inner: ASGIApp, expect: Callable[[str], None]) -> None:
        """`expect` is called with the run that a browser is about to open after its log-in ('' for none)."""
        self.rules, self.inner, self.expect = rules, inner, expect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        headers = combine_headers(scope["headers"])
        device = ""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message = {**message, "headers": [*message["headers"],
                                                  *((name, value) for name, value in _HEADERS if name not in own)]}
            # Each piece of a stream: its pass was checked only at its start.
            if device and message.get("more_body") and not self.rules.scope_of_device(device):
                raise ConnectionAbortedError("the device was revoked")
            await send(message)

        if connections.is_beyond_capacity(scope):
            await refusal(request, 503, "the server has no room for another connection; close pages that you do not "
                                        "need, and try again", close=True)(scope, receive, guarded)
            return
        token = request.query_params.get(access.QUERY)
        if token is not None and self.rules.is_own_host(headers.get("host", "")) and scope["method"] == "GET":
            await self._log_in(request, token)(scope, receive, guarded)
            return
        verdict = access.judge(self.rules, scope["method"], scope["path"], headers, time.time())
        if isinstance(verdict, access.AccessDenied):
            # The rest of a refused request is not read, however slowly it comes.
            await refusal(request, verdict.status, verdict.message, close=True)(scope, receive, guarded)
            return
        given = self.rules.read_pass(access.bearer_of(headers), time.time()) if verdict else None
        scope["garrison.scope"], scope["garrison.device"] = verdict, given.device if given is not None else ""
        device = scope["garrison.device"]  # from now on a stream to it ends when it is revoked
        if verdict:
            connections.recognize(scope)
        await self.inner(scope, receive, guarded)

    def _log_in(self, request: Request, token: str) -> Response:
        """Redirect to the page with a ticket in place of the token, so that neither address bar nor history keep it.

        A browser does not send the part after `#`, and the page removes it at once.
        """
        scope = self.rules.scope_of_token(token)
        if not scope:
            return refusal(request, 401, "this address is another server's or has an old token: open the one that "
                                         "`garrison serve` printed last", close=True)
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != access.QUERY])
        path = request.url.path if request.url.path in page_files.PAGES else "/"
        self.expect(request.query_params.get("run", ""))
        ticket = self.rules.issue_ticket(scope, time.time())
        redirect = RedirectResponse(f"{path}{'?' if rest else ''}{rest}#{ticket}", 303)
        if self.rules.former_cookie in request.cookies:
            redirect.delete_cookie(self.rules.former_cookie, httponly=True, samesite="strict")
        redirect.headers["cache-control"] = "no-store"
        return redirect


_HEADERS = [(name.encode(), value.encode()) for name, value in access.HEADERS.items()]


# ---- parts of a request


def combine_headers(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return header names in lower case → values; a repeated header has both values, which no check accepts."""
    combined: dict[str, str] = {}
    for name, value in headers:
        word = name.decode("latin-1").lower()
        combined[word] = f"{combined[word]}, {value.decode('latin-1')}" if word in combined else value.decode("latin-1")
    return combined


def last_event_id(request: Request) -> str:
    """Return the id of the last event that a client saw; '' if none."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def cursors_of(request: Request) -> dict[str, str]:
    """Return run → id of the last event that the client saw; the parts of an id are in the order of the runs."""
    runs = list(dict.fromkeys(check_run(run) for run in request.query_params.getlist("run")))
    if not runs and "runs" not in request.query_params:
        raise UsageError("pass run=RUN, or runs=1 for the list of runs")
    if len(runs) > RUNS:
        raise UsageError(f"one stream follows {RUNS} runs at most")
    return dict(zip_longest(runs, last_event_id(request).split(",")[:len(runs)], fillvalue=""))


def may_write(request: Request) -> bool:
    return bool(request.scope["garrison.scope"] == access.WRITE)


def look_of(request: Request) -> changes.Look:
    """Return the work that a request asks for."""
    return changes.Look(run_of(request), node_of(request), query_number(request, "attempt", 0) or None,
                        query_number(request, "since", 0))


def run_of(request: Request) -> str:
    return check_run(request.path_params["run"])


def node_of(request: Request) -> str:
    return check_node(request.path_params["node"])


def wanted_of(request: Request) -> Wanted:
    query = request.query_params
    return Wanted(query.get("before"), query.get("after"), query_number(request, "limit", PAGE),
                  query.get("q", "")[:QUERY])


def query_number(request: Request, name: str, default: int) -> int:
    """Return a whole number of the query string."""
    text = request.query_params.get(name, str(default))
    if len(text) > 15 or not text.removeprefix("-").isdecimal() or not text.isascii():
        raise UsageError(f"{name} should be a whole number")
    return int(text)


def as_response(stream: EventStream) -> Response:
    return stream  # type: ignore[return-value]  # Starlette calls any ASGI application


# ---- the answer to a question of a notification; it may have been given elsewhere ---------------------------------

TERMINAL, DEFAULT = "a terminal", "its default, since the time was up"
"""Channel of an answer whose record names none."""


class Answered(Value):
    """Whether, when (UTC) and through which channel a question was answered."""

    answered: bool = False
    at: str = ""
    by: str = ""


def find_answer(home: Path, run: str, key: str) -> Answered:
    """Return how the question of a notification (`run.notifications.Notification.key`) was answered."""
    kind, _, rest = key.partition(":")
    for entry in reversed(list(read_all(RunFiles(home, run).journal))):
        event = decode(entry)
        if entry.kind not in ("signal", "flow"):
            continue
        if isinstance(event, GuardianSignal) and _is_answer(event, kind, rest):
            return Answered(True, entry.at, event.by or TERMINAL)
        if isinstance(event, FlowAdvanced) and kind == "gate" and rest.startswith(f"{event.place}:") and event.place:
            return Answered(True, entry.at, DEFAULT)
    return Answered()


def _describe_settled(home: Path, run: str, place: str) -> str:
    """Return why a question can no longer be answered: when and through which channel it was."""
    found = find_answer(home, run, f"gate:{place}:")
    if not found.answered:
        return f"no question {place!r:.60} is open in run {run}; it has been answered"
    return f"your answer was not recorded: at {found.at[11:16]} UTC this was answered through {found.by}"


def _is_answer(event: GuardianSignal, kind: str, rest: str) -> bool:
    if kind == "question":
        return bool(event.answer) and rest == f"{event.node}:{event.answer}"
    return kind == "gate" and event.flow is not None and bool(event.flow.place) and rest.startswith(
        f"{event.flow.place}:")
