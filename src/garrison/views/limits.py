"""The limits that nest (life inside attempt inside node inside run) and the time-outs, with what is used of each. Pure.

The rule of this room: no limit is written down here. Each comes from where the layers take it: the restart policy, the
launch record, the settings, the queue's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from garrison.config import Timing
from garrison.records.run import Launch
from garrison.supervise.restart import Death, Policy, recent_deaths

TIMES = {
    "setup_timeout": "set-up of a tree",
    "acceptance_timeout": "acceptance",
    "gate_timeout": "gate",
    "spawn_deadline": "start of a layer",
    "beat_timeout": "silence until a life counts as hung and is replaced",
    "orphan_grace": "what a runner may begin without guardian and launcher",
    "stop_launcher": "orderly stop of the launcher",
    "stop_guardian": "orderly stop of the guardian",
    "stop_runner": "orderly stop of a runner",
    "stop_orchestrator": "orderly stop of an agent",
}
"""Field of `Timing` → what it bounds; the others are paces, not limits."""


@dataclass(frozen=True)
class Used:
    """What a run has used. `deaths` by full name, those of the current attempt; `now` is monotonic, of `boot_id`."""

    deaths: Mapping[str, Sequence[Death]] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    working: int = 0
    timeouts: Mapping[str, float] = field(default_factory=dict)
    """Node → its own timeout, seconds."""
    no_rework: Sequence[str] = ()
    """Nodes that say rework=none."""
    gate_timeout: float | None = None
    """As the queue recorded it."""
    now: float = 0.0
    boot_id: str = ""


def policy_of(launch: Launch, timing: Timing) -> Policy:
    """The restart policy of a run's agents and runners."""
    return Policy.of(timing, launch.max_respawn)


def limits(launch: Launch, timing: Timing, used: Used) -> list[dict[str, Any]]:
    """A row a limit: level, limit (a number), unit, text, used ({who: how much}, those above 0), set_by."""
    policy = policy_of(launch, timing)
    return [*_nested(launch, policy, used), *_times(timing, used)]


def _nested(launch: Launch, policy: Policy, used: Used) -> Iterator[dict[str, Any]]:
    recent = {who: len(recent_deaths(deaths, used.now, used.boot_id, policy)) for who, deaths in used.deaths.items()}
    yield _row("life", policy.intensity, "deaths",
               f"deaths in {span_of(policy.window)}; the first restart at once, then {policy.base:g} s × 2ⁿ, at most "
               f"{span_of(policy.cap)}", recent, "GARRISON_RESTART_WINDOW", window_s=policy.window)
    whole = {who: sum(one.counts for one in deaths) for who, deaths in used.deaths.items()
             if who.startswith(("runner-", "orchestrator-"))}
    yield _row("attempt", launch.max_respawn, "deaths", "deaths of a runner or an agent in one attempt", whole,
               "--max-respawn")
    yield _row("node", launch.max_rework, "attempts", "new attempts of a node"
               + (f"; none of {', '.join(used.no_rework)}" if used.no_rework else ""),
               {node: attempt - 1 for node, attempt in used.attempts.items()}, "--max-rework")
    yield _row("run", launch.max_agents, "nodes", "nodes worked on at once", {launch.run_id or "run": used.working},
               "--max-agents")


def _times(timing: Timing, used: Used) -> Iterator[dict[str, Any]]:
    for node, seconds in used.timeouts.items():
        yield _time(f"agent of {node}", seconds, "timeout= in the graph")
    for one in fields(timing):
        if one.name in TIMES:
            seconds = getattr(timing, one.name)
            if one.name == "gate_timeout" and used.gate_timeout is not None:
                seconds = used.gate_timeout
            yield _time(TIMES[one.name], seconds, f"GARRISON_{one.name.upper()}")


def _time(what: str, seconds: float, set_by: str) -> dict[str, Any]:
    return _row("time-out", seconds, "seconds", what, {}, set_by)


def _row(level: str, limit: float, unit: str, text: str, used: Mapping[str, int], set_by: str,
         **more: Any) -> dict[str, Any]:
    return {"level": level, "limit": limit, "unit": unit, "text": text,
            "used": {who: count for who, count in used.items() if count > 0}, "set_by": set_by, **more}


def span_of(seconds: float) -> str:
    """A length of time in words: 45 s, 10 min, 2 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"
