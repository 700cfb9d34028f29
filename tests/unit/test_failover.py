"""Failover: which failures another agent takes over, which agent that is, and what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.agents import failover
from garrison.agents.conversation import policy
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.failover import choose_first, choose_next, find_trouble, gives_up, parse_failover
from garrison.agents.trouble import TroubleKind
from garrison.ends import End
from garrison.errors import UsageError
from garrison.records.failover import (
    Failover,
    add_failover,
    agent_at,
    keep_earlier_sessions,
    read_failovers,
    session_holders,
)

ALL = ("claude", "codex", "gemini")
PATIENCE = 300.0


@pytest.mark.parametrize(("endings", "expected"), [
    ([ConnectionEnd("rate_limit", 0.0, resets_at=7200.0)], True),
    ([ConnectionEnd("rate_limit", 0.0, resets_at=200.0)], False),
    ([ConnectionEnd("rate_limit", 0.0)], False),
    ([ConnectionEnd("rate_limit", at) for at in (0.0, 30.0, 90.0, 210.0)], True),
    # without a known end: for 7 minutes
    ([ConnectionEnd("overloaded", 0.0)], False),
    ([ConnectionEnd("server", 60.0 * n) for n in range(9)], True),  # given up
    ([ConnectionEnd("network", 45.0 * n) for n in range(8)], True),
    ([ConnectionEnd("network", 45.0 * n, progress=True) for n in range(8)], False),  # each time the model has answered
    ([ConnectionEnd("authentication", 0.0)], True), ([ConnectionEnd("billing", 0.0)], True),
    ([ConnectionEnd("protocol", 0.0)], True), ([ConnectionEnd("invalid", 0.0)], True),
    ([ConnectionEnd("hang", 0.0)], False), ([ConnectionEnd("hang", float(n)) for n in range(4)], True),
    ([ConnectionEnd("crash", 0.0)], False), ([ConnectionEnd("crash", float(n)) for n in range(3)], True),
    ([ConnectionEnd("crash", float(n), progress=True) for n in range(3)], False),
    ([ConnectionEnd("budget", 0.0)], False), ([ConnectionEnd("reserved", 0.0)], False),
    ([ConnectionEnd("refused", 0.0)], False),
    ([ConnectionEnd("context", 0.0)], False), ([ConnectionEnd("max_turns", 0.0)], False),
    ([ConnectionEnd("loop", 0.0)] * 2, False),
    ([ConnectionEnd("question", 0.0)], False), ([ConnectionEnd("silent", 0.0)] * 2, False),
    ([ConnectionEnd("stopped", 0.0)], False),
    ([ConnectionEnd("reported", 0.0, "it is impossible")], False), ([ConnectionEnd("person", 0.0)], False),
], ids=lambda value: f"{len(value)} {value[-1].kind}" if isinstance(value, list) else str(value))
def test_a_failure_that_is_no_verdict_on_the_task_fails_over(endings: list[ConnectionEnd], expected: bool) -> None:
    trouble = policy.find_trouble(endings, policy.decide(endings))
    assert (trouble is not None and gives_up(trouble, PATIENCE)) is expected
    assert set(TroubleKind) <= failover.RULES.keys(), "every class of failures has a rule"


@pytest.mark.parametrize(("code", "output", "kind"), [
    (127, "sh: 1: codex: not found", "start"), (126, "permission denied", "start"),
    (1, "ERROR: You've hit your usage limit. Try again in 3 hours.", "rate_limit"),
    (1, "Error: 401 Unauthorized", "authentication"), (1, "Credit balance is too low", "billing"),
    (1, "2 tests failed", None), (1, "the network test timed out", None),
    (0, "it failed: usage limit reached", "rate_limit"),
    (-9, "usage limit reached", None), (None, "usage limit reached", None)])
def test_the_output_of_a_program_shows_why_it_cannot_work(code: int | None, output: str, kind: str | None) -> None:
    found = find_trouble(End(code), f"working\n{output}\n")
    assert (found.kind if found else None) == kind
    assert found is None or gives_up(found, PATIENCE)


def test_the_agents_take_turns_until_none_is_left() -> None:
    first = Failover(10.0, "claude", "codex", "rate_limit", until=500.0)
    second = Failover(20.0, "codex", "gemini", "authentication")
    assert choose_next(ALL, [], {}, 10.0) == "codex"
    assert choose_next(ALL, [], {"codex": 99.0}, 10.0) == "gemini"  # its limit applies, as another node has met it
    assert choose_next(ALL, [first], {}, 20.0) == "gemini"
    assert choose_next(ALL, [first, second], {}, 30.0) is None
    assert choose_next(ALL, [first, second], {}, 500.0) == "claude"  # its limit is reset, a key is not
    assert failover.next_reset([first, second], 30.0) == 500.0
    assert failover.list_tried([first, second]) == "claude (rate limit), codex (authentication)"
    assert choose_next(ALL[:2], [first] * failover.MAX_FAILOVERS, {}, 9e9) is None
    assert choose_first(ALL, {}, 0.0) == "claude", "the next attempt starts with the first, unless limited"
    assert choose_first(ALL, {"claude": 50.0, "codex": 60.0}, 40.0) == "gemini"
    assert choose_first(ALL, {"claude": 50.0}, 50.0) == "claude"
    assert choose_first(ALL, dict.fromkeys(ALL, 99.0), 50.0) == "claude"  # it waits, as without a failover


def test_a_list_of_agents_is_parsed() -> None:
    assert parse_failover("node a", "codex, claude,codex") == ("codex", "claude")
    assert parse_failover("node a", ["codex"]) == ("codex",)
    assert parse_failover("node a", "none") == parse_failover("node a", "") == ()
    for wrong in ("codex,,claude", ",", 3, [1], {"a": 1}):
        with pytest.raises(UsageError, match=r"^node a: failover"):
            parse_failover("node a", wrong)


def test_a_failover_is_read_as_it_was_written_and_a_torn_one_is_none(tmp_path: Path) -> None:
    made = [Failover(1.5, "claude", "codex", "rate_limit", "usage limit", 99.0),
            Failover(2.5, "codex", "x", started=False)]
    for each in made:
        add_failover(tmp_path, each)
    with (tmp_path / "failover.jsonl").open("a") as file:
        file.write('{"at": 3, "from": "x", "to"')
    assert read_failovers(tmp_path) == made
    assert [agent_at("claude", made, at) for at in (1.0, 1.5, 2.0, 9.0)] == ["claude", "codex", "codex", "x"]


def test_each_agent_has_its_own_sessions_even_if_the_hand_over_is_killed(tmp_path: Path) -> None:
    made = [Failover(1.0, "claude", "tool"), Failover(2.0, "tool", "codex")]
    (tmp_path / "claude").mkdir()
    (tmp_path / "claude/session.json").write_text("claude's")
    (tmp_path / "earlier/1").mkdir(parents=True)  # killed after the folder was made
    keep_earlier_sessions(tmp_path, made[:1])
    assert not (tmp_path / "claude").exists()
    keep_earlier_sessions(tmp_path, made)  # a command leaves no session
    (tmp_path / "claude").mkdir()
    (tmp_path / "claude/session.json").write_text("codex's")
    for _ in range(2):  # the next incarnation repeats it
        keep_earlier_sessions(tmp_path, made)
    assert (tmp_path / "claude/session.json").read_text() == "codex's"
    assert (tmp_path / "earlier/1/claude/session.json").read_text() == "claude's"
    holders = [each.relative_to(tmp_path).as_posix() for each in session_holders(tmp_path)]
    assert holders == ["earlier/1", "earlier/2", "."]
