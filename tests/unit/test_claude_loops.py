"""Loop detector: which calls go round, and when a session is idle; what is shown of trouble."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.agents.claude import failures, policy
from garrison.agents.claude.loop_detector import LoopDetector
from garrison.agents.claude.policy import Ending, Prompt, Step
from garrison.agents.claude.trouble import summarize


def calls(detector: LoopDetector, *made: tuple[str, str]) -> list[str]:
    """What the detector says after each call, given as command and result."""
    said = []
    for number, (command, result) in enumerate(made):
        event: dict[str, Any] = {"kind": "tool", "id": str(number), "name": "Bash", "input": {"command": command}}
        assert detector.observe(event) == ""
        said.append(detector.observe({"kind": "tool_result", "id": str(number), "text": result, "error": False}))
    return said


@pytest.mark.parametrize(("made", "found"), [
    ([("ls", "a")] * 4, "it made the same call 4 times in a row with the same result: Bash ls"),
    ([("ls", "a")] * 3, ""),
    ([("ls", "a"), ("pwd", "b")] * 4, "it made the same 2 calls 4 times in a row with the same result: Bash pwd"),
    ([("ls", str(number)) for number in range(9)], ""),
    ([pair for number in range(9) for pair in ((f"sed {number}", ""), ("pytest", "red"))], "")])
def test_calls_that_go_round(made: list[tuple[str, str]], found: str) -> None:
    assert calls(LoopDetector(4, None, lambda: 0), *made)[-1] == found


def test_switched_off_it_still_counts() -> None:
    detector = LoopDetector(None, None, lambda: 0)
    assert not any(calls(detector, *[("ls", "a")] * 50))
    assert detector.repeated == 50


def test_responses_without_any_change() -> None:
    state = [0]
    detector = LoopDetector(None, 8, lambda: state[0])
    answer = {"kind": "usage", "final": True}
    assert not any(detector.observe(answer) for _ in range(7))
    state[0] = 1
    assert not any(detector.observe(answer) for _ in range(8))
    said = [detector.observe(answer) for _ in range(8)]
    assert "it made 8 responses without changing anything" in said


def test_it_is_told_once_and_then_failed() -> None:
    loop = Ending(failures.LOOP, 1.0, "it made the same call 4 times")
    assert policy.decide([loop]).prompt is Prompt.LOOP
    second = policy.decide([loop, Ending(policy.STOPPED, 2.0), loop])
    assert (second.step, second.success) == (Step.FINISH, False)
    assert second.reason == "loop: it made the same call 4 times, again after it was told"


def test_interruptions_have_a_bound_whatever_the_progress() -> None:
    hang = Ending(failures.HANG, 1.0, "nothing was received for 240 s", progress=True)
    assert policy.decide([hang] * 8).step is Step.WAIT
    assert policy.decide([hang] * 9).reason == "hang 9 times in one attempt: nothing was received for 240 s"
    assert summarize([hang] * 3) == "interrupted: nothing was received for 240 s (3 times of 8)"
    assert summarize([hang, Ending(policy.REPORTED, 2.0, "done", success=True)]) == ""
