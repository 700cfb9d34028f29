"""Explain decisions: encode the inputs of a decision as JSON, and decide again from them. Pure.

Nothing is explained from memory. All inputs are journaled before the action, and `replay` passes them through the
functions that decided, so that an explanation that is not the reason shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.records.identity import Identity
from garrison.records.record import from_dict, to_dict
from garrison.supervise import decisions as steps
from garrison.supervise.circuit import CLOSED, Circuit
from garrison.supervise.decisions import ChildState, DecisionInputs, RestartDecision
from garrison.supervise.hang_detector import judge_recorded
from garrison.supervise.restart import Death, Policy
from garrison.supervise.verdict import Observation, Verdict, judge

if TYPE_CHECKING:
    from typing import Any

_SLIM = frozenset({"session_id", "parent", "worktree", "branch", "tmux", "respawns", "predecessor_id", "agent_id"})
"""Fields of an identity that no supervisor decides on."""


@dataclass(frozen=True)
class Replay:
    """A decision made again from what was journaled."""

    verdict: Verdict | None
    step: RestartDecision | None
    same: bool
    """True if verdict and decision are the same as then."""


def encode_inputs(basis: DecisionInputs) -> dict[str, Any]:
    """Return the inputs of a decision as JSON values."""
    identity, verdict, seen = basis.view.identity, basis.view.verdict, basis.view.seen
    return {
        "rule": basis.rule, "now": basis.now, "boot_id": basis.boot_id,
        "deaths": [_bare(death) for death in basis.deaths],
        **({"policy": _bare(basis.policy)} if basis.policy is not None else {}),
        **({"circuit": _bare(basis.circuit)} if basis.circuit != CLOSED else {}),
        **({"identity": _slim(identity)} if identity is not None else {}),
        **({"verdict": _bare(verdict)} if verdict is not None else {}),
        **({"seen": _bare(seen)} if seen is not None else {}),
        **({"evidence": basis.view.evidence} if basis.view.hung else {}),
    }


def decode_inputs(data: dict[str, Any]) -> DecisionInputs:
    """Return the decoded inputs of a decision; RecordCorrupt if they are malformed or have fields of a newer
    garrison.
    """
    def read(kind: type[Any], name: str) -> Any:
        return from_dict(kind, data[name], "a journaled decision") if name in data else None

    deaths = [from_dict(Death, one, "a journaled decision") for one in data.get("deaths", [])]
    identity = from_dict(Identity, {"agent_id": "", **data["identity"]}, "a journaled decision") \
        if "identity" in data else None
    view = ChildState(identity, read(Verdict, "verdict"), read(Observation, "seen"), data.get("evidence"))
    return DecisionInputs(data["rule"], view, deaths, data.get("now", 0.0), data.get("boot_id", ""),
                          read(Policy, "policy"),
                 read(Circuit, "circuit") or CLOSED)


def replay(basis: DecisionInputs, kind: str) -> Replay:
    """Judge and decide again; `kind` is what was done then."""
    view = basis.view
    verdict = judge(view.identity, view.seen) if view.identity is not None and view.seen is not None else view.verdict
    if view.evidence is not None and (hang := judge_recorded(view.evidence)) is not None:
        verdict = Verdict("hung", hang.why)
    if basis.rule == "burial":
        step = steps.decide_cleanup(view, basis.deaths)
    else:
        step = steps.decide_restart(view, basis.deaths, basis.now, basis.boot_id, basis.policy or Policy(),
                               basis.circuit)
    # What a layer adds on top: a start after an orderly end (lifted), a park when all is used up, an early probe.
    added = (("ended", "start"), ("give_up", "park"), ("parked", "probe"))
    same = step is not None and (step.kind == kind or (step.kind, kind) in added)
    # Only the verdict's state: a layer that ended in order without its work done is counted as one that died.
    return Replay(verdict, step, same and (verdict and verdict.state) == (view.verdict and view.verdict.state))


def _bare(value: Any) -> dict[str, Any]:
    body = to_dict(value)
    del body["schema"]
    return body


def _slim(identity: Identity) -> dict[str, Any]:
    return {name: value for name, value in _bare(identity).items() if name not in _SLIM and value is not None}
