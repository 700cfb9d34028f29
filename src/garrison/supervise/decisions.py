"""Restart decisions: decide what a supervisor does next about one process it is responsible for. Pure.

Launcher, guardian and runner share it. Every decision carries its inputs, so that `garrison why` can decide it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from garrison.supervise import restart
from garrison.supervise.circuit import CLOSED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from garrison.records.identity import Identity
    from garrison.supervise.circuit import Circuit
    from garrison.supervise.restart import Death, Policy
    from garrison.supervise.verdict import Observation, Verdict


@dataclass(frozen=True)
class ChildState:
    """A supervised process as observed now; identity and verdict are None if it was never started."""

    identity: Identity | None = None
    verdict: Verdict | None = None
    seen: Observation | None = None
    """The observation that the verdict was reached on."""
    evidence: dict[str, Any] | None = None
    """Evidence for the verdict `hung` or against it (`encode_evidence`); None while every heartbeat was in time."""

    @property
    def living(self) -> bool:
        """Return whether an incarnation is, or may still be, alive."""
        return self.verdict is not None and self.verdict.living

    @property
    def hung(self) -> bool:
        """Return whether an incarnation is alive but does nothing."""
        return self.verdict is not None and self.verdict.state == "hung"

    @property
    def leaving(self) -> bool:
        """Return whether an incarnation that announced its end still holds its lock."""
        return self.seen is not None and self.seen.leaving is not None

    def precedes(self, attempt: int) -> bool:
        """Return whether the incarnation belongs to an attempt before `attempt`."""
        return self.identity is not None and int(self.identity.metadata.get("attempt", 1)) < attempt


@dataclass(frozen=True)
class DecisionInputs:
    """All inputs of a decision; with them it can be made again (`supervise.explain`)."""

    rule: str
    """Name of the rule on disk: `decide_restart` (decide_restart) or `decide_cleanup` (decide_cleanup)."""
    view: ChildState
    deaths: Sequence[Death] = ()
    now: float = 0.0
    boot_id: str = ""
    policy: Policy | None = None
    circuit: Circuit = CLOSED


@dataclass(frozen=True)
class RestartDecision:
    """A decision about one process, with its reason and inputs.

    `kind` is start, none (alive), replace (dead or hung), record (its death is not journaled yet), wait (until `at`,
    monotonic), park (its window is used up), give_up (its attempt's total is used up), parked (its probe is due `at`),
    probe (it is due now: start one incarnation), heal (the probe stayed healthy) or ended (terminated: not acted on
    here).
    """

    kind: str
    why: str = ""
    at: float = 0.0
    basis: DecisionInputs | None = field(default=None, compare=False)


def decide_restart(view: ChildState, deaths: Sequence[Death], now: float, boot_id: str, policy: Policy,
              circuit: Circuit = CLOSED) -> RestartDecision:
    """Decide what follows for one name.

    Args:
        deaths: the journaled deaths of this name in this attempt.
        now: monotonic seconds.
    """
    return replace(_next(view, deaths, now, boot_id, policy, circuit),
                   basis=DecisionInputs("next_step", view, deaths, now, boot_id, policy, circuit))


def _next(view: ChildState, deaths: Sequence[Death], now: float, boot_id: str, policy: Policy,
          circuit: Circuit) -> RestartDecision:
    identity, verdict = view.identity, view.verdict
    if identity is None or verdict is None:
        return RestartDecision("start", "no life yet")
    if verdict.living:
        return _alive(verdict, identity.incarnation, now, boot_id, policy, circuit)
    if verdict.needs_replacement:
        return RestartDecision("replace", verdict.why)
    if circuit.parked and identity.status in ("crashed", "parked"):
        return _forgotten_probe(identity, deaths, circuit) or _parked(now, boot_id, policy, circuit)
    if identity.status == "parked":  # its park was not journaled before its supervisor died; or it was lifted since
        if circuit.forgiven >= identity.incarnation:
            return RestartDecision("start", "no longer parked")
        return RestartDecision("park", identity.reason)
    if identity.status != "crashed":
        return RestartDecision("ended", identity.reason or identity.status)
    if _death_of(identity, deaths) is None:
        return RestartDecision("record", identity.reason)
    return _after_death(restart.apply_policy(deaths, now, boot_id, policy, circuit, identity.key.full), now)


def _death_of(identity: Identity, deaths: Sequence[Death]) -> Death | None:
    """Return the journaled death of the last incarnation."""
    return next((death for death in deaths if death.incarnation == identity.incarnation), None)


def _forgotten_probe(identity: Identity, deaths: Sequence[Death], circuit: Circuit) -> RestartDecision | None:
    """Handle a probe that died and whose start the journal lost with its supervisor: it failed all the same."""
    if not 0 < circuit.life < identity.incarnation:
        return None
    if identity.status == "parked":
        return RestartDecision("park", identity.reason)
    death = _death_of(identity, deaths)
    if death is None:
        return RestartDecision("record", identity.reason)
    if not death.counts:
        return None
    return RestartDecision("park", restart.describe_failed_probe(death.incarnation, deaths))


def _parked(now: float, boot_id: str, policy: Policy, circuit: Circuit) -> RestartDecision:
    at = policy.probe_due(circuit, boot_id)
    why = f"half-open probe after {policy.cool_down(circuit.parks):g} s; it was parked: {circuit.why}"
    return RestartDecision("probe", why, at) if at <= now else RestartDecision("parked", circuit.why, at)


def _alive(verdict: Verdict, incarnation: int, now: float, boot_id: str, policy: Policy,
           circuit: Circuit) -> RestartDecision:
    """Leave a living process alone, except that a probe which stayed healthy closes its circuit."""
    if circuit.state != "probing" or incarnation < circuit.probe:
        return RestartDecision("none", verdict.why)
    at = policy.healthy_at(circuit) if circuit.boot_id == boot_id else now
    if at <= now:
        return RestartDecision("heal", f"its probe (life {circuit.probe}) was healthy for {policy.healthy:g} s")
    return RestartDecision("none", verdict.why, at)


def _after_death(decision: restart.PolicyOutcome, now: float) -> RestartDecision:
    if decision.at is None:
        return RestartDecision("ended" if decision.kind == "rest" else decision.kind, decision.why)
    return RestartDecision("start" if decision.at <= now else "wait", decision.why, decision.at)


def decide_cleanup(view: ChildState, deaths: Sequence[Death]) -> RestartDecision | None:
    """Decide what remains to do about a process that needs no successor.

    A dead one is replaced (its tools may live on and write), then its death is recorded. None if it is alive, ended
    gracefully, or its death is recorded already.
    """
    identity, verdict, basis = view.identity, view.verdict, DecisionInputs("burial", view, deaths)
    if identity is None or verdict is None:
        return None
    if verdict.needs_replacement:
        return RestartDecision("replace", verdict.why, basis=basis)
    if identity.status == "crashed" and _death_of(identity, deaths) is None:
        return RestartDecision("record", identity.reason, basis=basis)
    return None
