"""Payloads of the signals that the processes of a run exchange: one dataclass per meaning, and their form on disk.

`payload.to_data()` is what a sender writes (empty fields are left out); `parse(signal)` is what a recipient reads.
Anyone may write a signal file by hand, so `parse` accepts whatever can be meant: missing values become empty ones,
numbers are converted; what cannot be meant is None. Signals of other types, those of the merge queue for instance,
carry plain dictionaries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from garrison.records.signals import Signal

KEYS = {"node": "node_id", "failure_kind": "kind", "last_incarnation": "life", "retry_failed": "again"}
"""Field → key on disk, where the two differ."""


class Payload:
    """What a signal of `type` says; guidance has an `action`, too."""

    type: ClassVar[str] = "GUIDANCE"
    action: ClassVar[str] = ""

    def to_data(self) -> dict[str, Any]:
        """Return the payload's JSON."""
        data = {"action": self.action} if self.action else {}
        return data | {KEYS.get(name, name): value for name, value in vars(self).items() if value not in ("", None)}


# ---- reports, upward -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeComplete(Payload):
    """The node's acceptance is green."""

    type = "NODE_COMPLETE"
    node: str
    branch: str


@dataclass(frozen=True)
class MergeReady(Payload):
    """The node's branch is in the merge queue."""

    type = "MERGE_READY"
    node: str
    branch: str


@dataclass(frozen=True)
class RunnerExited(Payload):
    """A runner has ended: its node is `done` or `failed`; `failure_kind` says what failed, `rescue` where work is."""

    type = "RUNNER_EXITED"
    node: str
    branch: str
    status: str
    failure_kind: str = ""
    reason: str = ""
    rescue: str = ""


@dataclass(frozen=True)
class OrchestratorHung(Payload):
    """The node's orchestrator hangs and is replaced."""

    type = "ORCHESTRATOR_STUCK"
    incarnation: int
    why: str
    evidence: dict[str, Any] | None = None


@dataclass(frozen=True)
class OrchestratorParked(Payload):
    """The node's orchestrator is parked, or no longer is; a probe is due at `probe_at` (UTC)."""

    type = "ORCHESTRATOR_STUCK"
    node: str
    branch: str
    parked: bool
    last_incarnation: int
    why: str = ""
    probe_at: str = ""


@dataclass(frozen=True)
class OrchestratorCrashed(Payload):
    """An incarnation of the node's orchestrator died."""

    type = "ORCHESTRATOR_CRASHED"
    incarnation: int
    why: str = ""


@dataclass(frozen=True)
class NeedsInput(Payload):
    """An agent asks a person."""

    type = "NEEDS_INPUT"
    question: str
    question_id: str


@dataclass(frozen=True)
class Escalation(Payload):
    """A name was parked; a probe is due at `probe_at` (UTC), if at all."""

    type = "ESCALATE"
    who: str
    why: str
    probe_at: str = ""


@dataclass(frozen=True)
class PipelineComplete(Payload):
    """The run is over: done or failed."""

    type = "PIPELINE_COMPLETE"
    status: str
    reason: str = ""


# ---- requests, downward ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputResponse(Payload):
    """A person's answer to an agent's question, or to a gate: then `question_id` is its place."""

    type = "INPUT_RESPONSE"
    question_id: str
    text: str


@dataclass(frozen=True)
class KillOrchestrator(Payload):
    """Kill this incarnation of the node's orchestrator; None: the one that lives."""

    type = "KILL_ORCHESTRATOR"
    incarnation: int | None = None


@dataclass(frozen=True)
class StopRun(Payload):
    """Stop the run gracefully."""

    action = "stop"


@dataclass(frozen=True)
class ResumeRun(Payload):
    """Resume the run; `retry_failed` also visits the node again at which it failed."""

    action = "resume"
    retry_failed: bool | None = None


@dataclass(frozen=True)
class ParkNode(Payload):
    """Park a node (or `processor`) until a person unparks it."""

    action = "park"
    who: str
    text: str = ""


@dataclass(frozen=True)
class UnparkNode(Payload):
    """Unpark a node (or `processor`); without `who`, the recipient's own child."""

    action = "unpark"
    who: str = ""


@dataclass(frozen=True)
class CancelNode(Payload):
    """End the node's work: it is not needed any more."""

    action = "cancel"
    text: str = ""


@dataclass(frozen=True)
class SendPipelineSignal(Payload):
    """A signal by name, for a gate of the pipeline."""

    action = "signal"
    name: str
    value: Any = True


@dataclass(frozen=True)
class SetBudget(Payload):
    """Allow the flow so many steps from the next resume on."""

    action = "budget"
    max_steps: int


def parse(signal: Signal) -> Payload | None:
    """Return what a signal says; None for a type without a payload of its own, and for unknown guidance."""
    return parse_payload(signal.signal_type, signal.payload)


def parse_payload(type_: str, data: Mapping[str, Any]) -> Payload | None:
    """As `parse`, of a signal's type and payload."""
    reader = _READERS.get(type_)
    return reader(data) if reader is not None else None


def _text(data: Mapping[str, Any], key: str, default: str = "") -> str:
    value = data.get(key)
    return default if value is None else str(value)


def _number(data: Mapping[str, Any], key: str) -> int:
    try:
        return int(data.get(key) or 0)
    except (TypeError, ValueError):
        return 0


def _stuck(data: Mapping[str, Any]) -> Payload:
    if "parked" not in data:
        return OrchestratorHung(_number(data, "incarnation"), _text(data, "why"), data.get("evidence"))
    return OrchestratorParked(_text(data, "node_id"), _text(data, "branch"), bool(data["parked"]),
                              _number(data, "life"), _text(data, "why"), _text(data, "probe_at"))


def _guidance(data: Mapping[str, Any]) -> Payload | None:
    action, who = data.get("action"), _text(data, "who")
    if action == "stop":
        return StopRun()
    if action == "resume":
        return ResumeRun(bool(data.get("again")) or None)
    if action == "park":
        return ParkNode(who, _text(data, "text"))
    if action == "unpark":
        return UnparkNode(who)
    if action == "cancel":
        return CancelNode(_text(data, "text"))
    if action == "signal" and data.get("name"):
        return SendPipelineSignal(str(data["name"]), data.get("value", True))
    if action == "budget" and isinstance(data.get("max_steps"), int):
        return SetBudget(data["max_steps"])
    return None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Payload | None]] = {
    "NODE_COMPLETE": lambda data: NodeComplete(_text(data, "node_id"), _text(data, "branch")),
    "MERGE_READY": lambda data: MergeReady(_text(data, "node_id"), _text(data, "branch")),
    "RUNNER_EXITED": lambda data: RunnerExited(
        _text(data, "node_id"), _text(data, "branch"), _text(data, "status"), _text(data, "kind"),
        _text(data, "reason", "no reason given"), _text(data, "rescue")),
    "ORCHESTRATOR_STUCK": _stuck,
    "ORCHESTRATOR_CRASHED": lambda data: OrchestratorCrashed(_number(data, "incarnation"), _text(data, "why")),
    "NEEDS_INPUT": lambda data: NeedsInput(_text(data, "question"), _text(data, "question_id")),
    "ESCALATE": lambda data: Escalation(_text(data, "who"), _text(data, "why"), _text(data, "probe_at")),
    "PIPELINE_COMPLETE": lambda data: PipelineComplete(_text(data, "status"), _text(data, "reason")),
    "INPUT_RESPONSE": lambda data: InputResponse(_text(data, "question_id"), _text(data, "text")),
    "KILL_ORCHESTRATOR": lambda data: KillOrchestrator(_number(data, "incarnation") or None),
    "GUIDANCE": _guidance,
}
"""Signal type → what reads its payload."""
