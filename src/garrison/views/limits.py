"""Limits of a run and their use: per incarnation, attempt, node and run, then the timeouts. Pure.

No limit is defined here. Each comes from the source that the processes use: the restart policy, the launch record, the
settings, or the queue's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from garrison.config import Timing
from garrison.records.run import Launch
from garrison.supervise.restart import Death, Policy, weigh_deaths, weigh_recent
from garrison.values import Value, field_names

TIMEOUTS = {
    "setup_timeout": "set-up of a worktree",
    "acceptance_timeout": "acceptance command",
    "gate_timeout": "gate",
    "spawn_deadline": "start of a process",
    "beat_timeout": "silence after which a process counts as hung and is replaced",
    "orphan_grace": "time for which a runner without guardian and launcher may start new work",
    "stop_launcher": "graceful stop of the launcher",
    "stop_guardian": "graceful stop of the guardian",
    "stop_runner": "graceful stop of a runner",
    "stop_orchestrator": "graceful stop of an agent",
}
"""Field of `Timing` → what it bounds; the others are intervals, not limits."""


class Used(Value):
    """Use of a run's limits. `deaths` are from the current attempt, by full name; `now` is monotonic, on `boot_id`.
    """

    deaths: Mapping[str, Sequence[Death]] = msgspec.field(default_factory=dict)
    attempts: Mapping[str, int] = msgspec.field(default_factory=dict)
    working: int = 0
    timeouts: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Node → its own timeout in seconds."""
    no_rework: Sequence[str] = ()
    """Nodes with rework=none."""
    gate_timeout: float | None = None
    """As the queue recorded it."""
    now: float = 0.0
    boot_id: str = ""


class Limit(Value, omit_defaults=True):
    """Limit: allowed amount of `unit` at `level`, amounts used by name, and the setting."""

    level: str
    limit: float
    unit: str
    text: str
    used: Mapping[str, float]
    """Name → amount used; a death for lack of memory counts as a fraction."""
    set_by: str
    window_s: float | None = None
    """Seconds after which a use no longer counts; None: never."""


def limits(launch: Launch, timing: Timing, used: Used) -> list[Limit]:
    """Return every limit of a run; their `used` contains only counts above 0."""
    return [*_nested_limits(launch, Policy.of(timing, launch.max_respawn), used), *_timeouts(timing, used)]


def _nested_limits(launch: Launch, policy: Policy, used: Used) -> Iterator[Limit]:
    recent = {full: weigh_recent(deaths, used.now, used.boot_id, policy) for full, deaths in used.deaths.items()}
    # `life` is the word of `status --json` for an incarnation, which scripts read.
    yield Limit("life", policy.intensity, "deaths",
                f"deaths in {format_duration(policy.window)}; the first restart at once, then {policy.base:g} s × 2ⁿ, "
                f"at most {format_duration(policy.cap)}", _positive(recent), "GARRISON_RESTART_WINDOW", policy.window)
    counted = {full: weigh_deaths(deaths) for full, deaths in used.deaths.items()
               if full.startswith(("runner-", "orchestrator-"))}
    yield Limit("attempt", launch.max_respawn, "deaths", "deaths of a runner or an agent in one attempt",
                _positive(counted), "--max-respawn")
    yield Limit("node", launch.max_rework, "attempts", "new attempts of a node"
                + (f"; none of {', '.join(used.no_rework)}" if used.no_rework else ""),
                _positive({node: attempt - 1 for node, attempt in used.attempts.items()}), "--max-rework")
    yield Limit("run", launch.max_agents, "nodes", "nodes worked on at once",
                _positive({launch.run_id or "run": used.working}), "--max-agents")


def _timeouts(timing: Timing, used: Used) -> Iterator[Limit]:
    for node, seconds in used.timeouts.items():
        yield _timeout(f"agent of {node}", seconds, "timeout= in the graph")
    for name in field_names(Timing):
        if name in TIMEOUTS:
            seconds = getattr(timing, name)
            if name == "gate_timeout" and used.gate_timeout is not None:
                seconds = used.gate_timeout
            yield _timeout(TIMEOUTS[name], seconds, f"GARRISON_{name.upper()}")


def _timeout(text: str, seconds: float, set_by: str) -> Limit:
    return Limit("time-out", seconds, "seconds", text, {}, set_by)


def _positive(counts: Mapping[str, float]) -> dict[str, float]:
    return {name: int(count) if count == int(count) else count for name, count in counts.items() if count > 0}


def format_duration(seconds: float) -> str:
    """Return a duration in words: 45 s, 10 min, 2 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"
