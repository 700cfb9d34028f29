"""Progress of a run, as its launcher prints it: a line per event for the user, or a JSON object for programs.

Lines are never redrawn, not even on a terminal: a launcher may run in the background, be detached, or share its
terminal with a shell. For a live view there is `garrison status --watch`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.ends import Departure
from garrison.errors import GarrisonError
from garrison.merge.explanation import describe_changes
from garrison.pipeline.node_status import LandingWord, shown
from garrison.pipeline.questions import OpenWait
from garrison.records import events
from garrison.records.json_io import encode
from garrison.run.state import (
    DECLINED,
    LANDED,
    NO_CHANGE,
    NOT_LANDED,
    REQUESTED,
    RESUMED,
    TESTED,
    describe_next,
    describe_push,
)
from garrison.system.terminal_text import clean, shorten, width, wrap
from garrison.values import asdict, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from garrison.records.journal import Entry
    from garrison.records.run import Launch
    from garrison.run.state import RunState

_MAX_LINE = 300
"""Characters of a text from outside in one line."""


class RunProgress:
    """Writes to stdout; a closed pipe stops nothing."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.watched = not quiet
        self.run_branch = ""
        """Branch on which nodes land, if it is not the target."""
        self._run = ""

    def begin(self, run: str) -> None:
        """Print hints for the user at a terminal."""
        self._run = run
        if self.watched and not self.as_json and sys.stdout.isatty():
            self._print("watch: garrison top   logs: garrison logs NODE -f   join: garrison attach NODE")

    def show(self, entry: Entry) -> None:
        """Show one record of the run's journal."""
        if not self.watched:
            return
        if self.as_json:
            self._print(encode(asdict(entry)).decode())
            return
        event = events.decode(entry)
        line = clean(describe_event(event))
        if self.run_branch and isinstance(event, events.NodeChanged) and event.status == "validated":
            line += f" on {self.run_branch}"
        if line:
            self._print(f"{entry.at[11:19]}  {line}")

    def death(self, event: events.ChildDied) -> None:
        """Show the guardian's death, which is not in the run's journal."""
        if self.watched and not self.as_json:
            self._print(f"          {clean(describe_event(event))}")

    def end(self, status: str, reason: str, state: RunState, landed: str, closing: str = "") -> None:
        """Show how the run ended, what has `landed`, the `closing` lines, and last the one command that helps."""
        if self.as_json:
            self._print(json.dumps({"kind": "end", "status": status, "reason": reason, "done": state.landed,
                                    "foreign_moves": [fields_of(move) for move in state.foreign_moves],
                                    "warnings": [fields_of(warning) for warning in state.warnings],
                                    "landing": fields_of(state.landing) if state.landing.status else None,
                                    "nodes": {name: {**asdict(node), "status": shown(node.status, node.landing)}
                                              for name, node in state.nodes.items()}}))
            return
        why = f"; {clean(reason)}" if reason else ""
        for warning in state.told:
            self._print(f"warning: {clean(warning.describe())}")
        if closing:
            self._print(closing)
        helps = describe_next(self._run, status, over=state.over)
        self._print(f"run {status}: {landed}{why}{helps and f'; next: {helps}'}")

    def _print(self, text: str) -> None:
        """Print lines, on a terminal broken at words."""
        with contextlib.suppress(OSError):
            if not self.as_json and sys.stdout.isatty():
                columns = max(20, shutil.get_terminal_size().columns)
                text = "\n".join(_broken(line, columns) for line in text.split("\n"))
            print(text, file=sys.stdout, flush=True)


def _broken(line: str, columns: int) -> str:
    """Wrap a line for a terminal: it continues below its words, with each command in one piece."""
    if width(line) <= columns:
        return line
    begin = line[:10] if line[8:10] == "  " else ""  # a time, or blanks in its place
    indent = " " * (len(begin) or 2)
    first, *rest = wrap(line.removeprefix(begin), columns - len(indent))
    return "\n".join([begin + first, *(indent + each for each in rest)])


def closing_lines(state: RunState, launch: Launch, ticked: Path) -> str:
    """Return the lines before the last one of a run that is over: the result for its list of tasks, from the log of its
    `garrison tick`, and how to publish what landed."""
    last = ""
    if launch.tick:
        with contextlib.suppress(OSError):
            last = (ticked.read_text(errors="replace").splitlines() or [""])[-1]
    return "\n".join(line for line in (clean(last), how_to_push(state, launch)) if line)


def how_to_push(state: RunState, launch: Launch) -> str:
    """Return how to publish what landed, for a reader in any folder; '' where the repository cannot tell."""
    from garrison.system.git import open_repository  # late: the start of a run needs no git

    repo = Path(launch.repo)
    try:
        elsewhere = "" if Path.cwd().is_relative_to(repo) else launch.repo
        repository = open_repository(repo)
        push = describe_push(state, launch.land, launch.base, repository.remotes(), elsewhere)
        behind = repository.behind_upstream(launch.base) if push else None
        place = f" in {elsewhere}" if elsewhere else ""
        if behind is None:
            return push
        upstream, count = behind
        return (f"{launch.base} lacks {count} commit{'s' * (count != 1)} of {upstream}: `git pull --no-rebase`{place} "
                f"merges it, then {push}")
    except (GarrisonError, OSError):  # the end is already shown; without a repository only this hint is missing
        return ""


def describe_event(event: events.Event | None) -> str:
    """Return an event in words; '' for one that the user need not see."""
    describe = _DESCRIPTIONS.get(type(event))
    return describe(event) if describe else ""


def _node(event: events.NodeChanged) -> str:
    if event.status == "pending":
        return ""  # its attempt is shown when it starts
    reason = shorten_reason(event.reason)
    if event.status == "active" and event.attempt > 1:
        by = f" by {event.escalated}" if event.escalated else ""
        return f"{event.node}: attempt {event.attempt}{by}: {reason or 'requested'}"
    if event.status == "impl_complete" and event.landing == LandingWord.NO_CHANGE:
        return ""  # it is not queued
    commit = f" ({event.commit[:10]})" if event.commit else ""
    told = describe_changes(event.changes)
    return f"{event.node}: {shown(event.status, event.landing)}{commit}" + (f": {reason}" if reason else "") + (
        f"; {told}" if told else "")


def _signal(event: events.GuardianSignal) -> str:
    if event.effect is not None:
        return _node(event.effect)
    if event.choice is not None:
        return f"{event.node}: {event.choice.order[0]} is chosen: {event.choice.why}"
    if event.run is not None:
        return _run(events.RunChanged(event.run, RESUMED))
    if event.flow is not None:
        return _flow(event.flow)
    if event.question is not None:
        return f"{event.node} asks: {_shorten(event.question.text)}  (garrison answer {event.node} 'TEXT')"
    if event.type == "ORCHESTRATOR_CRASHED" and event.departure != Departure.STOPPED:
        why = f" ({shorten_reason(event.why)})" if event.why else ""
        return f"orchestrator-{event.node} died{why}"  # its restart has a line of its own
    return ""


def _manager(event: events.ManagerCycled) -> str:
    has_steered = bool(event.steer) and event.steered == event.cycle
    return f"{event.node} tells its pipeline: {_shorten(event.steer)}" if has_steered else ""


def _gate(event: events.WaitChanged) -> str:
    return "" if event.closed else f"{event.node} {_shorten(OpenWait.from_record(event.body).summary())}"


def _flow(event: events.FlowAdvanced) -> str:
    """Describe an event of the flow that its nodes do not show."""
    if event.event == "timed_out":
        return "the pipeline's time is used up"
    label = event.outcome.preferred_label
    return f"{event.node}: {_shorten(label)}" if label else ""


def _landing(event: events.LandingChanged) -> str:
    landed = f"landed ({event.commit[:10]})" if event.commit else "landed, all of it was already there"
    words = {REQUESTED: "queued, to land together", LANDED: landed,
             NO_CHANGE: "no change, nothing to land", NOT_LANDED: "FAILED to land",
             DECLINED: "declined, nothing lands", TESTED: "passed its gate, merged with the base"}
    if event.flow is not None:
        return f"{shorten_reason(event.reason)}; back to {event.flow.body.get('to')}"
    return f"the run: {words[event.status]}"


def _pull_request(event: events.PullRequestChanged) -> str:
    if event.flow is not None:
        return f"{shorten_reason(event.reason)}; back to {event.node}"
    name = f"pull request #{event.number}" if event.number else "the pull request"
    return f"{name}: {event.state}{f': {_shorten(event.reason)}' if event.reason else ''}"


def _run(event: events.RunChanged) -> str:
    if event.status == "failed":
        return ""  # the last line shows it, with the reason
    return f"run {event.status}" + (f": {event.reason}" if event.reason else "")


def _spawn(event: events.ChildSpawned) -> str:
    return f"{_name(event.full)} restarted (incarnation {event.incarnation})" if event.is_respawn else ""


def _name(full: str) -> str:
    return full.partition("@")[0]


def shorten_reason(reason: str) -> str:
    """Return the first line of a reason, and the last further line that has words, if there is one."""
    lines = [line.strip() for line in reason.splitlines() if any(map(str.isalnum, line))]
    return "; … ".join(map(_shorten, lines[:1] + [line for line in lines[1:][-1:] if line not in lines[0]]))


def _shorten(line: str) -> str:
    """Return a line shortened to fit a screen: an agent's text may have any length."""
    return shorten(line, _MAX_LINE)


def _note(event: events.NoteWritten) -> str:
    if event.who in (events.MACHINE, events.REPAIR):
        return event.text
    command = f"  (garrison review {event.who})" if event.is_for_approval else ""
    return f"{event.who} waits for you: {event.text}{command}"


_DESCRIPTIONS: Mapping[type[Any], Callable[[Any], str]] = {
    events.NodeChanged: _node, events.GuardianSignal: _signal, events.RunChanged: _run, events.ChildSpawned: _spawn,
    events.WaitChanged: _gate, events.FlowAdvanced: _flow, events.ManagerCycled: _manager,
    events.LandingChanged: _landing, events.PullRequestChanged: _pull_request,
    events.ForeignMove: lambda event: f"warning: {event.describe()}",
    events.Warned: lambda event: f"warning: {event.describe()}",
    events.NoteWritten: _note,
    events.CandidatesRanked: lambda event: f"{event.node}: {event.order[0]} is chosen: {event.why}",
    events.ChildDied: lambda event: f"{_name(event.full)} died (incarnation {event.incarnation}): {event.why}",
    events.ChildParked: lambda event: f"{_name(event.full)} is parked: {event.why}",
}
"""Journal record → its words."""
