"""An agent learns of the run so far only what is upstream of it."""

from __future__ import annotations

from typing import Any

from garrison.pipeline import run
from garrison.pipeline.fidelity import carryover_of
from garrison.pipeline.flow import Finished, advance, start
from garrison.pipeline.flow.program import compile_graph
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.parser import parse

ENDS = "start [shape=Mdiamond]; exit [shape=Msquare];"


def preambles(body: str, *finished: tuple[str, dict[str, Any]], flow: str = "walk") -> dict[str, str]:
    """Return the preamble of each node in flight after these nodes have finished with these context updates."""
    program = compile_graph(parse(f"digraph {{ {ENDS} {body} }}"), flow=flow)
    state, _ = start(program)
    for node, updates in finished:
        place = next(place for place in state.in_flight.values() if place.node == node)
        failed = "failure" in updates
        outcome = Outcome("fail" if failed else "success", context_updates=updates,
                          failure_reason=updates["failure"] if failed else "")
        advance(program, state, Finished(place.id, outcome, place.attempt))
    return {place.node: carryover_of(program, state, place, "r").preamble for place in state.in_flight.values()}


def test_an_agent_of_a_dag_learns_of_the_nodes_that_lead_to_it_alone() -> None:
    body = "a; b; c; d; start -> a -> c -> exit; start -> b -> d -> exit"
    found = preambles(body, ("a", {"of.a": 1}), ("b", {"of.b": 2}), flow="dag")
    assert "a: success" in found["c"] and "of.a: 1" in found["c"]
    assert "b: success" not in found["c"] and "of.b" not in found["c"]
    assert "b: success" in found["d"] and "of.a" not in found["d"]
    body = "a; b; c; start -> a -> c -> exit; start -> b -> exit"
    assert "shared: 1" in preambles(body, ("a", {"shared": 1}), flow="dag")["c"]
    assert "shared" not in preambles(body, ("a", {"shared": 1}), ("b", {"shared": 2}), flow="dag")["c"]
    body = "a; b [on_error=continue]; c; d; start -> a -> c -> exit; start -> b -> d -> exit"
    found = preambles(body, ("a", {}), ("b", {"failure": "no disk"}), flow="dag")
    assert "no disk" not in found["c"] and "no disk" in found["d"]


def test_a_branch_of_a_parallel_learns_nothing_of_the_others() -> None:
    body = """before; fan [shape=component]; l1; l2; r1; r2; join [shape=tripleoctagon]; after
              start -> before -> fan; fan -> l1 -> l2 -> join; fan -> r1 -> r2 -> join; join -> after -> exit"""
    found = preambles(body, ("before", {}), ("l1", {}), ("r1", {}))
    assert "before: success" in found["l2"] and "l1: success" in found["l2"] and "r1" not in found["l2"]
    assert "r1: success" in found["r2"] and "l1" not in found["r2"]
    joined = preambles(body, ("before", {}), ("l1", {}), ("r1", {}), ("l2", {}), ("r2", {}))
    assert all(f"{name}: success" in joined["after"] for name in ("before", "l1", "l2", "r1", "r2"))


def test_an_agent_of_the_library_learns_of_the_same_nodes() -> None:
    prompts: dict[str, str] = {}

    def agent(call: Any) -> str:
        prompts[call.node.id] = call.text
        return "done"

    run(f"digraph {{ flow=dag; {ENDS} a; b; c; start -> a -> c -> exit; start -> b -> exit }}", agent=agent)
    assert "- a: success" in prompts["c"] and "- b: " not in prompts["c"]
