"""State of a node in words: its place in the run, and what it is doing or waiting for. Pure.

Whoever reads the line knows who has to act next. Words change only when something happened, and hold no times, so that
`status --watch` on a pipe prints a line an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.processes.guardian.parking import find_parked

if TYPE_CHECKING:
    from garrison.merge.entry import MergeEntry
    from garrison.merge.state import Pause
    from garrison.processes.run_state import RunState
    from garrison.views.layer_view import LayerView

PLACES: Mapping[str, str] = {"validated": "landed", "impl_complete": "landing", "active": "working",
                             "failed": "failed", "pending": "waiting", "skipped": "skipped"}
"""Status of a node → its place in the run, in the order of the progress bar."""
PARKED = "parked"
"""Place of a node under way that is parked."""
HELD = "while it is held"
"""Beginning of what a session waits for that a person has taken over: its question is that person's already."""

_LONG = 300
"""Characters of a reason that one line shows."""


@dataclass(frozen=True)
class NodeFacts:
    """Facts about one node that decide its words. Incarnations are 0 before the first."""

    status: str
    attempt: int = 1
    reason: str = ""
    commit: str = ""
    phase: str = ""
    """Of its runner's hook."""
    run_over: str = ""
    """The run's status, if it is not under way."""
    held: str | None = None
    """Why a person parked it; None if no person did."""
    parked: str = ""
    """Why the restart policy parked it, '' if it did not."""
    guardian_alive: bool = True
    runner_alive: bool = False
    agent_alive: bool = False
    agent_suspended: bool = False
    """Whether its agent, or its orchestrator, is suspended (SIGSTOP)."""
    agent_status: str = ""
    agent_incarnation: int = 0
    question: str = ""
    """Open question of its agent to a person."""
    session_waits: str = ""
    """What its session waits for, while it does not run."""
    job: str = ""
    """Set-up, acceptance or validator, while its runner runs it."""
    deaths: int = 0
    """Of its agent, in this attempt."""
    waits_for: Sequence[str] = ()
    """Predecessors that have not landed."""
    unreached: bool = False
    """Whether the flow has not reached it so far."""
    blocked_by: Sequence[str] = ()
    """Failed nodes that keep it from ever starting."""
    busy: int = 0
    """Nodes at work now."""
    entry: MergeEntry | None = None
    """Its merge entry in this attempt."""
    entries_ahead: int = 0
    """Merge entries before it."""
    pause: Pause | None = None
    """Of the merge queue."""


def place_of(state: RunState, name: str) -> str:
    """Return a node's place in the run; a parked one is not at work."""
    return PARKED if name in state.held or find_parked(state, name) else PLACES[state.nodes[name].status]


def one_word(place: str, runner: LayerView | None, agent: LayerView | None, *, asks: bool) -> str:
    """Return a node's state in one word: its place, and while it is worked on, what its two processes are doing."""
    if place not in ("landed", "failed") and "parked" in (runner and runner.status, agent and agent.status):
        return "parked"
    if place != "working":
        return place
    if asks:
        return "asks"
    agent_status = agent.status if agent else "starting"
    if (agent and agent.living) or (runner and runner.living and agent_status == "terminated"):
        return "working"  # after an agent that ended in order the runner checks the work
    if runner and runner.status == "terminated":
        return "stopped"
    return "died" if agent_status != "starting" or (runner and not runner.living) else "starting"


def asks(facts: NodeFacts) -> bool:
    """Return whether a question still waits for its answer: it may have been settled in another way."""
    unsettled = facts.job == "validator" or (bool(facts.session_waits) and not facts.session_waits.startswith(HELD))
    return facts.status == "active" and facts.run_over != "stopped" and bool(facts.question) and unsettled


def doing(facts: NodeFacts) -> str:
    """Return what a node is doing or waiting for, on one line."""
    if facts.held is not None:
        return f"parked by you: {first_line(facts.held)}" if facts.held else "parked by you"
    if facts.parked:
        return f"parked: {first_line(facts.parked)}"
    return _WORDS[facts.status](facts)


def first_line(text: str) -> str:
    """Return the first line of a reason, which may go on with the end of a log, cut to what one line shows."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONG else f"{line[:_LONG]}…"


def _pending(facts: NodeFacts) -> str:
    if facts.blocked_by:
        return f"cannot start: {', '.join(facts.blocked_by)} failed"
    if facts.run_over:
        return f"not started; the run is {facts.run_over}"
    if facts.waits_for:
        return f"waiting for {', '.join(facts.waits_for)}"
    if facts.unreached:
        return "not reached yet"
    return f"waiting for a free agent, {facts.busy} at work{_retry(facts.reason)}"


def _active(facts: NodeFacts) -> str:
    return _work(facts) + (_retry(facts.reason) if facts.attempt > 1 else "")


def _work(facts: NodeFacts) -> str:
    if facts.run_over == "stopped":
        return "stopped; continues when the run is resumed"
    if asks(facts):
        return f"asks you: {first_line(facts.question)} (answer: garrison answer NODE 'TEXT')"
    if facts.job:
        return {"setup": "setting up its worktree", "acceptance": "running its acceptance command",
                "validator": "another agent is validating its work"}.get(facts.job, f"running {facts.job}")
    if facts.agent_alive and facts.agent_suspended:
        return "its agent is suspended (SIGSTOP)"
    if facts.agent_alive and facts.session_waits:
        return f"its session is waiting {first_line(facts.session_waits)}"
    if facts.agent_alive:
        return "its agent is working" + (f", after {_deaths(facts.deaths)}" if facts.deaths else "")
    if not facts.runner_alive:
        return "starting its runner" if facts.guardian_alive else "waiting for a guardian; none is alive"
    if facts.agent_status == "crashed":
        return f"its agent died ({_deaths(facts.deaths or 1)} in this attempt) and is being restarted"
    if facts.phase in ("", "planning"):
        return "creating its worktree"
    return "its agent is done; checking its work" if facts.agent_incarnation else "starting its agent"


def _landing(facts: NodeFacts) -> str:
    entry, pause = facts.entry, facts.pause
    if pause is not None and (entry is None or not entry.is_final):
        return f"the queue is paused ({pause.reason}): {first_line(pause.detail)}"
    return _QUEUE[entry.status](entry, facts.entries_ahead) if entry is not None else "entering the merge queue"


def _landed(facts: NodeFacts) -> str:
    return f"landed as {facts.commit[:10]}" if facts.commit else "landed before this run"


def _failed(facts: NodeFacts) -> str:
    return first_line(facts.reason) or "no reason was recorded"


def _queued(entry: MergeEntry, ahead: int) -> str:
    return (f"waiting in the merge queue, {ahead} ahead" if ahead else "next in the merge queue") + _retry(entry.reason)


def _blocked(entry: MergeEntry, _ahead: int) -> str:
    reason = first_line(entry.reason)
    missing = [name for name in entry.files if name not in reason]
    return f"cannot land: {reason}" + (f" ({', '.join(missing[:5])})" if missing else "")


def _refused(entry: MergeEntry, _ahead: int) -> str:
    return f"{entry.status}: {first_line(entry.reason)}"


def _retry(reason: str) -> str:
    return f" (retry: {first_line(reason)})" if reason else ""


def _deaths(count: int) -> str:
    return f"{count} death{'s' if count != 1 else ''}"


_QUEUE: Mapping[str, Callable[[MergeEntry, int], str]] = {
    "queued": _queued,
    "candidate": lambda entry, ahead: "building its merge candidate",
    "testing": lambda entry, ahead: "the gate is testing its merge candidate",
    "landing": lambda entry, ahead: "landing",
    "landing_blocked": _blocked,
    "held": lambda entry, ahead: "held in the merge queue by a person",
    "landed": lambda entry, ahead: "landed",
    "conflict": _refused, "rejected": _refused, "cancelled": _refused, "superseded": _refused,
}
"""Status of a merge entry → what its node is waiting for."""

_WORDS: Mapping[str, Callable[[NodeFacts], str]] = {
    "pending": _pending, "active": _active, "impl_complete": _landing, "validated": _landed, "failed": _failed,
    "skipped": _failed}
"""Status of a node → its words."""
