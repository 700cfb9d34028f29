"""What a supervisor does next about one name it is responsible for. Pure; shared by launcher, guardian and runner."""

from __future__ import annotations

from garrison.light import dataclass
from garrison.supervise import restart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from garrison.records.identity import Identity
    from garrison.supervise.restart import Death, Policy
    from garrison.supervise.verdict import Verdict


@dataclass(frozen=True)
class LifeView:
    """One name as seen now; both None if it never lived."""

    identity: Identity | None = None
    verdict: Verdict | None = None
    evidence: dict[str, Any] | None = None
    """What the verdict `hung` rests on, or what spoke against it (`evidence.plain`); None where nothing was late."""

    @property
    def living(self) -> bool:
        """Whether a life is, or may still be, there."""
        return self.verdict is not None and self.verdict.living

    @property
    def hung(self) -> bool:
        """Whether a life is there that does nothing."""
        return self.verdict is not None and self.verdict.state == "hung"

    def precedes(self, attempt: int) -> bool:
        """Whether the life belongs to an attempt before `attempt`."""
        return self.identity is not None and int(self.identity.metadata.get("attempt", 1)) < attempt


@dataclass(frozen=True)
class Step:
    """`kind`: start, none (living), replace (dead or hung), record (its death is not journaled yet), wait (until `at`,
    monotonic), park (give up), ended (terminated or parked: not acted on here)."""

    kind: str
    why: str = ""
    at: float = 0.0


def next_step(view: LifeView, deaths: Sequence[Death], now: float, boot_id: str, policy: Policy) -> Step:
    """The step for one name; `deaths` are the journaled ones of this name in this attempt."""
    identity, verdict = view.identity, view.verdict
    if identity is None or verdict is None:
        return Step("start", "no life yet")
    if verdict.living:
        return Step("none", verdict.why)
    if verdict.to_replace:
        return Step("replace", verdict.why)
    if identity.status != "crashed":
        return Step("ended", identity.reason or identity.status)
    if all(death.incarnation != identity.incarnation for death in deaths):
        return Step("record", identity.reason)
    decision = restart.decide(deaths, now, boot_id, policy)
    if decision.at is None:
        return Step("park", decision.why)
    return Step("start" if decision.at <= now else "wait", decision.why, decision.at)


def burial(view: LifeView, deaths: Sequence[Death]) -> Step | None:
    """What is due to a life that died though nobody needs a successor: its replacement (its tools may live on and
    write), then the record of its death; None if it lives, ended in order or is buried."""
    identity, verdict = view.identity, view.verdict
    if identity is None or verdict is None:
        return None
    if verdict.to_replace:
        return Step("replace", verdict.why)
    if identity.status == "crashed" and all(death.incarnation != identity.incarnation for death in deaths):
        return Step("record", identity.reason)
    return None
