"""Actions: what a policy decides to do, as data. Each process carries them out by its own table, `HANDLERS`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from garrison.records.events import (
        FactRecorded,
        FlowAdvanced,
        GateChanged,
        GuardianSignal,
        ManagerCycled,
        NodeChanged,
        RunnerSignal,
    )
    from garrison.records.signals import Payload, PostedSignal
    from garrison.supervise.decisions import DecisionInputs

P = TypeVar("P")


class ActionKind(StrEnum):
    """Every kind of action; the comment names the type of its payload.

    The values are on disk (`decision` records) and in the names of failpoints.
    """

    APPLY_SIGNAL = "take"  # ApplySignal
    REFUSE_SIGNAL = "refuse"  # ApplySignal
    SEND = "say"  # SendSignal
    END = "end"

    # children: start, watch, end them
    START = "start"
    PROBE = "probe"
    CLOSE_CIRCUIT = "heal"
    REPLACE = "replace"  # ReplaceChild
    REPLACE_STRAY = "stray"
    RECORD_DEATH = "record"
    PARK = "park"  # ParkChild
    TERMINATE = "term"

    # launcher
    RESUME_RUN = "resume"
    REQUEST_STOP = "say_stop"
    WRITE_STOPPED = "write_stopped"

    # guardian
    CHANGE_RUN = "run"
    CHANGE_NODE = "node"  # NodeChanged
    ADVANCE_FLOW = "flow"  # FlowAdvanced
    CHANGE_GATE = "gate"  # GateChanged
    CYCLE_MANAGER = "manager"  # ManagerCycled
    CANCEL_NODE = "cancel"

    # runner
    PREPARE_WORKTREE = "tree"
    START_JOB = "job"
    STOP_JOB = "stop_job"
    RECORD_FACT = "fact"  # FactRecorded
    MOVE_HOOK = "move"
    REOPEN_HOOK = "again"
    ENQUEUE = "enqueue"
    SAVE_WORK = "keep"
    FAIL_NODE = "give_up"
    TIDY_UP = "tidy"


@dataclass(frozen=True)
class ApplySignal:
    """A signal from the inbox, and the record of what it changes; None if it was applied before."""

    posted: PostedSignal
    event: GuardianSignal | RunnerSignal | None = None


@dataclass(frozen=True)
class SendSignal:
    """A report to the parent; `suffix` tells several of one type and attempt apart."""

    payload: Payload
    suffix: str = ""


@dataclass(frozen=True)
class ReplaceChild:
    """Why the child's end is no crash, as the restart policy classes it."""

    death_class: str


@dataclass(frozen=True)
class ParkChild:
    """Whether the name is parked for good: no probe will be tried."""

    is_final: bool


@dataclass(frozen=True)
class Action:
    """One thing to do.

    `target` names what it is done to: a node (or `processor`), a job, a fact, a hook's phase, a run's status, a
    signal's type. A supervisor's own only child has no name.
    """

    kind: ActionKind
    target: str = ""
    why: str = ""
    payload: (ApplySignal | SendSignal | ReplaceChild | ParkChild | NodeChanged | FlowAdvanced | GateChanged
              | ManagerCycled | FactRecorded | None) = None
    basis: DecisionInputs | None = field(default=None, compare=False)
    """What a restart or cleanup was decided on; it is journaled before the action."""

    def expect(self, payload: type[P]) -> P:
        """Return the payload, which has to be of that type."""
        if not isinstance(self.payload, payload):
            raise TypeError(f"action {self.kind} has {self.payload!r}, not a {payload.__name__}")
        return self.payload


@dataclass(frozen=True)
class Decision:
    """What to do now, and when to observe again at the latest (monotonic seconds; None: at the next event)."""

    actions: list[Action]
    wake_at: float | None = None


@dataclass(frozen=True)
class MergeStatus:
    """Status of a node's entry in the merge queue, and the attempt that it was enqueued for."""

    attempt: int
    status: str
    reason: str = ""
    commit: str = ""
