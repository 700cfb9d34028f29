"""Agents that run as a garrison session: each turn is a graph, and a kill repeats no node that was done.

    a [agent=claude, session=true, tier=trusted, turn_graph="my_turn.dot"]

    [agents.steady]                      # the same for every node that names this agent
    kind = "session"
    of = "claude"                        # the model behind it: a claude agent, or `scripted`
    initiative = 20

Attributes of node and profile are read and refused here, before a run begins. The program
(`processes.orchestrator.session_attempt`) gets everything in one file. It ends in the middle of a turn when it has to
wait and records why (`claude.policy.Ending`). While it waits, no process of it exists; the next one resumes the turn at
the interrupted node. A program that ends without such a record ends the attempt.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.base import Outcome, Profile, Work
from garrison.agents.claude import policy, prompts, questions, takeover
from garrison.agents.claude import settings as settings_
from garrison.agents.claude.attempt_files import ClaudeFiles, write_json
from garrison.agents.claude.policy import Move
from garrison.agents.claude.settings import ClaudeSettings, for_node
from garrison.agents.command import CommandAgent
from garrison.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.base import Assignment, Question
    from garrison.agents.command import CommandWork


PROGRAM = (sys.executable, "-P", "-m", "garrison.processes.orchestrator.session_attempt", "{prompt_file}")
ORDER = "session_order.json"
"""The file beside the prompt that tells the program everything else."""
SCRIPTED = "scripted"


@dataclass(frozen=True)
class SessionWish:
    """How the session is to be."""

    tier: str = "trusted"
    turn_graph: str | None = None
    """A path in the node's tree; None: the shipped one."""
    heartbeat_graph: str | None = None
    initiative: int = 0
    """Calls of the model that its own heartbeats may make; 0: none of its own accord."""


def is_wanted(attributes: Mapping[str, Any], where: str) -> bool:
    """Whether a node says `session=true`; UsageError for anything but true or false."""
    said = str(attributes.get("session", "false")).strip().lower()
    if said not in ("true", "false"):
        raise UsageError(f"{where}: session={said!r:.40} should be true or false")
    return said == "true"


def wish(where: str, values: Mapping[str, Any], begin: SessionWish | None = None) -> SessionWish:
    """What a profile or a node says of its session, put over `begin`; UsageError for what cannot be meant."""
    said: dict[str, Any] = {}
    for name in ("tier", "turn_graph", "heartbeat_graph"):
        if name in values:
            if not isinstance(values[name], str) or not values[name].strip():
                raise UsageError(f"{where}: {name} should be a text")
            said[name] = str(values[name])
    if "initiative" in values:
        text = str(values["initiative"]).strip()
        if not text.isdecimal():
            raise UsageError(f"{where}: initiative={text!r:.40} should be a count of model calls, 0 or more")
        said["initiative"] = int(text)
    return replace(begin or SessionWish(), **said)


class SessionAgent(CommandAgent):
    """Runs an agent as a session; `settings` are those of the Claude that thinks, None lets the script."""

    def __init__(self, name: str, settings: ClaudeSettings | None, begin: SessionWish) -> None:
        super().__init__(Profile(name, PROGRAM, success="result_file"))
        self.settings, self.begin = settings, begin

    def start(self, assignment: Assignment, now: float) -> SessionWork:  # type: ignore[override]
        """Write the order and start the program, unless it waits for somebody; UsageError if a graph is not there."""
        task = assignment.task
        found = wish(f"node {task.node}", task.attributes, self.begin)
        settings = for_node(self.settings, task.node, task.attributes) if self.settings is not None else None
        write_json(assignment.folder / ORDER, {
            "home": assignment.environment["GARRISON_HOME"], "run": task.run_id, "node": task.node,
            "attempt": task.attempt, "life": assignment.incarnation, "tree": str(assignment.tree), "goal": task.label,
            "tier": found.tier, "initiative": found.initiative, "notes": str(assignment.notes),
            "turn_graph": _text(assignment.tree, found.turn_graph),
            "heartbeat_graph": _text(assignment.tree, found.heartbeat_graph),
            "settings": settings_.to_json(settings) if settings is not None else None,
            "system": prompts.system(assignment, settings, "session") if settings is not None else ""})
        return SessionWork(assignment, partial(super().start, assignment), now)


def _text(tree: Path, name: str | None) -> str | None:
    """The text of a graph in the tree."""
    if name is None:
        return None
    try:
        return (tree / name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the session's graph {name} cannot be read from the tree: {error}") from error


START = Move("start")


class SessionWork(Work):
    """An attempt's session in one life of its orchestrator; `begin` starts its program at a monotonic time."""

    def __init__(self, assignment: Assignment, begin: Callable[[float], CommandWork], now: float, *,
                 wall: Callable[[], float] = time.time) -> None:
        self.assignment, self._begin, self._wall = assignment, begin, wall
        self.files = ClaudeFiles(assignment.folder)
        self.files.make()
        self.endings = self.files.read_endings()
        self.program: CommandWork | None = None
        self.outcome: Outcome | None = None
        self._stopping = self._put_down = False
        # Whoever began this life has seen to a trouble of the last one, or it is refused once more.
        seen_to = not self.endings or self.endings[-1].kind in policy.FOR_A_PERSON
        self.move = START if seen_to else self._next()
        self._step(now)

    def poll(self, now: float) -> Outcome | None:
        """One step; the outcome once there is one and nothing of the session is left running."""
        if self.program is not None:
            if not self._put_down and takeover.holder(self.files) is not None:
                self._put_down = True
                self.program.stop(now)  # the node under way is done again when they have left
            outcome = self.program.poll(now)
            if outcome is None:
                return None
            self.program = None
            self._ended(outcome)
        if self.outcome is None:
            self._step(now)
        return self.outcome

    def stop(self, now: float) -> None:
        """End the program; the session goes on in a later life."""
        self._stopping = True
        if self.program is not None:
            self.program.stop(now)

    def process(self) -> tuple[int, int] | None:
        """The program, if it is under way, or the takeover of a person who works in its place."""
        return self.program.process() if self.program is not None else takeover.process(self.files)

    def wake_at(self) -> float | None:
        """The program's timeout, or the end of a wait, on the monotonic clock."""
        return self.program.wake_at() if self.program is not None else questions.due(self.move, self._wall())

    @property
    def question(self) -> Question | None:
        """What a person is asked, while it is open: the agent's question, or a trouble only a person can mend."""
        return questions.open_question(self.files, self.endings, self.move, over=self.outcome is not None)

    def answer(self, question: str, text: str) -> None:
        """What a person answered."""
        questions.keep(self.files, question, text)

    def _next(self) -> Move:
        return policy.decide(self.endings, questions.answered(self.files))

    def _ended(self, outcome: Outcome) -> None:
        before, self.endings = len(self.endings), self.files.read_endings()
        if self._put_down and outcome.killed and not self._stopping:
            return
        if self._stopping or outcome.killed or len(self.endings) == before:
            self.outcome = outcome
            return
        self.move = self._next()
        if self.move.kind == "finish":
            self.outcome = Outcome("fail", self.move.reason, outcome.exit_code)

    def _step(self, now: float) -> None:
        """Act on the move, or wait for what it waits for."""
        held = takeover.holder(self.files)
        if self._put_down and held is None:
            self._put_down, self.endings = False, self.files.read_endings()  # the takeover left an ending of its own
            self.move = self._next() if self.endings else START
        waits = held.words() if held is not None else questions.waits(
            self.files, self.endings, self.move, self._wall())
        if held is not None:
            self._put_down = True
        if self._stopping:
            self.outcome = Outcome("fail", "stopped")
        elif self.move.kind == "finish":
            self.outcome = Outcome("fail", self.move.reason)
        else:
            questions.say_waiting(self.files, self.assignment.output, waits)
            if not waits:
                self.move = START
                self.program = self._begin(now)
