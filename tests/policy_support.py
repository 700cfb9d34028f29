"""Histories for the policies of launcher, guardian and runner: journal records, signals and children."""

from __future__ import annotations

from typing import Any

from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.processes.actions import Action, ApplySignal, Decision, SendSignal
from garrison.records.events import GuardianSignal, encode
from garrison.records.identity import Identity
from garrison.records.journal import Entry
from garrison.records.signals import PostedSignal, Signal
from garrison.run.state import RunState, replay_run
from garrison.supervise.decisions import ChildState
from garrison.supervise.restart import Policy
from garrison.supervise.verdict import Verdict

AT = "2026-01-31T12:00:00.000001Z"
NOW, BOOT, RUN = 5000.0, "b1", "r1"
POLICY = Policy()


def plan(predecessors: dict[str, tuple[str, ...]], initial: dict[str, str] | None = None) -> RunPlan:
    nodes = [f"{name} [status={(initial or {}).get(name, 'pending')}]" for name in predecessors]
    edges = [f"{one} -> {name}" for name, before in predecessors.items() for one in before or ("start",)]
    lines = [*nodes, *edges, *(f"{name} -> end" for name in predecessors)]
    return plan_run(parse("digraph { flow=dag start [shape=Mdiamond] end [shape=Msquare] " + "; ".join(lines) + "}"))


TWO = plan({"a": (), "b": ("a",)})
WIDE = plan({"a": (), "b": (), "c": ()})


def life(role: str, name: str, status: str = "active", state: str = "alive", incarnation: int = 1,
         reason: str = "") -> ChildState:
    ended = status in ("crashed", "terminated", "parked")
    return ChildState(Identity("i", role, name, RUN, AT, incarnation=incarnation, status=status, pid=7,
                             metadata={"reason": reason}), Verdict("ended" if ended else state, "seen"))


def journal(*records: tuple[str, dict[str, Any]]) -> RunState:
    return replay_run([Entry(number, 1, "t", AT, kind, data) for number, (kind, data) in enumerate(records, 1)])


def node(name: str, status: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "node", {"node": name, "status": status, "attempt": 1, **more}


RUNNING = ("run", {"status": "running"})


def death(full: str, incarnation: int, ago: float = 1.0) -> tuple[str, dict[str, Any]]:
    return "death", {"full": full, "incarnation": incarnation, "monotonic": NOW - ago, "boot_id": BOOT}


def shown(decision: Decision) -> list[tuple[str, str]]:
    return [(act.kind, act.target) for act in decision.actions]


def posted(kind: str, id_: str = "s1", **changes: Any) -> PostedSignal:
    body: dict[str, Any] = {"id": id_, "source": {"role": "runner", "name": "a", "incarnation": 1},
                            "target": {"role": "guardian", "name": "p"}, "signal_type": kind, "run_id": RUN,
                            "timestamp": AT, "node_id": "a", "attempt": 1}
    return PostedSignal(f"{id_}.json", Signal(**{**body, **changes}))


def signal(id_: str, type: str = "GUIDANCE", **effects: Any) -> tuple[str, dict[str, Any]]:
    """Return the record of a signal that a guardian applied."""
    return "signal", {"id": id_, "type": type, "node": "a", "attempt": 1, "from": "", "incarnation": 1, **effects}


def record(action: Action) -> Entry:
    """Return the journal record that an action leads to."""
    event = action.payload.event if isinstance(action.payload, ApplySignal) else action.payload
    return Entry(99, 1, "t", AT, event.kind, encode(event))


COMMON = ("id", "type", "node", "attempt", "from", "incarnation", "why")
"""Keys that every record of an applied signal has."""


def effect(action: Action) -> dict[str, Any]:
    """Return what an action changes: its payload as it is written, a signal's record without what all have."""
    match action.payload:
        case None:
            return {}
        case ApplySignal():
            event = action.payload.event
            data = {} if event is None else {key: value for key, value in encode(event).items() if key not in COMMON}
            return {**data, "stop": True} if isinstance(event, GuardianSignal) and event.stop else data
        case SendSignal():
            return action.payload.payload.to_data()
    return encode(action.payload)


def parked(full: str, incarnation: int = 1, why: str = "six deaths", ago: float = 1.0) -> tuple[str, dict[str, Any]]:
    return "park", {"full": full, "why": why, "incarnation": incarnation, "monotonic": NOW - ago, "boot_id": BOOT}
