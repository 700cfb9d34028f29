"""What may never happen in a run's flow, checked at every record of the guardian's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulator.violation import Violation

from garrison.pipeline.outcome import Outcome

if TYPE_CHECKING:
    from garrison.processes.run_state import RunState
    from garrison.records.journal import Entry


def told(shadow: RunState, entry: Entry, reported: set[tuple[str, int]]) -> None:
    """Before a record is folded in: the flow is told only of steps that it waits for, and only what came of them, of
    each attempt once. `reported` are the attempts of which it was told."""
    data: dict[str, Any] = entry.data if entry.kind == "flow" else entry.data.get("flow") or {}
    if not data.get("place_id"):
        return
    assert shadow.flow is not None
    place = shadow.flow.places.get(data["place_id"])
    if place is None or place.attempt != data["attempt"]:
        raise Violation(f"the flow was told of {data['place_id']}, attempt {data['attempt']}, and waits for {place}")
    node = shadow.nodes.get(place.node)
    if node is None:
        if place.id not in shadow.gates:
            raise Violation(f"{place.id} was answered before it was asked")
        return
    if (place.node, node.attempt) in reported:
        raise Violation(f"attempt {node.attempt} of {place.node} counted twice, at last for {place.id}")
    reported.add((place.node, node.attempt))
    good = Outcome.from_data(data["outcome"]).good
    if node.status != ("validated" if good else "failed"):
        raise Violation(f"{place.id} ended as {data['outcome']}, and {place.node} is {node.status}")


def follows(shadow: RunState, change: dict[str, Any], max_rework: int) -> None:
    """Before a node's change is folded in: attempts follow one another, each step has those that it may have."""
    name, attempt = change["node"], change.get("attempt", 1)
    old = shadow.nodes.get(name)
    if old is None:
        return
    step = change.get("step", old.step)
    if attempt not in (old.attempt, old.attempt + 1):
        raise Violation(f"{name} got attempt {attempt} after {old.attempt}")
    if change["status"] == "pending" and old.status in ("validated", "failed") and attempt == old.attempt:
        raise Violation(f"{name} is to be done again in the attempt that is over")
    if step == old.step and attempt - old.first > max_rework:
        raise Violation(f"{name} got attempt {attempt} in {step}, which began with {old.first}")
    if change["status"] in ("pending", "active") and step and shadow.flow is not None \
            and step not in shadow.flow.steps() and step != old.step:
        raise Violation(f"{name} was begun for {step}, which the flow does not wait for")


def ended(shadow: RunState) -> None:
    """At the end of a run: the flow agrees."""
    flow = shadow.flow
    assert flow is not None
    if shadow.status == "done" and flow.over != "done":
        raise Violation(f"the run is done, and its flow is {flow.state.status}")
    asked = [place.id for place in flow.places.values() if place.node not in shadow.nodes]
    if shadow.status == "failed" and asked:
        raise Violation(f"the run failed while somebody was to be asked: {asked}")
