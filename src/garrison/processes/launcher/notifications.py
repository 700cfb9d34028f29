"""Notifications: run the user's own command when something is parked, a question is open, or the run has ended.

    [notify]
    command = ["notify-send", "garrison {run}", "{text}"]
    on = ["escalate", "question", "failed"]
    timeout = 10

The notifications due follow from the state of the run alone, and each is journaled once its command has ended. The
successor of a launcher that died sends the rest: one of them perhaps twice, but none is lost. A failing command is
logged and stops nothing. `on` may also list `done` and `stopped`. The command gets the event as JSON on standard input.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.frozen import frozen
from garrison.processes.loop import log_line
from garrison.records import atomic
from garrison.system.jobs import Job
from garrison.system.terminal_text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from garrison.config import NotifyConfig
    from garrison.processes.launcher.policy import Parked
    from garrison.processes.run_state import RunState

_PLACEHOLDER = re.compile(r"\{(text|run|event|node)\}")
_MAX_TEXT = 500
"""Characters of a text from outside in one notification."""


@frozen
class Notification:
    """One thing to notify about, once per `key`."""

    key: str
    event: str
    text: str
    node: str = ""


def due_notifications(state: RunState, parked: Iterable[Parked], notified: Collection[str], config: NotifyConfig,
                      ended: str = "") -> list[Notification]:
    """Return the notifications due now; `ended` is how the run ended, if it did. Pure."""
    due = [Notification(f"escalate:{name.id}", "escalate", f"{name.who} is parked: {name.why}",
                        name.who if name.who in state.nodes else "") for name in parked]
    due += [Notification(f"question:{node}:{question.id}", "question", f"{node} asks: {question.text}", node)
            for node, question in state.questions.items()]
    if ended:
        reason = f": {state.reason}" if state.reason else ""
        due.append(Notification(f"run:{ended}:{state.ends}", ended,  # a resumed run ends once more
                                f"run {ended}, {state.landed} of {len(state.nodes)} landed{reason}"))
    return [notification for notification in due
            if notification.key not in notified and notification.event in config.on and config.command]


def notify_argv(config: NotifyConfig, run: str, notification: Notification) -> list[str]:
    """Return the command for one notification; other words in braces stay as they are. Pure."""
    values = {"text": clean(notification.text)[:_MAX_TEXT], "run": run, "event": notification.event,
              "node": notification.node}
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in config.command]


class Notifier:
    """Runs the command, one notification at a time; calls `on_done` when a command has ended or could not be run."""

    def __init__(self, config: NotifyConfig, run: str, environ: Mapping[str, str], log: Path,
                 on_done: Callable[[Notification], None]) -> None:
        self.config, self.run, self.environ, self.log, self.on_done = config, run, environ, log, on_done
        self._job: Job | None = None
        self._queue: list[Notification] = []
        """The command that runs, if any, is the first one's."""

    @property
    def busy(self) -> bool:
        """Return whether any notification is still to be sent."""
        return bool(self._queue)

    def add(self, notification: Notification) -> None:
        """Queue a notification; one that is queued already is not queued again."""
        if all(queued.key != notification.key for queued in self._queue):
            self._queue.append(notification)

    def poll(self, now: float) -> None:
        """Finish a command that has ended and start the next; `now` is monotonic."""
        if self._job is not None:
            result = self._job.poll(now)
            if result is None:
                return
            self._job = None
            if not result.ok:
                how = "timed out" if result.timed_out else f"ended with exit code {result.exit_code}"
                log_line(f"the notify command {how}; its output is in {self.log}")
            self.on_done(self._queue.pop(0))
        while self._queue and self._job is None:
            self._job = self._start(self._queue[0], now)
            if self._job is None:
                self.on_done(self._queue.pop(0))

    def finish(self) -> None:
        """Send the rest, each within the command's time limit."""
        while self.busy:
            self.poll(time.monotonic())
            time.sleep(0.01)

    def _start(self, notification: Notification, now: float) -> Job | None:
        argv = notify_argv(self.config, self.run, notification)
        body = {"run": self.run, "event": notification.event, "text": notification.text, "node": notification.node}
        stdin = self.log.with_suffix(".json")
        try:
            atomic.write(stdin, (json.dumps(body) + "\n").encode())
            # The shell only redirects standard input; it does not parse the words of the command.
            shell = ["/bin/sh", "-c", 'exec <"$0"; rm -f "$0"; exec "$@"', str(stdin), *argv]
            return Job.start(shell, env=dict(self.environ), cwd=os.sep, log=self.log,
                             timeout_s=self.config.timeout, now=now)
        except (GarrisonError, OSError) as error:
            log_line(f"the notify command could not be run: {error}")
            return None
