"""Actions: decisions of a policy, as data. Each process carries them out by its own table, `HANDLERS`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from garrison.records.signals import find_objection
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from garrison.records.events import GuardianSignal, NodeChanged, RunnerSignal
    from garrison.records.signals import Payload, PostedSignal, Signal
    from garrison.supervise.decisions import ChildState, DecisionInputs, RestartDecision

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
    HEAL = "heal"
    REPLACE = "replace"  # ReplaceChild
    REPLACE_STRAY = "stray"
    RECORD_DEATH = "record"
    PARK = "park"  # ParkChild
    TERMINATE = "term"

    # launcher
    RESUME_RUN = "resume"
    REQUEST_STOP = "say_stop"
    WRITE_STOPPED = "write_stopped"
    WRITE_PARKED = "write_parked"

    # guardian
    CHANGE_RUN = "run"
    STOP_RUN = "stop_run"
    CHANGE_NODE = "node"  # NodeChanged
    ADVANCE_FLOW = "flow"  # FlowAdvanced
    CHANGE_WAIT = "gate"  # WaitChanged
    CYCLE_MANAGER = "manager"  # ManagerCycled
    CANCEL_NODE = "cancel"
    RANK_CANDIDATES = "choice"  # CandidatesRanked
    COMPARE_CANDIDATES = "verdict"  # CandidatesCompared
    CHANGE_TURN = "turn"  # TurnEnded, TurnSuspended
    CHANGE_LANDING = "landing"  # LandingChanged
    CHANGE_PULL_REQUEST = "pull_request"  # PullRequestChanged
    ASK_FOLLOWER = "forge"  # of the extra that follows the run (`run/follower.py`)

    # runner
    PREPARE_WORKTREE = "tree"
    COMPARE_TREE = "compare"
    INSPECT_CHANGE = "inspect"
    START_JOB = "job"
    STOP_JOB = "stop_job"
    RECORD_FACT = "fact"  # FactRecorded
    MOVE_HOOK = "move"
    REOPEN_HOOK = "again"
    ENQUEUE = "enqueue"
    SAVE_WORK = "keep"
    FAIL_NODE = "give_up"
    TIDY_UP = "tidy"


class ApplySignal(Value):
    """A signal from the inbox, and the record of its changes; None if it was applied before."""

    posted: PostedSignal
    event: GuardianSignal | RunnerSignal | None = None


class SendSignal(Value):
    """A report to the parent; `suffix` distinguishes several of one type and attempt."""

    payload: Payload
    suffix: str = ""


class ReplaceChild(Value):
    """Class of a death that is not a crash (`supervise.death_classes.CLASSES`)."""

    death_class: str


class ParkChild(Value):
    """Duration of a park: a final one is not followed by a probe."""

    is_final: bool


@dataclass(frozen=True)
class Action:
    """One action.

    `target` names its object: a node (or `processor`), a job, a fact, a hook's phase, a run's status, a runner's
    departure or a signal's type. It is empty for the only child of a launcher or runner.
    """

    kind: ActionKind
    target: str = ""
    why: str = ""
    payload: Value | None = None
    basis: DecisionInputs | None = field(default=None, compare=False)
    """Inputs of a restart or cleanup decision; they are journaled before the action."""

    @classmethod
    def of(cls, decision: RestartDecision, target: str = "") -> Action:
        """Return the action that carries out a restart or cleanup decision."""
        return cls(ActionKind(decision.kind), target, decision.why, basis=decision.basis)

    def expect(self, payload: type[P]) -> P:
        """Return the payload, which must be of that type."""
        if not isinstance(self.payload, payload):
            raise TypeError(f"action {self.kind} has {self.payload!r}, not a {payload.__name__}")
        return self.payload


class Decision(Value):
    """Actions of one turn, and the latest time of the next one (monotonic seconds; None: at the next event)."""

    actions: list[Action]
    wake_at: float | None = None


def change_node(event: NodeChanged) -> Action:
    return Action(ActionKind.CHANGE_NODE, event.node, payload=event)


# ---- signals ---------------------------------------------------------------------------------------------------------


def refuse_signal(posted: PostedSignal, why: str) -> Action:
    return Action(ActionKind.REFUSE_SIGNAL, why=why, payload=ApplySignal(posted))


def take_signals(inbox: Iterable[PostedSignal], run: str, attempts: Mapping[str, int], children: Iterable[ChildState],
                 applied: Collection[str], apply: Callable[[PostedSignal, Signal], list[Action]], *,
                 one: bool = False) -> list[Action]:
    """Return the actions on an inbox: acknowledge signals that were applied before, refuse void ones, apply the others.

    Args:
        attempts: node → its current attempt.
        children: children whose incarnations count.
        applied: ids of the signals that were applied.
        apply: returns the actions that apply a signal.
        one: stop after the first applied signal: later ones are judged by the resulting state.
    """
    incarnations = {child.identity.key.full: child.identity.incarnation for child in children if child.identity}
    actions: list[Action] = []
    for posted in inbox:
        signal = posted.signal
        if signal is None:
            actions.append(refuse_signal(posted, posted.error))
        elif signal.id in applied:  # its process died between journal and acknowledgement
            actions.append(Action(ActionKind.APPLY_SIGNAL, payload=ApplySignal(posted)))
        elif why := find_objection(signal, run, attempts, incarnations):
            actions.append(refuse_signal(posted, why))
        else:
            actions += apply(posted, signal)
            if one:
                break
    return actions
