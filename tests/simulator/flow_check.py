"""Rules of a run's flow, checked at every record of the guardian's journal."""

from __future__ import annotations

from typing import Any

from tests.simulator.violation import Violation

from garrison.ends import RefusedBy
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.questions import OpenWait
from garrison.records.journal import Entry
from garrison.records.record import from_data
from garrison.run.state import RunState
from garrison.system.clock import from_iso


def check_reports(shadow: RunState, entry: Entry, reported: set[tuple[str, int]]) -> None:
    """Check a record before it is applied: the flow is advanced only by steps that it waits for, by their real outcome,
    and once by each attempt. `reported` are the attempts that it was advanced by."""
    data: dict[str, Any] = entry.data if entry.kind == "flow" else entry.data.get("flow") or {}
    if not data.get("place_id"):
        return
    place = shadow.flow.places.get(data["place_id"])
    if place is None or place.attempt != data["attempt"]:
        raise Violation(f"the flow was advanced by {data['place_id']}, attempt {data['attempt']}; it waits for {place}")
    node = shadow.nodes.get(place.node)
    if node is None:
        if place.id not in shadow.waits:
            raise Violation(f"{place.id} was answered before it was asked")
        _check_answer(shadow, entry, shadow.waits[place.id])
        return
    if (place.node, node.attempt) in reported:
        raise Violation(f"attempt {node.attempt} of {place.node} advanced the flow twice, at last for {place.id}")
    reported.add((place.node, node.attempt))
    good = from_data(Outcome, data["outcome"]).good
    if node.status != ("validated" if good else "failed"):
        raise Violation(f"{place.id} ended as {data['outcome']}, and {place.node} is {node.status}")


def _check_answer(shadow: RunState, entry: Entry, gate: OpenWait) -> None:
    """Check that a gate is passed by a recorded answer or signal, or at its deadline."""
    if entry.kind != "flow" or shadow.heard.get(gate.signal) or (
            gate.deadline and from_iso(gate.deadline) <= from_iso(entry.at)):
        return
    raise Violation(f"{gate.place} was passed without an answer or a signal")


def check_attempt(shadow: RunState, change: dict[str, Any], max_rework: int) -> None:
    """Check a node's change before it is applied: attempts follow one another, as many in each step as are allowed."""
    name, attempt = change["node"], change.get("attempt", 1)
    old = shadow.nodes.get(name)
    if old is None:
        return
    step = change.get("step", old.step)
    if attempt not in (old.attempt, old.attempt + 1):
        raise Violation(f"{name} got attempt {attempt} after {old.attempt}")
    if change["status"] == "pending" and old.status in ("validated", "failed") and attempt == old.attempt:
        raise Violation(f"{name} is restarted in an attempt that is over")
    moved = old.moved + (change.get("kind") == RefusedBy.MOVED)
    if step == old.step and attempt - old.first - moved > max_rework:
        raise Violation(f"{name} got attempt {attempt} in {step}, which began with {old.first}")
    if change["status"] in ("pending", "active") and step and shadow.flow is not None \
            and step not in shadow.flow.steps() and step != old.step:
        raise Violation(f"{name} was started for {step}, which the flow does not wait for")


def check_end(shadow: RunState) -> None:
    """Check the end of a run: its flow has ended alike, and no gate is open."""
    flow = shadow.flow
    if shadow.status == "done" and flow.over != "done":
        raise Violation(f"the run is done, and its flow is {flow.state.status}")
    open_gates = [place.id for place in flow.places.values() if place.node not in shadow.nodes]
    if shadow.status == "failed" and open_gates:
        raise Violation(f"the run failed with open gates: {open_gates}")
