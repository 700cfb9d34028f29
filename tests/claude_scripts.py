"""Scripted answers of the models of tests/claude."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from garrison.testing.isolation import CLI_SETTINGS
from garrison.testing.model_server import ModelServer, RecordedRequest
from garrison.testing.request import Request
from garrison.testing.turn import Fault, Turn, say, use
from support import Place

TOOL = "mcp__garrison__"
AGAIN = ("This session was interrupted", "RESUMPTION CONTEXT", "The user has taken this session over")
Player = Callable[[Request], "Turn | Fault | str"]


def environment(place: Place, server: ModelServer) -> dict[str, str]:
    """Return the variables of a user whose model is the scripted one, and whose CLI fails early."""
    settings = {name: os.environ.get(name, value) for name, value in CLI_SETTINGS.items()}
    return {**place.env, **settings, "ANTHROPIC_BASE_URL": server.url}


def past_of(record: RecordedRequest) -> str:
    """Return the messages of a request before the last one."""
    return json.dumps(record.body["messages"][:-1])


def work(name: str, before: str = "") -> Turn:
    """Return the turn that does a node's work; `before` is shell that runs first."""
    shell = (f"{before} echo {name} > {name}-r1.txt && git add -A && git commit -qm 'Write {name}' && "
             f"echo r1 {name} $GARRISON_ATTEMPT $GARRISON_INCARNATION >> $LEDGER")
    return say(f"I write {name}.", use("Bash", command=shell))


def report(status: str = "success", summary: str = "written") -> Turn:
    return say(use(f"{TOOL}report_result", status=status, summary=summary, evidence=["git log"]))


def steps(*turns: Turn | Fault | str) -> Player:
    """Return a player of these turns in order, by how often the model has answered in the whole conversation."""
    return lambda asked: turns[min(asked.spoken, len(turns) - 1)]


def again(first: Turn | Fault | str, after: tuple[Turn | Fault | str, ...]) -> Player:
    """Return a player of `first` until the session was interrupted, then of `after`, by turns since that."""

    def play(asked: Request) -> Turn | Fault | str:
        if any(words in asked.prompt for words in AGAIN):
            return after[min(asked.step, len(after) - 1)]
        return first if asked.step == 0 else after[min(asked.step, len(after) - 1)]

    return play
