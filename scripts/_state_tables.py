"""State tables of docs/generated/states.md: each is made from the code that it describes.

Lifecycles are printed from their transition tables. Where the code decides by a function, the rows are situations and
the result is what that function returns for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from garrison.values import replace
from garrison.merge import entry as merge_entry
from garrison.merge.decision import check_base
from garrison.merge.decision import Beliefs, FinishedRun, RunningSet, WaitingTree, decide
from garrison.merge.verdicts import BROKEN, DESCRIPTIONS, BaseRun, TreeEvidence, Result
from garrison.pipeline import node_status
from garrison.records import hook, identity
from garrison.records.events import ChildParked, ChildSpawned, ChildHealed
from garrison.supervise.restart import CLOSED, apply_event, reset_circuit
from garrison.supervise.decisions import ChildState, decide_cleanup, decide_restart
from garrison.supervise.death_classes import CLASSES, CRASH
from garrison.supervise.restart import Death, Policy
from garrison.supervise.verdict import Observation, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from garrison.merge.decision import QueueDecision
    from garrison.supervise.restart import Circuit

NOW, BOOT, TICKS = 10_000.0, "boot", 7
TIME = "2026-01-01T00:00:00.000000Z"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _codes(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words) or "nothing: it is final"


def _lifecycle(name: str, transitions: Mapping[str, frozenset[str]]) -> str:
    order = list(transitions)
    return _table([name, "may become"], [
        [f"`{state}`", _codes(sorted(following - {state}, key=order.index))]
        for state, following in transitions.items()])


# ---------------------------------------------------------------------------------------------------------- processes

CHILD = identity.Identity("id", "runner", "work", "demo-1", TIME, pid=42, start_ticks=TICKS, boot_id=BOOT, host="here",
                          last_heartbeat=TIME)
OBSERVED = Observation("here", BOOT, "", pid_ticks=TICKS)


def verdicts() -> str:
    """Return the table of verdicts on one incarnation."""
    starting = replace(CHILD, status="starting")
    elsewhere = replace(OBSERVED, host="another")
    judged = [
        ("its process runs, start time as recorded", judge(CHILD, OBSERVED)),
        ("no process has that pid", judge(CHILD, replace(OBSERVED, pid_ticks=None))),
        ("another process has that pid", judge(CHILD, replace(OBSERVED, pid_ticks=TICKS + 1))),
        ("the machine was booted since", judge(replace(CHILD, boot_id="earlier"), OBSERVED)),
        ("another host or pid namespace, its life lock is held", judge(CHILD, replace(elsewhere, life_held=True))),
        ("another host or pid namespace, its life lock is free", judge(CHILD, elsewhere)),
        ("it is being started, within its deadline", judge(starting, replace(OBSERVED, marker_borne=True))),
        ("it is being started, past its deadline", judge(starting, replace(OBSERVED, deadline_passed=True))),
        ("it runs, and all evidence is too old (`supervise/hang_detector.py`)", Verdict("hung", "")),
        ("it announced its end long ago and still holds its life lock", judge(CHILD, replace(OBSERVED, leaving=60.0))),
        ("its record says `crashed`, `terminated` or `parked`", judge(replace(CHILD, status="crashed"), OBSERVED)),
    ]
    return _table(["observed", "verdict", "so its parent"], [
        [observed, f"`{verdict.state}`", "starts no successor" if verdict.living else
         "replaces it" if verdict.needs_replacement else "decides as below"] for observed, verdict in judged])


def deaths() -> str:
    """Return the table of the classes of deaths."""
    return _table(["class", "counts against the limits", "what follows"], [
        [f"`{name}`", "yes" if ruling.counts else "no", ruling.follows] for name, ruling in CLASSES.items()])


def restarts() -> str:
    """Return the table of restart decisions."""
    policy = Policy(total=10)
    crashed = replace(CHILD, status="crashed", incarnation=9)

    def deaths_before(count: int, age: float, step: float = 1.0) -> list[Death]:
        return [Death(9 - number, NOW - age - number * step, BOOT, kind=CRASH) for number in range(count)]

    def decide(child: identity.Identity | None, observed: Observation | None, past: Sequence[Death] = (),
               circuit: Circuit = CLOSED) -> str:
        verdict = judge(child, observed) if child and observed else None
        return decide_restart(ChildState(child, verdict, observed), past, NOW, BOOT, policy, circuit).kind

    gone = replace(OBSERVED, pid_ticks=None)
    parked = apply_event(CLOSED, ChildParked("x", 9, "", NOW - 1.0, BOOT))
    parked_long_ago = apply_event(CLOSED, ChildParked("x", 9, "", NOW - policy.probe_after, BOOT))
    probing = apply_event(parked, ChildSpawned("x", 9, probe=True, monotonic=NOW - 1.0, boot_id=BOOT))
    healthy = apply_event(parked, ChildSpawned("x", 9, probe=True, monotonic=NOW - policy.healthy, boot_id=BOOT))
    alive = replace(CHILD, incarnation=9)
    rows = [
        ("it was never started", decide(None, None)),
        ("it is alive", decide(CHILD, OBSERVED)),
        ("it is dead, hung or lingering, or its start failed", decide(CHILD, gone)),
        ("it is replaced, its death is not in the journal", decide(crashed, gone)),
        ("first death", decide(crashed, gone, deaths_before(1, 0.0))),
        ("another death soon after, its delay not over", decide(crashed, gone, deaths_before(2, 0.0))),
        (f"more than {policy.intensity} deaths in {policy.window:g} s", decide(crashed, gone, deaths_before(6, 0.0))),
        ("more than `--max-respawn` deaths in this attempt", decide(crashed, gone, deaths_before(11, 0.0, 1000.0))),
        ("parked, cool-down not over", decide(crashed, gone, deaths_before(6, 1.0), parked)),
        ("parked, cool-down over", decide(crashed, gone, deaths_before(6, policy.probe_after), parked_long_ago)),
        ("its probe died early", decide(crashed, gone, deaths_before(1, 0.0), probing)),
        (f"its probe is alive after {policy.healthy:g} s", decide(alive, OBSERVED, (), healthy)),
        ("it ended gracefully", decide(replace(crashed, status="terminated"), gone)),
    ]
    dead = ChildState(CHILD, judge(CHILD, gone), gone)
    recorded = ChildState(crashed, judge(crashed, gone), gone)
    for situation, view in (("no successor is wanted, and it is dead", dead),
                            ("no successor is wanted, its death is not in the journal", recorded)):
        decision = decide_cleanup(view, ())
        rows.append((situation, decision.kind if decision else "none"))
    return _table(["situation", "decision"], [[situation, f"`{kind}`"] for situation, kind in rows])


def circuit() -> str:
    """Return the table of the circuit breaker."""
    closed = CLOSED
    parked = apply_event(closed, ChildParked("x", 1))
    probing = apply_event(parked, ChildSpawned("x", 2, probe=True))
    states = (closed, parked, probing)
    events: list[tuple[str, Callable[[Circuit], Circuit]]] = [
        ("`park` record", lambda state: apply_event(state, ChildParked("x", 2))),
        ("`spawn` record of a probe", lambda state: apply_event(state, ChildSpawned("x", 2, probe=True))),
        ("`heal` record", lambda state: apply_event(state, ChildHealed("x", 2))),
        ("the user's `unpark`, or `--resume`", lambda state: reset_circuit(state, 2)),
    ]
    return _table(["", *(f"`{state.state}`" for state in states)], [
        [name, *(f"`{event(state).state}`" for state in states)] for name, event in events])


# ------------------------------------------------------------------------------------------------------- merge queue


def gate_results() -> str:
    """Return the table of the results of a gate run."""
    return _table(["result", "meaning", "may be the gate's own fault"], [
        [f"`{result}`", DESCRIPTIONS.get(result, "the gate passed").format(command="", code="N", timeout=1800.0),
         "yes" if result in BROKEN else "no"] for result in get_args(Result)])


def base_checks() -> str:
    """Return the table of what the queue does about the bare target once a run was not green."""
    passed, broken = BaseRun("green", 9, 0), BaseRun("missing", 9, 1)
    cases = [
        ("its tree has passed, and the run is plainly red", TreeEvidence(green=["tip"]), "red"),
        ("its tree has not passed yet", TreeEvidence(), "red"),
        ("its tree has passed, the result may be the gate's own fault", TreeEvidence(green=["tip"], broken=5),
         "missing"),
        ("it has passed since such a result", TreeEvidence(base=passed, broken=5), "missing"),
        ("it was red once", TreeEvidence(base=BaseRun("red", 9, 1)), "red"),
        ("it was red twice", TreeEvidence(base=BaseRun("red", 9, 2)), "red"),
        ("the gate cannot run on it, either", TreeEvidence(base=broken, broken=5), "missing"),
    ]
    does = {"passes": "decides as below", "test": "tests the bare target", "base_red": "pauses: `base_red`",
            "gate_broken": "pauses: `gate_broken`"}
    return _table(["known about the bare target", "the queue"], [
        [known, does[check_base("tip", [result], evidence)]] for known, evidence, result in cases])


def set_decisions() -> str:
    """Return the table of decisions on a queue of four entries, of which each is bad with a probability of a fifth."""
    waiting = [WaitingTree(name) for name in "abcd"]
    beliefs = Beliefs(dict.fromkeys("abcd", 0.2))

    def red(names: str, *, again: bool = False) -> FinishedRun:
        return FinishedRun(tuple(names), False, lands=True, is_own=len(names) == 1, convicts=again)

    passed, elsewhere = FinishedRun(("a", "b"), True, lands=True), FinishedRun(("a", "b"), True)
    under_test = [RunningSet(tuple("abc"))]
    cases: list[tuple[str, list[FinishedRun], list[RunningSet], int]] = [
        ("nothing", [], [], 1),
        ("nothing, two gates", [], [], 2),
        ("a, b and c are under test, two gates", [], under_test, 2),
        ("a and b passed on the tip", [passed], [], 1),
        ("a and b passed on an earlier tip", [elsewhere], [], 1),
        ("a, b and c are red together", [red("abc")], [], 1),
        ("a, b and c are red together, two gates", [red("abc")], [], 2),
        ("a and b are red together, which makes the run on all three useless", [red("ab")], under_test, 1),
        ("a is red alone", [red("a")], [], 1),
        ("a and b are red together, then a alone", [red("ab"), red("a")], [], 1),
        ("a and b are red together, b passed, then a is red alone", [red("ab"), FinishedRun(("b",), True),
                                                                    red("a", again=True)], [], 1),
        ("a is red alone twice", [red("a"), red("a", again=True)], [], 1),
    ]
    return _table(["known of a, b, c and d", "decision"], [
        [known, _describe(decide(waiting, beliefs, runs, running, gates))] for known, runs, running, gates in cases])


def _describe(decision: QueueDecision) -> str:
    cancelled = [f"ends the run on {', '.join(run.entries)}" for run in decision.cancel]
    if decision.land:
        return f"lands {', '.join(decision.land)}"
    if decision.reject:
        return f"rejects {decision.reject}"
    return "; ".join([*cancelled, *(f"tests {', '.join(start.entries)}" for start in decision.start)])


TABLES: Mapping[str, Callable[[], str]] = {
    "hook phases": lambda: _lifecycle("phase", hook.PHASES),
    "identity status": lambda: _lifecycle("status", identity.STATUSES),
    "node status": lambda: _lifecycle("status", node_status.TRANSITIONS),
    "verdicts": verdicts,
    "deaths": deaths,
    "restart decisions": restarts,
    "circuit": circuit,
    "merge entry status": lambda: _lifecycle("status", merge_entry.TRANSITIONS),
    "gate results": gate_results,
    "base checks": base_checks,
    "set decisions": set_decisions,
}
"""Name of a marker in the page → its table."""
