"""Telling a person who is elsewhere: a command of theirs, run when somebody was given up, asks, or the run has ended.

    [notify]
    command = ["notify-send", "garrison {run}", "{text}"]
    on = ["escalate", "question", "failed"]
    timeout = 10

The rule of this room: what is to be told follows from the state of the run alone, and is journaled as told once its
command has ended, so that a launcher that died is followed by one that tells the rest: rather twice than never. A
command that fails is said in the log and is no reason to stop. `done` and `stopped` may be listed too. The command
gets the event as JSON on its standard input.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.processes.loop import log_line
from garrison.records import atomic
from garrison.system.jobs import Job
from garrison.system.terminal_text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from garrison.config import NotifyConfig
    from garrison.processes.run_state import RunState

_PLACE = re.compile(r"\{(text|run|event|node)\}")
_LONG = 500
"""Characters of what somebody said, in one message."""


@dataclass(frozen=True)
class Notification:
    """One thing to tell, once; `key` is what it is known by."""

    key: str
    event: str
    text: str
    node: str = ""


def due_notifications(state: RunState, given_up: Iterable[tuple[str, str, str]], told: set[str], config: NotifyConfig,
        ended: str = "") -> list[Notification]:
    """What is to be told now; `given_up` holds (signal id, who, why), `ended` how the run ended, if it did. Pure."""
    found = [Notification(f"escalate:{id_}", "escalate", f"{who} was given up: {why}", _node_of(state, who))
             for id_, who, why in given_up]
    found += [Notification(f"question:{node}:{asked['id']}", "question", f"{node} asks: {asked['text']}", node)
              for node, asked in state.questions.items()]
    if ended:
        reason = f": {state.reason}" if state.reason else ""
        merged = sum(1 for node in state.nodes.values() if node.status == "validated")
        found.append(Notification(f"run:{ended}:{state.ends}", ended,  # a run that was resumed ends anew
                            f"run {ended}, {merged} of {len(state.nodes)} merged{reason}"))
    return [one for one in found if one.key not in told and one.event in config.on and config.command]


def _node_of(state: RunState, who: str) -> str:
    return who if who in state.nodes else ""


def notify_argv(config: NotifyConfig, run: str, notice: Notification) -> list[str]:
    """The command for one notice; braces that name nothing of ours stay. Pure."""
    values = {"text": clean(notice.text)[:_LONG], "run": run, "event": notice.event, "node": notice.node}
    return [_PLACE.sub(lambda found: values[found[1]], word) for word in config.command]


class Notifier:
    """Runs the command, one notice at a time; `told` is called with each whose command has ended, or cannot be run."""

    def __init__(self, config: NotifyConfig, run: str, environ: Mapping[str, str], log: Path,
                 told: Callable[[Notification], None]) -> None:
        self.config, self.run, self.environ, self.log, self.told = config, run, environ, log, told
        self._job: Job | None = None
        self._waiting: list[Notification] = []
        """The first of them is the one whose command runs, if one does."""

    def tell(self, notice: Notification) -> None:
        """Run the command for it, once those before it have ended; again, while it waits, is no matter."""
        if all(one.key != notice.key for one in self._waiting):
            self._waiting.append(notice)

    def poll(self, now: float) -> None:
        """Take one step; monotonic seconds."""
        if self._job is not None:
            result = self._job.poll(now)
            if result is None:
                return
            self._job = None
            if not result.ok:
                how = "did not end in time" if result.timed_out else f"ended with exit code {result.exit_code}"
                log_line(f"the notify command {how}; its output is in {self.log}")
            self._over()
        while self._waiting and self._job is None:
            self._job = self._start(self._waiting[0], now)
            if self._job is None:
                self._over()

    def _over(self) -> None:
        self.told(self._waiting.pop(0))

    @property
    def busy(self) -> bool:
        """Whether anything is still to be told."""
        return bool(self._waiting)

    def finish(self) -> None:
        """Tell what is left, within the command's own time limit each."""
        while self.busy:
            self.poll(time.monotonic())
            time.sleep(0.01)

    def _start(self, notice: Notification, now: float) -> Job | None:
        argv = notify_argv(self.config, self.run, notice)
        body = {"run": self.run, "event": notice.event, "text": notice.text, "node": notice.node}
        stdin = self.log.with_suffix(".json")
        try:
            atomic.write(stdin, (json.dumps(body) + "\n").encode())
            # Through a shell that only binds standard input; the words themselves are read by none.
            shell = ["/bin/sh", "-c", 'exec <"$0"; rm -f "$0"; exec "$@"', str(stdin), *argv]
            return Job.start(shell, env=dict(self.environ), cwd=os.sep, log=self.log,
                             timeout_s=self.config.timeout, now=now)
        except (GarrisonError, OSError) as error:
            log_line(f"the notify command could not be run: {error}")
            return None
