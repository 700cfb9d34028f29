"""What can happen to a run: the events that a driver journals and the machine folds. Pure.

The rule of this room: an event says what happened outside, never what follows from it; the same events give the same
state. Each can be written as JSON and read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from garrison.errors import UsageError
from garrison.pipeline.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt at a place in flight came to its end.

    Without an outcome the handler said nothing: a success where the node has auto_status, else a failure. `attempt`
    (0 = whichever it is) keeps an outcome that comes late from being taken for that of the next attempt.
    """

    place_id: str
    outcome: Outcome | None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Restarted:
    """An attempt was lost without an outcome (its process died); the place goes on with the next attempt.

    It does not count as a retry.
    """

    place_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Suspended:
    """Everything in flight waits for a person or a signal, and the driver goes away; the run is `waiting`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that waited, or that a budget or a person stopped, goes on.

    `max_steps` replaces the budget (that of a run that is running, too). `again` also takes up a run that failed at a
    node: that node is visited again.
    """

    max_steps: int | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The run's time (max_pipeline_duration) is used up; it can be resumed."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Aborted:
    """A person or the driver stopped the run; it can be resumed."""

    detail: str = ""


Event = Finished | Restarted | Suspended | Resumed | TimedOut | Aborted

_KINDS: Mapping[str, type[Event]] = {
    "finished": Finished, "restarted": Restarted, "suspended": Suspended, "resumed": Resumed, "timed_out": TimedOut,
    "aborted": Aborted,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def event_to_data(event: Event) -> dict[str, Any]:
    """An event as JSON values."""
    if type(event) is Finished and event.outcome is not None and event.attempt:  # of every step one
        return {"event": "finished", "place_id": event.place_id, "outcome": event.outcome.to_data(),
                "attempt": event.attempt}
    found: dict[str, Any] = {"event": _NAMES[type(event)]}
    for key in event.__slots__:
        value = getattr(event, key)
        if isinstance(value, Outcome):
            found[key] = value.to_data()
        elif value is not None and value is not False and value != "":
            found[key] = value
    return found


def event_from_data(data: Mapping[str, Any]) -> Event:
    """The event that `event_to_data` wrote; UsageError for a kind nobody knows."""
    kind = _KINDS.get(data.get("event", ""))
    if kind is None:
        raise UsageError(f"{data.get('event')!r:.40} is no event of a flow")
    values = {key: data[key] for key in kind.__slots__ if key in data}
    if kind is Finished:
        outcome = data.get("outcome")
        values["outcome"] = None if outcome is None else Outcome.from_data(outcome)
    return kind(**values)
