"""State of a run: plain data, lossless as JSON, changed only by the machine. Pure.

The state holds everything the next decision needs and nothing that can be computed from the program. Nothing in it
depends on the order of a mapping. `completed` is history: it is displayed and never decides. Places, moves and steps
are values: they are replaced, never changed (and not frozen, since each step creates several).

    running -> waiting                      everything in flight waits for a person or a signal
    waiting -> running                      something finished, or the run was resumed
    running | waiting -> done | failed
    failed  -> running                      resumed, as `resumable` allows
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from garrison.pipeline.flow.program import Route
from garrison.pipeline.outcome import Outcome

RUNNING, WAITING, DONE, FAILED = "running", "waiting", "done", "failed"

FLOW_STATUS: Mapping[str, frozenset[str]] = {
    RUNNING: frozenset({WAITING, DONE, FAILED}),
    WAITING: frozenset({RUNNING, DONE, FAILED}),
    FAILED: frozenset({RUNNING}),
    DONE: frozenset(),
}
"""Status of a run → the statuses that may follow it."""

ROOT = ""
"""Path of the branch that is the run itself."""


@dataclass(slots=True, unsafe_hash=True)
class Place:
    """One node in flight.

    `id` is stable and unique in a run: `impl#2` is the second visit, `fan#1/left/impl#1` a visit within a branch.
    `attempt` counts from 1 within the visit, `failed` the attempts that ended in a recorded failure. `branch` is the
    context it sees. `delay_s` is the delay before this attempt may start. `reason` says why the node is retried or
    visited again; it belongs in the prompt. `via` is the edge it was entered by, an index of `Program.edges` (or -1).
    """

    id: str
    node: str
    visit: int = 1
    attempt: int = 1
    branch: str = ROOT
    delay_s: float = 0
    reason: str = ""
    failed: int = 0
    via: int = -1


@dataclass(slots=True, unsafe_hash=True)
class Move:
    """A decided step that is not done yet: enter `node` in `branch`."""

    branch: str
    node: str
    via: int = -1
    reason: str = ""


@dataclass(slots=True)
class Branch:
    """A line of control: its latest outcome, the node of that outcome, and the context values its handlers wrote."""

    last: Outcome
    last_node: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Fan:
    """A parallel whose branches are running. `starts` maps each branch's key to its first move, in branch order."""

    node: str
    branch: str
    visit: int
    keys: list[str]
    starts: dict[str, Move]
    todo: list[str]
    running: list[str] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


_PLAIN_FIELDS = (
    "status", "reason", "detail", "node", "resumable", "seed", "max_steps", "steps", "redirects", "restarts", "visits",
    "completed", "contexts", "initial", "first_context", "waiting_for", "arrived", "failures", "digest",
)
"""Fields of the state that are JSON values already."""


@dataclass(slots=True)
class FlowState:
    """State of a run. Read it freely; only `begin` and `advance` change it.

    `reason` is the code of what ended the run (`max_steps_exceeded`, ...) or, if a node failed it, that node's own
    reason; `detail` is a sentence, and `node` is where it happened. `resumable` is empty, or what Resumed needs:
    `budget` (it continues where it stopped) or `again` (the failed node is visited again). `steps` counts visits.
    """

    status: str = RUNNING
    reason: str = ""
    detail: str = ""
    node: str = ""
    resumable: str = ""
    seed: str = ""
    max_steps: int = 0
    steps: int = 0
    redirects: int = 0
    restarts: int = 0
    in_flight: dict[str, Place] = field(default_factory=dict)
    queue: deque[Move] = field(default_factory=deque)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)
    completed: list[str] = field(default_factory=list)
    contexts: dict[str, dict[str, Any]] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    fans: dict[str, Fan] = field(default_factory=dict)
    repeated: dict[str, tuple[str, int]] = field(default_factory=dict)
    initial: dict[str, str] = field(default_factory=dict)
    first_context: dict[str, Any] = field(default_factory=dict)
    waiting_for: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, list[str]] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    digest: str = ""

    def context(self, branch: str = ROOT) -> Mapping[str, Any]:
        """Return the context of `branch`, read-only."""
        return MappingProxyType(self.contexts[branch])

    @property
    def ended(self) -> bool:
        """True if the run is over; `resumable` says whether it can continue."""
        return self.status in (DONE, FAILED)

    def to_data(self) -> dict[str, Any]:
        """Return the state as JSON values: the snapshot."""
        data: dict[str, Any] = {key: getattr(self, key) for key in _PLAIN_FIELDS}
        data["in_flight"] = {key: asdict(place) for key, place in self.in_flight.items()}
        data["settled"] = sorted(self.settled)
        data["queue"] = [asdict(move) for move in self.queue]
        data["outcomes"] = {key: outcome.to_data() for key, outcome in self.outcomes.items()}
        data["branches"] = {key: _branch_to_data(branch) for key, branch in self.branches.items()}
        data["fans"] = {key: _fan_to_data(fan) for key, fan in self.fans.items()}
        data["repeated"] = {key: list(value) for key, value in self.repeated.items()}
        copied: dict[str, Any] = copy_json(data)
        return copied

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> FlowState:
        """Return the state that `to_data` wrote."""
        data = copy_json(dict(data))
        state = cls(**{key: data[key] for key in _PLAIN_FIELDS})
        state.in_flight = {key: Place(**value) for key, value in data["in_flight"].items()}
        state.settled = set(data["settled"])
        state.queue = deque(Move(**value) for value in data["queue"])
        state.outcomes = {key: Outcome.from_data(value) for key, value in data["outcomes"].items()}
        state.branches = {key: _branch_from_data(value) for key, value in data["branches"].items()}
        state.fans = {key: _fan_from_data(value) for key, value in data["fans"].items()}
        state.repeated = {key: (value[0], value[1]) for key, value in data["repeated"].items()}
        return state


@dataclass(slots=True, unsafe_hash=True)
class Step:
    """A visit that ended with `outcome`; `automatic` if the engine executed it itself."""

    place_id: str
    node: str
    branch: str
    outcome: Outcome
    automatic: bool = False


@dataclass(slots=True)
class Change:
    """Effects of one event, in order, for drivers, events and logs; the state does not need it.

    `started` holds every place to run now: new ones, next attempts (those in `retried` too) and those of a resumed run.
    `cancelled` holds places whose work is no longer needed. `branches` holds ("started" | "finished", path). `ended` is
    the run's status if this event ended it.
    """

    started: list[Place] = field(default_factory=list)
    retried: list[Place] = field(default_factory=list)
    finished: list[Step] = field(default_factory=list)
    followed: list[tuple[str, Route]] = field(default_factory=list)
    cancelled: list[Place] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    branches: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: str = ""


def copy_json(value: Any) -> Any:
    """Return a deep copy of JSON values."""
    kind = type(value)
    if kind is dict:
        return {key: copy_json(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [copy_json(item) for item in value]
    return value


def _branch_to_data(branch: Branch) -> dict[str, Any]:
    return {"last": branch.last.to_data(), "last_node": branch.last_node, "counts": branch.counts,
            "written": branch.written}


def _branch_from_data(data: dict[str, Any]) -> Branch:
    return Branch(Outcome.from_data(data["last"]), data["last_node"], data["counts"], data["written"])


def _fan_to_data(fan: Fan) -> dict[str, Any]:
    return {**asdict(fan), "starts": {key: asdict(move) for key, move in fan.starts.items()}}


def _fan_from_data(data: dict[str, Any]) -> Fan:
    return Fan(data["node"], data["branch"], data["visit"], data["keys"],
               {key: Move(**move) for key, move in data["starts"].items()}, data["todo"], data["running"],
               data["results"])
