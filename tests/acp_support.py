"""A stage for one attempt's agent: worktree, attempt's folder and socket, as an orchestrator has them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from copied import copies_of
from garrison.agents import channel
from garrison.agents.acp.attempt import AcpAgent, AcpAttempt
from garrison.agents.acp.settings import AcpSettings
from garrison.agents.base import WORKER, Agent, Assignment, Work, WorkResult
from garrison.agents.briefing import EarlierDeath
from garrison.agents.channel_client import VARIABLE
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.reports import AgentReports, ValidatorReports
from garrison.records.run import Task
from garrison.system import forks
from garrison.system.processes import MARKER, probe
from garrison.values import replace

DEADLINE = 90.0
BLOCK = '```garrison-result\n{"status": "success", "summary": "made it"}\n```'


class Stage:
    """The place of one attempt; `start` starts an incarnation of its agent."""

    def __init__(self, folder: Path, **task: Any) -> None:
        self.folder = folder
        self.home, self.tree, self.attempt = folder / "home", folder / "tree", folder / "attempt"
        for each in (self.home, self.tree, self.attempt):
            each.mkdir(parents=True, exist_ok=True)
        self.script = folder / "script.json"
        self.task = Task("r1", "work", 1, **task)
        self.incarnation, self.role = 0, WORKER
        self.files = AttemptFiles(self.attempt)
        self._channel: channel.Channel | None = None

    def play(self, *turns: list[dict[str, Any]], **more: Any) -> None:
        """Write the double's script."""
        self.script.write_text(json.dumps({"turns": list(turns), **more}))

    def assignment(self) -> Assignment:
        """Return the next incarnation's assignment, with the socket open."""
        self.incarnation += 1
        this = probe(os.getpid())
        assert this is not None
        self.reports = AgentReports(self.attempt)
        handle = self.reports.handle if self.role == WORKER else ValidatorReports(self.attempt).handle
        self.close()
        self._channel = channel.open_channel(self.attempt / "agent.sock", lambda: (this.id,), handle,
                                             lambda _line: None)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GARRISON_HOME": str(self.home),
               MARKER: f"{self.home}:r1:orchestrator-work#{self.incarnation}",
               VARIABLE: str(self._channel.path)}
        made = Assignment(self.task, self.tree, self.attempt, env, self.incarnation,
                          deaths=() if self.incarnation == 1 else (EarlierDeath(0.0, "its process died"),),
                          reports=self.reports if self.role == WORKER else None)
        made.write_prompt("Do the task.")
        return made

    def start(self, agent: Agent, **changes: Any) -> Work:
        """Start an incarnation of the agent."""
        return agent.start(replace(self.assignment(), **changes), time.monotonic())

    def next_attempt(self, number: int) -> Path:
        """Start the attempt with that number; return the folder of the one before."""
        refused, self.attempt = self.attempt, self.folder / f"attempt-{number}"
        self.attempt.mkdir()
        self.task, self.files = replace(self.task, attempt=number), AttemptFiles(self.attempt)
        return refused

    def acp(self, **settings: Any) -> AcpAttempt:
        """Start the double as an ACP agent."""
        work = self.start(AcpAgent("double", AcpSettings(argv=agent_argv(self.script), **settings)))
        assert isinstance(work, AcpAttempt)
        return work

    def poll(self, work: Work) -> WorkResult | None:
        """Serve the socket and poll the agent."""
        self._channel.poll(time.monotonic())
        return work.poll(time.monotonic())

    def finish(self, work: Work, seconds: float = DEADLINE) -> WorkResult:
        """Poll until there is an outcome."""
        outcome: list[WorkResult] = []

        def ended() -> bool:
            if (found := self.poll(work)) is not None:
                outcome.append(found)
            return bool(outcome)

        wait_until(ended, seconds, self.describe)
        return outcome[0]

    def until(self, work: Work, done: Callable[[], bool]) -> None:
        """Poll until `done()`; the agent may not end before."""
        def reached() -> bool:
            ended = self.poll(work)
            assert ended is None or done(), f"{ended}\n{self.describe()}"
            return done()

        wait_until(reached, DEADLINE, self.describe)

    def prompts(self) -> list[str]:
        """Return the prompts of the double's only session."""
        return list(self.session()["prompts"])

    def prompts_of(self, session: str) -> list[str]:
        return list(json.loads((self.home / "acp-double" / f"{session}.json").read_text())["prompts"])

    def session(self) -> Mapping[str, Any]:
        """Return what the double keeps of its only session."""
        kept = sorted((self.home / "acp-double").glob("*.json"))
        assert len(kept) == 1, [each.name for each in kept]
        return dict(json.loads(kept[0].read_text()))

    def sessions(self) -> int:
        """Return how many sessions the double has started."""
        return len(list((self.home / "acp-double").glob("*.json")))

    def endings(self) -> list[str]:
        """Return the kinds of the endings so far."""
        return [ending.kind for ending in self.files.read_endings()]

    def describe(self) -> str:
        """Return what helps to understand a failure."""
        output = self.attempt / "output.log"
        return f"{self.files.read_endings()}\n{output.read_text() if output.exists() else ''}"

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


@contextmanager
def connections_copied() -> Iterator[None]:
    """Let connections be copies of a process that has loaded theirs."""
    with copies_of("garrison.agents.acp.connection") as start, pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "start", start)
        yield


def wait_until(done: Callable[[], bool], seconds: float, describe: Callable[[], str]) -> None:
    """Wait for a condition, or fail with a description."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited in vain\n{describe()}"
        time.sleep(0.02)


def agent_argv(script: Path) -> tuple[str, ...]:
    """Return the words that start the double."""
    return (sys.executable, "-P", "-m", "garrison.testing.acp_agent", str(script))
