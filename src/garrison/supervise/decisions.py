"""Restart decisions: decide what a supervisor does next about one process it is responsible for. Pure.

Launcher, guardian and runner share `decide_restart` (for a process that must live) and `decide_cleanup` (for one that
needs no successor). Every decision carries all its inputs; they are journaled before the action (`encode_inputs`). So
`garrison why` needs no memory: `replay` passes the journaled inputs through the same functions, which exposes an
explanation that was not the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from garrison.records.events import Follows
from garrison.records.identity import Identity
from garrison.records.record import Record, from_dict, stated
from garrison.supervise import restart
from garrison.supervise.hang_detector import RecordedEvidence, judge_recorded
from garrison.supervise.restart import CLOSED, Circuit, Death, Policy
from garrison.supervise.verdict import Observation, Verdict, judge
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

START_RECHECK = 0.5
"""Seconds between two observations of a child that is starting. Time alone changes its verdict (the spawner's time is
up, the deadline passes), and its record does not name a process yet that the kernel could report on."""


class ChildState(Value):
    """A supervised process as it is now; identity and verdict are None if it was never started."""

    identity: Identity | None = None
    verdict: Verdict | None = None
    observation: Observation | None = None
    """The observation behind the verdict."""
    evidence: RecordedEvidence | None = None
    """Evidence for the verdict `hung` or against it; None while every heartbeat was in time."""

    @property
    def living(self) -> bool:
        return self.verdict is not None and self.verdict.living

    @property
    def hung(self) -> bool:
        return self.verdict is not None and self.verdict.state == "hung"

    @property
    def leaving(self) -> bool:
        return self.observation is not None and self.observation.leaving is not None

    @property
    def attempt(self) -> int:
        """Return the attempt that the incarnation belongs to, 0 without one."""
        return self.identity.attempt if self.identity is not None else 0

    def counted_as_crashed(self) -> ChildState:
        """Return it with a graceful end counted as a crash: nothing had asked the incarnation to end."""
        if self.identity is None or self.identity.status != "terminated":
            return self
        return replace(self, identity=replace(self.identity, status="crashed"))

    def precedes(self, attempt: int) -> bool:
        return self.identity is not None and self.attempt < attempt


class DecisionInputs(Value):
    """All inputs of a decision, from which it can be repeated (`replay`)."""

    rule: str
    """`next_step` (`decide_restart`) or `burial` (`decide_cleanup`): their names on disk."""
    child: ChildState
    deaths: Sequence[Death] = ()
    now: float = 0.0
    boot_id: str = ""
    policy: Policy | None = None
    circuit: Circuit = CLOSED


@dataclass(frozen=True)
class RestartDecision:
    """A decision about one process, with its reason and inputs.

    `kind` is start, none (alive; observe it again `at` while it starts), replace (dead or hung), record (its death is
    not journaled yet), wait (until `at`, monotonic), park (its window is used up), give_up (its attempt's total is used
    up), parked (its probe is due `at`), probe (due now: start one incarnation), heal (the probe stayed healthy) or
    ended (terminated: nothing follows here).
    """

    kind: str
    why: str = ""
    at: float = 0.0
    basis: DecisionInputs | None = field(default=None, compare=False)


# ---- a process that must live ----------------------------------------------------------------------------------------


def decide_restart(child: ChildState, deaths: Sequence[Death], now: float, boot_id: str, policy: Policy,
                   circuit: Circuit = CLOSED) -> RestartDecision:
    """Decide what follows for one name.

    Args:
        deaths: the journaled deaths of this name in this attempt.
        now: monotonic seconds.
    """
    return replace(_decide(child, deaths, now, boot_id, policy, circuit),
                   basis=DecisionInputs("next_step", child, deaths, now, boot_id, policy, circuit))


def describe_graceful_end(reason: str) -> str:
    """Describe the graceful end of a predecessor in the reason of a start."""
    return f"it had ended gracefully ({reason})"


def what_it_follows(previous: ChildState, attempt: int, incarnation: int) -> Follows:
    """Return what precedes an incarnation that is started in `attempt` after the last one of its name."""
    if previous.identity is None:
        return Follows.NOTHING if incarnation == 1 else Follows.DEATH
    if previous.identity.status == "terminated":
        return Follows.LAST_ATTEMPT if previous.precedes(attempt) else Follows.END
    return Follows.NOTHING if previous.precedes(attempt) else Follows.DEATH


def _decide(child: ChildState, deaths: Sequence[Death], now: float, boot_id: str, policy: Policy,
            circuit: Circuit) -> RestartDecision:
    identity, verdict = child.identity, child.verdict
    if identity is None or verdict is None:
        return RestartDecision("start", "first start")
    if verdict.living:
        return _decide_alive(verdict, identity.incarnation, now, boot_id, policy, circuit)
    if verdict.needs_replacement:
        return RestartDecision("replace", verdict.why)
    if circuit.parked and identity.status in ("crashed", "parked"):
        return _decide_lost_probe(identity, deaths, circuit) or _decide_parked(now, boot_id, policy, circuit)
    if identity.status == "parked":  # its supervisor died before it journaled the park, or it was unparked since
        if circuit.forgiven >= identity.incarnation:
            return RestartDecision("start", "no longer parked")
        return RestartDecision("park", identity.reason)
    if identity.status != "crashed":
        return RestartDecision("ended", identity.reason or identity.status)
    # Before any start: otherwise the death would be missing from the window if the supervisor died between the two.
    if _journaled_death(identity, deaths) is None:
        return RestartDecision("record", identity.reason)
    outcome = restart.apply_policy(deaths, now, boot_id, policy, circuit, identity.key.full)
    if outcome.at is None:
        return RestartDecision("ended" if outcome.kind == "rest" else outcome.kind, outcome.why)
    return RestartDecision("start" if outcome.at <= now else "wait", outcome.why, outcome.at)


def _journaled_death(identity: Identity, deaths: Sequence[Death]) -> Death | None:
    return next((death for death in deaths if death.incarnation == identity.incarnation), None)


def _decide_lost_probe(identity: Identity, deaths: Sequence[Death], circuit: Circuit) -> RestartDecision | None:
    """Decide about a dead probe whose start is not in the journal, since its supervisor died: it has failed."""
    if not 0 < circuit.incarnation < identity.incarnation:
        return None
    if identity.status == "parked":
        return RestartDecision("park", identity.reason)
    death = _journaled_death(identity, deaths)
    if death is None:
        return RestartDecision("record", identity.reason)
    if not death.counts:
        return None
    return RestartDecision("park", restart.describe_failed_probe(death.incarnation, deaths))


def _decide_parked(now: float, boot_id: str, policy: Policy, circuit: Circuit) -> RestartDecision:
    at = policy.probe_due(circuit, boot_id)
    why = f"half-open probe after {policy.cool_down(circuit.parks):g} s; it was parked: {circuit.why}"
    return RestartDecision("probe", why, at) if at <= now else RestartDecision("parked", circuit.why, at)


def _decide_alive(verdict: Verdict, incarnation: int, now: float, boot_id: str, policy: Policy,
                  circuit: Circuit) -> RestartDecision:
    """Leave a living process alone; a probe that stayed healthy closes its circuit."""
    if verdict.state == "starting":
        return RestartDecision("none", verdict.why, now + START_RECHECK)
    if circuit.state != "probing" or incarnation < circuit.probe:
        return RestartDecision("none", verdict.why)
    at = policy.healthy_at(circuit) if circuit.boot_id == boot_id else now
    if at <= now:
        return RestartDecision("heal", f"its probe (incarnation {circuit.probe}) was healthy for {policy.healthy:g} s")
    return RestartDecision("none", verdict.why, at)


# ---- a process that needs no successor -------------------------------------------------------------------------------


def decide_cleanup(child: ChildState, deaths: Sequence[Death]) -> RestartDecision | None:
    """Decide what remains to do about a process that needs no successor.

    A dead one is replaced (its tools may still run and write), then its death is recorded. None if it is alive, ended
    gracefully, or its death is recorded already.
    """
    identity, verdict, basis = child.identity, child.verdict, DecisionInputs("burial", child, deaths)
    if identity is None or verdict is None:
        return None
    if verdict.needs_replacement:
        return RestartDecision("replace", verdict.why, basis=basis)
    if identity.status == "crashed" and _journaled_death(identity, deaths) is None:
        return RestartDecision("record", identity.reason, basis=basis)
    return None


# ---- replay ----------------------------------------------------------------------------------------------------------

_IRRELEVANT = frozenset({"session_id", "parent", "worktree", "branch", "tmux", "respawns", "predecessor_id",
                         "agent_id"})
"""Fields of an identity that decisions do not use; they are not journaled with a decision."""

_OVERRULES = frozenset({("ended", "start"), ("give_up", "park"), ("parked", "probe")})
"""(decision, action): restart of a stopped name on resume, park of one whose attempt is used up, early probe."""

_SOURCE = "a journaled decision"


class Replay(Value):
    """A decision repeated from its journaled inputs."""

    verdict: Verdict | None
    decision: RestartDecision | None
    same: bool
    """True if verdict and decision are the same as before."""


def replay(inputs: DecisionInputs, action: str) -> Replay:
    """Judge and decide again; `action` is what was done then."""
    child, verdict = inputs.child, inputs.child.verdict
    if child.identity is not None and child.observation is not None:
        verdict = judge(child.identity, child.observation)
    if child.evidence is not None and (hang := judge_recorded(child.evidence)) is not None:
        verdict = Verdict("hung", hang.why)
    if inputs.rule == "burial":
        decision = decide_cleanup(child, inputs.deaths)
    else:
        decision = decide_restart(child, inputs.deaths, inputs.now, inputs.boot_id, inputs.policy or Policy(),
                                  inputs.circuit)
    same = decision is not None and (decision.kind == action or (decision.kind, action) in _OVERRULES)
    # Only the state of the verdict: a graceful end with work left counts as a death.
    return Replay(verdict, decision, same and (verdict and verdict.state) == (child.verdict and child.verdict.state))


class RecordedInputs(Record):
    """Inputs of a decision in the journal, without the fields of the child's identity that decisions do not use."""

    rule: str
    now: float = stated(0.0)
    boot_id: str = stated("")
    deaths: Sequence[Death] = stated([])
    policy: Policy | None = None
    circuit: Circuit | None = None
    identity: dict[str, object] | None = None
    verdict: Verdict | None = None
    observation: Observation | None = msgspec.field(default=None, name="seen")
    evidence: RecordedEvidence | None = None


def encode_inputs(inputs: DecisionInputs) -> dict[str, object]:
    """Return the inputs of a decision as JSON values."""
    child = inputs.child
    identity = None if child.identity is None else {
        name: value for name, value in asdict(child.identity).items() if name not in _IRRELEVANT and value is not None}
    return asdict(RecordedInputs(
        inputs.rule, inputs.now, inputs.boot_id, inputs.deaths, inputs.policy,
        inputs.circuit if inputs.circuit != CLOSED else None, identity, child.verdict, child.observation,
        child.evidence if child.hung else None))


def decode_inputs(data: Mapping[str, object]) -> DecisionInputs:
    """Return the decoded inputs of a decision; RecordCorrupt if they are malformed or of a newer garrison."""
    recorded = from_dict(RecordedInputs, data, _SOURCE)
    body = recorded.identity
    identity = None if body is None else from_dict(Identity, {"agent_id": "", **body}, _SOURCE)
    child = ChildState(identity, recorded.verdict, recorded.observation, recorded.evidence)
    return DecisionInputs(recorded.rule, child, recorded.deaths, recorded.now, recorded.boot_id, recorded.policy,
                          recorded.circuit or CLOSED)
