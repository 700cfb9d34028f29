"""The last signs of life of a node's agent and of a layer, as `status` and `agents show` tell them. Only reads.

One look has no history: ages here are the files' own, by the wall clock, and the beat's by the monotonic one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from garrison.supervise.hang_detector import latest_evidence
from garrison.supervise.lease import format_marker
from garrison.system.clock import format_age, from_iso

if TYPE_CHECKING:
    from garrison.processes.agent_activity import AgentActivity
    from garrison.records.identity import Identity
    from garrison.supervise.observer import Observer

SILENT = 60.0
"""Seconds without any sign after which `status` mentions it."""


def of_layer(observer: Observer, identity: Identity) -> dict[str, Any]:
    """What this machine shows of a life now: verdict, its process's state, beat, and the tree below it."""
    seen, verdict = observer.see(identity), observer.judge(identity)
    below = []
    if verdict.state == "alive" and identity.pid is not None:
        life = format_marker(str(observer.store.home), identity.key, identity.incarnation)
        below = observer.processes.below(identity.pid, life)
    return {"verdict": verdict.state, "why": verdict.why, "state": seen.process_state,
            "stopped": seen.process_state == "T", "beat_age_s": seen.beat_age, "processes": len(below),
            "processes_stopped": sum(one.state in ("T", "t") for one in below)}


def of_node(observer: Observer, identity: Identity | None, signs: AgentActivity) -> dict[str, Any]:
    """The signs of a node's agent: kind → seconds ago, the last of them, and how many of its processes are stopped."""
    layer = of_layer(observer, identity) if identity is not None else {}
    now = observer.clock.time()
    ages = _ages(signs.stamps(), now)
    if min(ages.values(), default=SILENT) >= SILENT:  # only then a whole tree is worth a walk
        ages = _ages(signs.stamps(deep=True), now)
    if identity is not None and identity.created_at:
        ages["start"] = max(0.0, now - from_iso(identity.created_at))  # what a life before it left is no sign of it
    last = latest_evidence(ages)
    if layer.get("beat_age_s") is not None:
        ages["beat"] = layer["beat_age_s"]
    return {"ages_s": ages, "last": {"kind": last[0], "age_s": last[1]} if last else None,
            "stopped": layer.get("stopped", False), "processes": layer.get("processes", 0),
            "processes_stopped": layer.get("processes_stopped", 0), "silence_s": signs.silence}


def _ages(stamps: Mapping[str, tuple[int, int] | None], now: float) -> dict[str, float]:
    return {kind: max(0.0, now - stamp[0] / 1e9) for kind, stamp in stamps.items() if stamp is not None}


def silent(signs: Mapping[str, Any] | None) -> str:
    """`, silent for 3m (last: output)` of an agent that shows nothing for long; '' otherwise."""
    last = signs["last"] if signs else None
    if last is None or last["age_s"] < SILENT:
        return ""
    return f", silent for {format_age(last['age_s'])} (last: {last['kind']})"
