"""What a layer's policy says to do: acts, and when to look again. Shapes only, shared by all policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from garrison.records.signals import PostedSignal
    from garrison.supervise.decisions import DecisionInputs


@dataclass(frozen=True)
class Action:
    """One thing to do; `kind` says what, the rest what it needs.

    take, refuse (posted) · node, flow, gate (data) · cancel (who = node) · start, probe, heal, replace, record, park,
    term (who = node or 'processor') · stray (who = node, its orchestrator) · run (who = status) · end
    """

    kind: str
    who: str = ""
    why: str = ""
    posted: PostedSignal | None = None
    data: dict[str, Any] = field(default_factory=dict)
    basis: DecisionInputs | None = field(default=None, compare=False)
    """What a life's start or end was decided on; it is journaled before the act."""


@dataclass(frozen=True)
class Decision:
    """What to do now, and when to look again at the latest (monotonic seconds; None: at the next event or timer)."""

    acts: list[Action]
    wake_at: float | None = None


@dataclass(frozen=True)
class MergeStatus:
    """Status of a node's entry in the merge queue, and the attempt that it was enqueued for."""

    attempt: int
    status: str
    reason: str = ""
    commit: str = ""
