"""Flow of a run, used by both drivers: a pure state machine with two strategies, `walk` and `dag`.

An event records what happened outside the machine, never its consequences: a driver journals it, then applies it
(`advance`) and runs the places in `FlowChange.started`; the same events lead to the same state. One that does not fit
the state raises and changes nothing. Between two events every decided move is done, until everything left is in flight
or the run has ended.

The engine executes `start`, `exit`, `conditional`, `parallel` and `parallel.fan_in`; all other nodes are put in flight.
Imports point down: this; dag; walk; parallel; routing and state; program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from garrison.errors import ForbiddenTransition, Refused, UsageError
from garrison.pipeline.flow import dag, walk
from garrison.pipeline.flow.program import CONDITIONAL, FAN_IN, HUMAN, PARALLEL, Program
from garrison.pipeline.flow.routing import choose, choose_all
from garrison.pipeline.flow.state import (
    DONE,
    FAILED,
    ROOT,
    RUNNING,
    WAITING,
    EndedVisit,
    FlowChange,
    FlowState,
    FlowTurn,
    Move,
    Visit,
    final_outcome,
)
from garrison.pipeline.graph import copy_json
from garrison.pipeline.node_status import FAILED as NODE_FAILED
from garrison.pipeline.node_status import IMPL_COMPLETE, VALIDATED
from garrison.pipeline.outcome import SUCCESS, Budget, Outcome
from garrison.records.record import Record
from garrison.values import replace

__all__ = [
    "DONE",
    "FAILED",
    "ROOT",
    "RUNNING",
    "WAITING",
    "Aborted",
    "EndedVisit",
    "Event",
    "Finished",
    "FlowChange",
    "FlowState",
    "Restarted",
    "Resumed",
    "SentBack",
    "Suspended",
    "TimedOut",
    "Visit",
    "advance",
    "begin",
    "choose",
    "choose_all",
    "declined_at",
    "event_from_data",
    "extend",
    "node_to_return_to",
    "retriable_nodes",
    "start",
]


class Finished(Record, tag_field="event", tag="finished"):
    """An attempt at a place in flight ended.

    Without an outcome the handler returned nothing: a success if the node has auto_status, else a failure. `attempt`
    (0 = any) keeps a late outcome from counting for the next attempt.
    """

    place_id: str
    outcome: Outcome | None = None
    attempt: int = 0


class Restarted(Record, tag_field="event", tag="restarted"):
    """An attempt was lost without an outcome (its process died); the place continues with the next attempt.

    This does not count as a retry.
    """

    place_id: str
    reason: str = ""


class Suspended(Record, tag_field="event", tag="suspended"):
    """Everything in flight waits for the user or a signal, and the driver exits; the run is `waiting`."""

    reason: str = ""


class Resumed(Record, tag_field="event", tag="resumed"):
    """A run that waited, or was stopped by a budget or the user, continues.

    `max_steps` replaces the budget (also of a running run). `again` also resumes a run that failed at a node: that
    node is visited again. With `nodes`, only these failed nodes of a dag are, even while the rest of it runs.
    """

    max_steps: int | None = None
    again: bool = False
    nodes: Sequence[str] | None = None


class SentBack(Record, tag_field="event", tag="sent_back"):
    """Refusal of the landing of a run at its exit; the run returns to the node `to` (`node_to_return_to`)."""

    to: str
    reason: str = ""


class TimedOut(Record, tag_field="event", tag="timed_out"):
    """A run reached max_pipeline_duration; it can be resumed."""

    detail: str = ""


class Aborted(Record, tag_field="event", tag="aborted"):
    """The user or the driver stopped the run; it can be resumed."""

    detail: str = ""


Event = Finished | Restarted | Suspended | Resumed | SentBack | TimedOut | Aborted
"""Events in the journal, as `{"event": "finished", ...}`; `asdict` writes them."""


def event_from_data(data: Mapping[str, object]) -> Event:
    """Return the event of a journal record; raise UsageError if it is not a flow event."""
    try:
        event: Event = msgspec.convert(data, Event)
    except msgspec.ValidationError as error:
        raise UsageError(f"{data.get('event')!r:.40} is not a flow event: {error}") from None
    return event


_DECIDED = (VALIDATED, IMPL_COMPLETE, NODE_FAILED)
"""Statuses in the graph for which a node is not run."""
_WITH_AGENTS = ("codergen", "subgraph", "stack.manager_loop", PARALLEL)
"""Handlers of nodes with agents, directly or nested."""
_REFUSAL = re.compile(r"(?:reject|cancel|abort|discard)\b|no(?:\s*(?:[^\w\s]|$)|\s+thank)", re.IGNORECASE)
"""Start of an answer by which the user declines; `No changes needed` does not match."""
_STRATEGIES = {"walk": walk, "dag": dag}


def begin(program: Program, context: Mapping[str, object] | None = None, seed: str = "", *, at: str | None = None,
          initial: Mapping[str, str] | None = None) -> FlowState:
    """Return a new run of `program` with its first places in flight. See `start` for the arguments."""
    return start(program, context, seed, at=at, initial=initial)[0]


def start(program: Program, context: Mapping[str, object] | None = None, seed: str = "", *, at: str | None = None,
          initial: Mapping[str, str] | None = None) -> tuple[FlowState, FlowChange]:
    """Return a new run of `program` and the effects of starting it.

    `context` (JSON values) overrides the graph's attributes, which have the keys `graph.X`. `seed` decides the jitter
    of delays. A walk may start `at` a node other than the start. `initial` replaces the statuses in the graph (node ->
    validated, impl_complete or failed; others have no effect).
    """
    words = program.initial if initial is None else initial
    # A copy: later changes of a caller's own list must not change the run, whose journal has only the events.
    first: dict[str, object] = {**program.attrs, **copy_json(dict(context or {}))}
    state = FlowState(
        seed=seed, max_steps=program.max_steps, digest=program.digest, first_context=first,
        initial={node: word for node, word in words.items() if word in _DECIDED and not program.units[node].automatic},
    )
    turn = FlowTurn(program, state, FlowChange())
    turn.open_branch(ROOT, first, Outcome(SUCCESS))
    if at is not None and (program.flow == "dag" or at not in program.units):
        raise Refused(f"a run cannot start at {at}: " + ("flow=dag starts at the start node" if at in program.units
                                                         else "the graph has no such node"))
    state.queue.append(Move(ROOT, at or program.start))
    _process_queue(turn)
    return state, turn.change


def advance(program: Program, state: FlowState, event: Event) -> FlowChange:
    """Apply `event` to `state` and return its effects; raise ForbiddenTransition if it does not fit."""
    turn = FlowTurn(program, state, FlowChange())
    match event:
        case Finished():
            _finish(turn, event)
        case Restarted():
            _restart(turn, event)
        case Suspended():
            turn.become(WAITING)
            state.detail = event.reason
        case Resumed():
            _resume(turn, event)
        case SentBack():
            _send_back(turn, event)
        case TimedOut():
            _check_not_ended(turn)
            turn.stop(Budget.DURATION, event.detail or "the run reached its time limit")
        case Aborted():
            _check_not_ended(turn)
            turn.stop(Budget.ABORTED, event.detail or "the run was stopped")
    if state.status == RUNNING:
        _process_queue(turn)
    return turn.change


def extend(program: Program, state: FlowState, before: Program) -> FlowChange:
    """Continue with a program with new nodes and, after the edges of `before`, new edges; return the effects.

    Only for a dag: in a walk a new edge counts when its node is left.
    """
    turn = FlowTurn(program, state, FlowChange())
    state.digest = program.digest
    if program.flow == "dag" and not state.ended:
        dag.extend(turn, program.edges[len(before.edges):])
        if state.status == RUNNING:
            _process_queue(turn)
    return turn.change


def _process_queue(turn: FlowTurn) -> None:
    """Execute the decided moves, one after another."""
    state, strategy = turn.state, _STRATEGIES[turn.program.flow]
    while state.status == RUNNING:
        if state.queue:
            strategy.enter(turn, state.queue.pop(0))
        # A walk ends at its exit or with its token; only a dag has to detect that nothing is left.
        elif strategy is dag and not state.in_flight:
            dag.finish(turn)
        else:
            return


def _finish(turn: FlowTurn, event: Finished) -> None:
    state = turn.state
    place = _in_flight(turn, event.place_id, event.attempt)
    unit = turn.program.units[place.node]
    if state.status == WAITING:
        turn.become(RUNNING)
    # Before the retry, which puts the next attempt in flight under the same id.
    del state.in_flight[place.id]
    if event.outcome is not None and turn.retry(place, event.outcome, unit):
        return
    _STRATEGIES[turn.program.flow].settle(turn, place, final_outcome(event.outcome, unit))


def _restart(turn: FlowTurn, event: Restarted) -> None:
    place = _in_flight(turn, event.place_id, 0)
    turn.launch(replace(place, attempt=place.attempt + 1, delay_s=0, reason=event.reason or place.reason,
                        interrupted=True))


def _resume(turn: FlowTurn, event: Resumed) -> None:
    state = turn.state
    failed, node, how = state.status == FAILED, state.node, state.resumable
    if state.status == DONE or (failed and (not how or (how == "again" and not event.again))):
        raise ForbiddenTransition(f"the run ({state.reason})", state.status, RUNNING, ())
    # A running run may also be resumed: it gets more steps, or retries single failed nodes.
    if state.status != RUNNING:
        turn.become(RUNNING)
    if event.max_steps is not None:
        state.max_steps = event.max_steps
    state.reason = state.detail = state.node = state.resumable = ""
    if not failed:
        if event.again and event.nodes and turn.program.flow == "dag":
            dag.retry_failed(turn, "", event.nodes)
        return
    # Attempts in flight were stopped together with the run: they are lost, not failed.
    for place in list(state.in_flight.values()):
        turn.launch(replace(place, attempt=place.attempt + 1, delay_s=0))
    if how == "again":
        _visit_again(turn, node, event.nodes)


def _visit_again(turn: FlowTurn, node: str, only: Sequence[str] | None = None) -> None:
    """Revisit the node that failed the run; in a dag all failed nodes, or `only` these.

    Within a parallel this is the outermost parallel; if a conditional or a fan-in passed on a failure, it is the node
    that failed.
    """
    state = turn.state
    state.repeated.clear()
    state.redirects = 0
    if turn.program.flow == "dag":
        dag.retry_failed(turn, node, only)
        return
    # Revisited alone, these would judge the same old results again. Observed: a fan-in that took the one branch
    # that had succeeded for a success of all.
    if turn.program.units[node].handler in (CONDITIONAL, FAN_IN):
        node = next((completed for completed in reversed(state.completed)
                     if turn.program.units[completed].handler not in (CONDITIONAL, FAN_IN)), node)
    # A node within an open parallel cannot be entered by itself: its branch, with its context, will be removed.
    node = next((fan.node for fan in state.fans.values() if fan.branch == ROOT), node)
    for path in [path for path in state.branches if path != ROOT]:
        del state.branches[path], state.contexts[path]
    state.fans.clear()
    last = state.outcomes.get(node)
    turn.enqueue(ROOT, node, None, last.failure_reason if last else "")


def retriable_nodes(program: Program, state: FlowState) -> set[str]:
    """Return the failed nodes that can be revisited one by one: those of a dag that block their successors."""
    return dag.retriable(FlowTurn(program, state,
                                  FlowChange())) if program.flow == "dag" and state.status != DONE else set()


def node_to_return_to(program: Program, state: FlowState) -> str:
    """Return the node to which a refused run returns: the graph's retry target, else the last agent that ran.

    An agent within a parallel is reached by its parallel, one of a nested pipeline by that pipeline's node. Empty if
    no agent ran.
    """
    if program.retry_targets:
        return program.retry_targets[0]
    return next((node for node in reversed(state.completed)
                 if program.units[node].handler in _WITH_AGENTS and state.visits.get(node)), "")


def declined_at(program: Program, state: FlowState) -> str:
    """Return the question whose answer No led to an exit; '' if there is none."""
    for node, outcome in state.outcomes.items():
        label = str(outcome.context_updates.get("human.gate.label", "")).strip()
        leads_out = any(target in program.exits for target in outcome.suggested_next_ids)
        if program.units[node].handler == HUMAN and leads_out and _REFUSAL.match(label):
            return node
    return ""


def _send_back(turn: FlowTurn, event: SentBack) -> None:
    state, program = turn.state, turn.program
    if state.status != DONE or event.to not in program.units:
        raise ForbiddenTransition("the run", state.status, f"sent back to {event.to}", ())
    turn.become(RUNNING)
    state.repeated.clear()
    state.redirects = 0
    turn.change.notes.append(f"{event.reason.partition(chr(10))[0]}; back to {event.to}")
    if program.flow == "dag":
        dag.rerun_from(turn, event.to, event.reason)
    else:
        turn.enqueue(ROOT, event.to, None, event.reason)


def _in_flight(turn: FlowTurn, place_id: str, attempt: int) -> Visit:
    place = turn.state.in_flight.get(place_id)
    if place is None or turn.state.ended:
        raise ForbiddenTransition(f"place {place_id}", "not in flight", "finished", ())
    # An abandoned handler (timed out, restarted) may still report: its outcome no longer belongs to an attempt.
    if attempt and attempt != place.attempt:
        raise ForbiddenTransition(f"place {place_id}", f"attempt {place.attempt}", f"attempt {attempt} finished", ())
    return place


def _check_not_ended(turn: FlowTurn) -> None:
    if turn.state.ended:
        raise ForbiddenTransition("the run", turn.state.status, FAILED, ())
