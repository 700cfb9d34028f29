"""What a node is doing or waiting for, in words without times, and its place in the run. Pure.

The rule of this room: a person who reads the line knows who has to act next. Words change only when something
happened, so that `status --watch` on a pipe has a line an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from garrison.merge.entry import MergeEntry
from garrison.merge.state import Pause

PLACES: Mapping[str, str] = {"validated": "merged", "impl_complete": "landing", "active": "working",
                             "failed": "failed", "pending": "waiting", "skipped": "skipped"}
"""Node status → the word for people, in the order of the progress bar."""
PARKED = "parked"
"""The place of a node under way that is parked."""
HELD = "while it is held"
"""How a wait begins whose cause is a person in the session: what it asks is theirs already."""

_LONG = 300
"""Characters of a reason that one line shows."""


@dataclass(frozen=True)
class Facts:
    """What is known of one node. Lives are incarnations, 0 for none yet."""

    status: str
    attempt: int = 1
    reason: str = ""
    commit: str = ""
    phase: str = ""
    """Of its runner's hook."""
    over: str = ""
    """The run's status, if it is not under way."""
    held: str | None = None
    """Why a person parked it, None if nobody did."""
    parked: str = ""
    """Why the restart policy did, '' if it did not."""
    led: bool = True
    """Whether a guardian lives."""
    runner_living: bool = False
    agent_living: bool = False
    stopped: bool = False
    """Whether its agent, or its orchestrator, is stopped (SIGSTOP)."""
    agent_status: str = ""
    agent_lives: int = 0
    asked: str = ""
    """What its agent asks a person."""
    waits: str = ""
    """What its session waits for, while it does not run."""
    job: str = ""
    """The runner's set-up or acceptance, while it runs."""
    deaths: int = 0
    """Of its agent, in this attempt."""
    waits_for: Sequence[str] = ()
    """Predecessors that have not landed."""
    unreached: bool = False
    """Whether the walk has not come to it so far."""
    blocked_by: Sequence[str] = ()
    """Failed nodes that keep it from ever beginning."""
    busy: int = 0
    """Nodes at work now."""
    entry: MergeEntry | None = None
    """Its place in the merge queue, in this attempt."""
    ahead: int = 0
    """Entries before it."""
    pause: Pause | None = None


def doing(facts: Facts) -> str:
    """One line, '' if the status says all."""
    if facts.held is not None:
        return f"parked by you: {first_line(facts.held)}" if facts.held else "parked by you"
    if facts.parked:
        return f"parked: {first_line(facts.parked)}"
    return _WORDS[facts.status](facts)


def first_line(text: str) -> str:
    """The first line of a reason that may go on with a log's tail; what an agent says may be of any length."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONG else f"{line[:_LONG]}…"


def _failed(facts: Facts) -> str:
    return first_line(facts.reason) or "no reason was recorded"


def _merged(facts: Facts) -> str:
    return f"merged as {facts.commit[:10]}" if facts.commit else "merged before this run"


def _waiting(facts: Facts) -> str:
    if facts.blocked_by:
        return f"cannot begin: {', '.join(facts.blocked_by)} failed"
    if facts.over:
        return f"did not begin; the run is {facts.over}"
    if facts.waits_for:
        return f"waits for {', '.join(facts.waits_for)}"
    if facts.unreached:
        return "the pipeline has not come here"
    again = f" (again, since {first_line(facts.reason)})" if facts.reason else ""
    return f"waits for a free agent, {facts.busy} at work{again}"


def _working(facts: Facts) -> str:
    again = f" (again, since {first_line(facts.reason)})" if facts.attempt > 1 and facts.reason else ""
    return _work(facts) + again


def _work(facts: Facts) -> str:
    if facts.over == "stopped":
        return "stopped; goes on when the run is resumed"
    if asks(facts):
        return f"asks you: {first_line(facts.asked)} (answer: garrison answer NODE 'TEXT')"
    if facts.job:
        return {"setup": "its tree is set up", "acceptance": "its acceptance runs",
                "validator": "its work is validated"}.get(facts.job, f"{facts.job} runs")
    if facts.agent_living and facts.stopped:
        return "its agent is stopped (SIGSTOP)"
    if facts.agent_living and facts.waits:
        return f"its session waits {first_line(facts.waits)}"
    if facts.agent_living:
        return "its agent works" + (f", {facts.deaths} died before" if facts.deaths else "")
    if not facts.runner_living:
        return "its runner is started" if facts.led else "nobody leads the run"
    if facts.agent_status == "crashed":
        return f"its agent died ({facts.deaths or 1} in this attempt) and comes back"
    if facts.phase in ("", "planning"):
        return "its tree is made"
    return "its agent is done, its work is checked" if facts.agent_lives else "its agent is started"


def asks(facts: Facts) -> bool:
    """Whether what was asked still waits for a word: it may have been settled in another way."""
    unsettled = facts.job == "validator" or (bool(facts.waits) and not facts.waits.startswith(HELD))
    return facts.status == "active" and facts.over != "stopped" and bool(facts.asked) and unsettled


def _landing(facts: Facts) -> str:
    entry, pause = facts.entry, facts.pause
    if pause is not None and (entry is None or not entry.final):
        return f"the queue is paused ({pause.reason}): {first_line(pause.detail)}"
    if entry is None:
        return "is put into the merge queue"
    return _QUEUE[entry.status](entry, facts.ahead)


def _queued(entry: MergeEntry, ahead: int) -> str:
    again = f" (again, since {first_line(entry.reason)})" if entry.reason else ""
    return (f"waits in the merge queue, {ahead} before it" if ahead else "is next in the merge queue") + again


def _blocked(entry: MergeEntry, _ahead: int) -> str:
    reason = first_line(entry.reason)
    missing = [name for name in entry.files if name not in reason]
    return f"cannot land: {reason}" + (f" ({', '.join(missing[:5])})" if missing else "")


def _refused(entry: MergeEntry, _ahead: int) -> str:
    return f"{entry.status}: {first_line(entry.reason)}"


_QUEUE: Mapping[str, Callable[[MergeEntry, int], str]] = {
    "queued": _queued,
    "candidate": lambda entry, ahead: "its merge is made",
    "testing": lambda entry, ahead: "the gate tests its merge",
    "landing": lambda entry, ahead: "lands",
    "landing_blocked": _blocked,
    "held": lambda entry, ahead: "is held in the merge queue by a person",
    "landed": lambda entry, ahead: "has landed",
    "conflict": _refused, "rejected": _refused, "cancelled": _refused, "superseded": _refused,
}
"""Status of a merge entry → what its node waits for."""

_WORDS: Mapping[str, Callable[[Facts], str]] = {
    "pending": _waiting, "active": _working, "impl_complete": _landing, "validated": _merged, "failed": _failed,
    "skipped": _failed}
