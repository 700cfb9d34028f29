"""Notifications: tell the user that something is parked, a question is open, work waits for approval, an agent
waits for long (a usage limit, an outage), or the run has ended.

    [notify]
    webhook = "https://ntfy.example/garrison"
    command = ["notify-send", "garrison {run}", "{text}"]
    urls_file = "~/.config/garrison-notify"
    on = ["escalate", "question", "failed", "wait"]
    quiet = "22:00-07:00"
    timeout = 10

The notifications due follow from the state of the run alone, and each is journaled once its command has ended. The
successor of a launcher that died sends the rest: one of them perhaps twice, but none is lost. A failing command is
logged and stops nothing. `on` may also list `done` and `stopped`. The command gets the event as JSON on standard input
and its fields as GARRISON_NOTIFY_TEXT, _RUN, _EVENT and _NODE; the webhook gets it as the body of a POST. An agent may
have written the text: in words of the command it has no character that a shell interprets, and as a part of
a script it is refused (`config.NotifyConfig`). The webhook's address may have a secret, so it is in no command line: it
is the first line of its program's input. The services of `urls_file` and the paired devices have one program
(`garrison.notify.services`), which reads their addresses itself. All programs of a notification run at once, each for
at most `timeout` seconds, so that one which hangs delays neither the others nor the run. In quiet hours nothing is
sent: notifications that are still due when they end are sent then, and the end of a run is kept for the next
`garrison up`. The page shows the same as desktop notifications.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, RecordError
from garrison.pipeline.questions import CONFIRM, SINGLE_SELECT
from garrison.processes.loop import HINDERED, log_line, read_hindrance
from garrison.records import atomic, log_retention, record
from garrison.system.clock import from_iso
from garrison.system.command import Job
from garrison.system.environment import NOTIFY_URLS
from garrison.system.stamps import modified_at
from garrison.system.terminal_text import clean
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from garrison.config import NotifyConfig
    from garrison.merge.state import QueueState
    from garrison.pipeline.questions import OpenWait
    from garrison.run.launcher_policy import ParkedName
    from garrison.run.state import RunState

_PLACEHOLDER = re.compile(r"\{(text|run|event|node)\}")
HINDRANCE_WAIT, LONG_WAIT = 60.0, 120.0
"""Seconds for which an agent has to wait before the user is notified."""
_PLAIN = str.maketrans({"'": "’", "`": "’", '"': "”", "$": "＄", "\\": "＼", ";": "；", "&": "＆", "|": "｜",
                        "<": "‹", ">": "›", "(": "（", ")": "）", "@": "＠"})
"""Characters that a shell interprets → look-alikes. The command may pass its words to a shell: `ssh` does."""
_VARIABLES = {"GARRISON_NOTIFY_TEXT": "text", "GARRISON_NOTIFY_RUN": "run", "GARRISON_NOTIFY_EVENT": "event",
              "GARRISON_NOTIFY_NODE": "node"}
"""Variable of the command → field of the notification."""
_MAX_VARIABLE = 30_000
_MAX_TEXT = 500
"""Characters of a text from outside in one notification."""


class Delivery(Value):
    """One way to send a notification: its name in `[notify]`, and the program."""

    name: str
    argv: tuple[str, ...]
    secret: str = ""
    """First line of its input, before the notification."""


class Notification(Value):
    """One thing to notify about, once per `key`."""

    key: str
    event: str
    text: str
    node: str = ""
    question: str = ""
    """Id of the question, '' if an answer alone is not enough."""
    options: tuple[str, ...] = ()
    """Answers to it that can be undone; none for a question in words."""
    until: str = ""
    """When its default answers it, in UTC."""


class AgentWait(Value):
    """A long wait of a node's agent: a limit or an outage, which ends by itself."""

    node: str
    attempt: int
    what: str
    since: float
    """Seconds since 1970."""
    shared: str = ""
    """Id of an outage that blocks several agents: the user is notified once."""


def open_notifications(state: RunState, parked: Iterable[ParkedName], on: Collection[str], ended: str = "",
                       waits: Iterable[AgentWait] = ()) -> list[Notification]:
    """Return the notifications that are due now, of the events in `on`; `ended`: how the run ended, if so. Pure."""
    found = [Notification(f"escalate:{name.id}", "escalate", f"{name.who} is parked: {name.why}",
                          name.who if name.who in state.nodes else "") for name in parked]
    found += [Notification(f"question:{node}:{question.id}", "question", f"{node} asks: {question.text}", node,
                           question.id)
              for node, question in state.questions.items()]
    found += [Notification(f"gate:{wait.place}:{wait.at}", "question",
                           f"{wait.node} waits for you: {wait.question.text}", wait.node, wait.place,
                           _options(wait), wait.deadline)
              for wait in state.waits.values() if not wait.signal]
    found += [Notification(f"review:{node}:{attempt}", "question",
                           f"{node} waits for you: approve or reject attempt {attempt} (garrison review {node})", node)
              for node, attempt in state.reviews.items()]
    found += [Notification(f"wait:{wait.shared or f'{wait.node}:{wait.attempt}:{wait.since:.0f}'}", "wait",
                           f"{wait.node} waits and continues by itself: {wait.what}", wait.node) for wait in waits]
    pull = state.pull_request
    if pull.needs_person and not ended:
        found.append(Notification(f"pull_request:{pull.state}:{pull.since}", "question",
                                  f"{pull.describe()}{f' {pull.url}' if pull.url else ''}"))
    if ended:
        reason = f": {state.reason}" if state.reason else ""
        found.append(Notification(f"run:{ended}:{state.ends}", ended,  # a resumed run ends again
                                  f"run {ended}, {state.landed} of {len(state.nodes)} landed{reason}"))
    return [notification for notification in found if notification.event in on]


def _options(wait: OpenWait) -> tuple[str, ...]:
    """Return the answers of a question that a button may give; none if one of them cannot be undone."""
    question = wait.question
    is_choice = question.kind in (SINGLE_SELECT, CONFIRM) and not any(
        option.irreversible for option in question.options)
    return tuple(option.label for option in question.options) if is_choice else ()


def has_services(home: Path, config: NotifyConfig, environ: Mapping[str, str]) -> bool:
    """Return whether there are services or paired devices to which messages may go."""
    return bool(config.urls_file or environ.get(NOTIFY_URLS) or atomic.list_names(home / "web/devices"))


def is_quiet(hours: str, minute: int) -> bool:
    """Return whether a minute of the day is in the quiet hours (`22:00-07:00`; '': no quiet hours). Pure."""
    if not hours:
        return False
    begin, end = (int(part[:2]) * 60 + int(part[3:]) for part in hours.split("-"))
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def minute_of_day(now: float) -> int:
    """Return the minute of the local day at a time in seconds since 1970."""
    local = time.localtime(now)
    return local.tm_hour * 60 + local.tm_min


def due_notifications(state: RunState, parked: Iterable[ParkedName], notified: Collection[str], config: NotifyConfig,
                      ended: str = "", waits: Iterable[AgentWait] = (), *, services: bool = False,
                      ) -> list[Notification]:
    """Return the notifications that command, webhook and services have not sent yet; none without any. Pure."""
    if not (config.command or config.webhook or services):
        return []
    return [notification for notification in open_notifications(state, parked, config.on, ended, waits)
            if notification.key not in notified]


def find_waits(state: RunState, attempt_folder: Callable[[str, int], Path], config: NotifyConfig,
               now: float, read_queue: Callable[[], QueueState], *, services: bool = False) -> list[AgentWait]:
    """Return the agents that have waited longer than `LONG_WAIT`, if the user is to be notified; of several nodes that
    one cause blocks, the first.

    Args:
        attempt_folder: folder of a node's attempt.
        read_queue: read the queue of its nodes; called if any waits to land.
        now: seconds since 1970.
    """
    if "wait" not in config.on or not (config.command or config.webhook or services):
        return []
    from garrison.agents.conversation.trouble import current_wait  # few homes have notifications

    found, held_up = list[AgentWait](), dict[str, AgentWait]()
    for name, node in state.nodes.items():
        wait = current_wait(attempt_folder(name, node.attempt)) if node.status == "active" else None
        hindered = next((path for each in HINDERED.values()
                         if (path := attempt_folder(name, node.attempt) / each).exists()), None)
        if node.status == "active" and hindered is not None:
            what, since = read_hindrance(hindered.parent), modified_at(hindered, math.inf)
            held_up.setdefault(what, AgentWait(name, node.attempt, what, since))
        elif wait is not None and max(now, wait.until or 0.0) - wait.since > LONG_WAIT and not (
                wait.shared and any(each.shared == wait.shared for each in found)):
            found.append(AgentWait(name, node.attempt, wait.what, wait.since, wait.shared))
    landing = next((name for name, node in state.nodes.items() if node.status == "impl_complete"), None)
    if landing is not None and (queue := read_queue()).hindrance:
        held_up.setdefault(queue.hindrance, AgentWait(landing, state.nodes[landing].attempt, queue.hindrance,
                                                      from_iso(queue.hindered_at)))
    return found + [wait for wait in held_up.values() if now - wait.since > HINDRANCE_WAIT]


def plain(text: str) -> str:
    """Return a text from outside as one line without characters that a shell or a service's markup interprets. Pure."""
    return clean(" ".join(text.split()))[:_MAX_TEXT].translate(_PLAIN).lstrip("-")


def notify_argv(config: NotifyConfig, run: str, notification: Notification) -> list[str]:
    """Return the command for one notification; other words in braces stay as they are. Pure."""
    values = {"text": plain(notification.text), "run": run, "event": notification.event, "node": notification.node}
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in config.command]


def deliveries(config: NotifyConfig, run: str, notification: Notification, home: Path | None = None) -> list[Delivery]:
    """Return the programs that send one notification: command, webhook, and for a `home` its services. Pure."""
    found = []
    if config.command:
        found.append(Delivery("command", tuple(notify_argv(config, run, notification))))
    if config.webhook:
        found.append(Delivery("webhook", (sys.executable, "-P", "-m", "garrison.run.webhook"),
                              config.webhook))
    if home is not None:
        found.append(Delivery("services", (sys.executable, "-P", "-m", "garrison.notify.services", str(home))))
    return found


class HeldNotification(Value):
    """A notification that came in quiet hours."""

    run: str
    notification: Notification


def hold(home: Path, run: str, notification: Notification) -> None:
    """Keep a notification until the quiet hours have ended."""
    folder = atomic.make_directory(home / "web/held")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{run}-{notification.key}")[:120]
    atomic.write(folder / f"{name}.json", record.encode(HeldNotification(run, notification)))


def send_held(home: Path, config: NotifyConfig, environ: Mapping[str, str], now: float) -> int:
    """Send what was kept in quiet hours, once they are over; return how many there were. `now`: seconds since 1970."""
    folder = home / "web/held"
    if is_quiet(config.quiet, minute_of_day(now)):
        return 0
    sent = 0
    for name in sorted(name for name in atomic.list_names(folder) if name.endswith(".json")):
        try:
            data = atomic.read(folder / name)
            held = None if data is None else record.decode(HeldNotification, data, folder / name)
            (folder / name).unlink()  # before it is sent: two senders would send it twice
        except (RecordError, OSError):
            continue
        if held is not None:
            notifier = Notifier(config, held.run, environ, folder.parent / "notify.log", lambda _: None, home)
            notifier.add(held.notification)
            notifier.finish()
            sent += 1
    return sent


class Notifier:
    """Sends notifications one at a time; calls `on_done` when all programs of one have ended or could not be run.

    Args:
        config: the table `[notify]`.
        run: subject of the notifications.
        environ: environment of the programs.
        log: file for their output.
        on_done: called with each notification.
        home: home whose services and devices are also notified; None for none.
    """

    def __init__(self, config: NotifyConfig, run: str, environ: Mapping[str, str], log: Path,
                 on_done: Callable[[Notification], None], home: Path | None = None) -> None:
        self.config, self.run, self.environ, self.log, self.on_done = config, run, environ, log, on_done
        self.home = home
        self._queue: list[Notification] = []
        self._jobs: list[tuple[Delivery, Job]] | None = None
        """Running programs of the first notification; None before its start."""

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    @property
    def services(self) -> Path | None:
        """Return the home, if it has services or devices now."""
        return self.home if self.home and has_services(self.home, self.config, self.environ) else None

    def add(self, notification: Notification) -> None:
        """Queue a notification, unless it is already queued."""
        if all(queued.key != notification.key for queued in self._queue):
            self._queue.append(notification)

    def poll(self, now: float) -> None:
        """Finish what has ended and start the next; `now` is monotonic."""
        while self._queue:
            if self._jobs is None:
                started = [(each, self._start(self._queue[0], each, now)) for each in deliveries(
                    self.config, self.run, self._queue[0], self.services)]
                self._jobs = [(delivery, job) for delivery, job in started if job is not None]
            self._jobs = [(delivery, job) for delivery, job in self._jobs if not self._has_ended(delivery, job, now)]
            if self._jobs:
                return
            self._jobs = None
            self.on_done(self._queue.pop(0))

    def _has_ended(self, delivery: Delivery, job: Job, now: float) -> bool:
        result = job.poll(now)
        if result is not None and not result.ok:
            how = "timed out" if result.timed_out else f"ended with exit code {result.code}"
            log_line(f"the notify {delivery.name} {how}; its output is in {self.log}")
        return result is not None

    def finish(self) -> None:
        """Send the rest, each within its time limit, and all of it within two."""
        until = time.monotonic() + 2 * self.config.timeout
        while self.busy and time.monotonic() < until:
            self.poll(time.monotonic())
            time.sleep(0.01)
        if self.busy:
            log_line(f"{len(self._queue)} notifications were not sent: the services do not answer")

    def _start(self, notification: Notification, delivery: Delivery, now: float) -> Job | None:
        body = {"run": self.run, "event": notification.event, "text": notification.text, "node": notification.node}
        stdin = self.log.with_name(f"{self.log.stem}-{delivery.name}.json")
        log_retention.shorten_log(self.log)
        try:
            first = f"{delivery.secret}\n" if delivery.secret else ""
            sent = {"run": self.run, **asdict(notification)} if delivery.name == "services" else body
            atomic.write(stdin, f"{first}{json.dumps(sent)}\n".encode())
            told = {name: body[key].replace("\0", "")[:_MAX_VARIABLE] for name, key in _VARIABLES.items()}
            # The shell only redirects standard input; it does not parse the words of the command.
            shell = ["/bin/sh", "-c", 'exec <"$0"; rm -f "$0"; exec "$@"', str(stdin), *delivery.argv]
            return Job.start(shell, env={**self.environ, **told}, cwd=os.sep, log=self.log,
                             timeout_s=self.config.timeout, now=now)
        except (GarrisonError, OSError) as error:
            log_line(f"the notify {delivery.name} could not be run: {error}")
            return None
