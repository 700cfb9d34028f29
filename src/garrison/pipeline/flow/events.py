"""Flow events: what can happen to a run. A driver journals them, and the machine applies them. Pure.

An event records what happened outside the machine, never what follows from it; the same events lead to the same state.
`EVENT_KINDS` names each kind in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from garrison.errors import UsageError
from garrison.pipeline.outcome import Outcome
from garrison.values import Value, fields_of


class Finished(Value):
    """An attempt at a place in flight ended.

    Without an outcome the handler returned nothing: a success if the node has auto_status, else a failure. `attempt`
    (0 = any) keeps a late outcome from counting for the next attempt.
    """

    place_id: str
    outcome: Outcome | None
    attempt: int = 0


class Restarted(Value):
    """An attempt was lost without an outcome (its process died); the place continues with the next attempt.

    This does not count as a retry.
    """

    place_id: str
    reason: str = ""


class Suspended(Value):
    """Everything in flight waits for a person or a signal, and the driver exits; the run is `waiting`."""

    reason: str = ""


class Resumed(Value):
    """A run that waited, or that a budget or a person stopped, continues.

    `max_steps` replaces the budget (of a running run, too). `again` also resumes a run that failed at a node: that node
    is visited again. With `nodes`, only these of the failed nodes of a dag are, also while the rest of it runs.
    """

    max_steps: int | None = None
    again: bool = False
    nodes: Sequence[str] | None = None


class SentBack(Value):
    """Refusal of the landing of a run at its exit; the run returns to the node `to` (`machine.node_to_return_to`)."""

    to: str
    reason: str = ""


class TimedOut(Value):
    """A run reached max_pipeline_duration; it can be resumed."""

    detail: str = ""


class Aborted(Value):
    """A person or the driver stopped the run; it can be resumed."""

    detail: str = ""


Event = Finished | Restarted | Suspended | Resumed | SentBack | TimedOut | Aborted

EVENT_KINDS: Mapping[str, type[Event]] = {
    "finished": Finished, "restarted": Restarted, "suspended": Suspended, "resumed": Resumed, "sent_back": SentBack,
    "timed_out": TimedOut, "aborted": Aborted,
}
_KIND_NAMES = {kind: name for name, kind in EVENT_KINDS.items()}


def event_to_data(event: Event) -> dict[str, Any]:
    """Return an event as JSON values."""
    if type(event) is Finished and event.outcome is not None and event.attempt:  # the common case: one per step
        return {"event": "finished", "place_id": event.place_id, "outcome": event.outcome.to_data(),
                "attempt": event.attempt}
    data: dict[str, Any] = {"event": _KIND_NAMES[type(event)]}
    for key, value in fields_of(event).items():
        if isinstance(value, Outcome):
            data[key] = value.to_data()
        elif value is not None and value is not False and value != "":
            data[key] = value
    return data


def event_from_data(data: Mapping[str, Any]) -> Event:
    """Return the event that `event_to_data` wrote; raise UsageError for an unknown kind."""
    kind = EVENT_KINDS.get(data.get("event", ""))
    if kind is None:
        raise UsageError(f"{data.get('event')!r:.40} is not a flow event")
    values = {key: data[key] for key in kind.__match_args__ if key in data}
    if kind is Finished:
        outcome = data.get("outcome")
        values["outcome"] = None if outcome is None else Outcome.from_data(outcome)
    return kind(**values)
