"""Block of a prompt with the progress of the predecessor."""

from __future__ import annotations

from garrison.cli.hooks import HEADING, build_wisdom_prompt_block
from garrison.records import record
from garrison.records.hook import PHASES, Hook


def at(phase: str, **more: str) -> Hook:
    return Hook("h", "runner", "a", "r", "t", "t", phase=phase, **more)


def test_the_block_has_all_known_progress() -> None:
    block = build_wisdom_prompt_block(at("executing", last_committed_node="abc1234",
                                         resumption_instructions="half of it\nis done"))
    assert block.splitlines() == [
        HEADING, "Previous phase reached: executing", "Last committed node: abc1234",
        "SKIP planning phase — go directly to executing", "Resumption notes: half of it", "is done"]
    assert "RESUMPTION CONTEXT" in HEADING


def test_the_block_names_phases_to_skip_for_a_hook_and_its_json() -> None:
    for phase in PHASES:
        hook = at(phase)
        block = build_wisdom_prompt_block(hook)
        assert (f"SKIP planning phase — go directly to {phase}" in block) == (phase in ("executing", "impl_complete",
                                                                                        "validating"))
        assert ("nothing is left to do" in block) == (phase == "merged")
        assert "Last committed" not in block and "notes" not in block
        hook = at(phase, last_committed_node="c", resumption_instructions="n")
        assert build_wisdom_prompt_block(record.to_dict(hook)) == build_wisdom_prompt_block(hook)
    assert build_wisdom_prompt_block({}) == build_wisdom_prompt_block(at("planning"))
