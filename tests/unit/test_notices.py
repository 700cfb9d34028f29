"""What a person is told by their own command, and when: pure."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.errors import UsageError
from garrison.layers.notices import Notice, Notify, argv_of, config_of, due
from garrison.layers.run_state import NodeState, RunState

ALL = Notify(("tell", "{text}"), ("escalate", "question", "failed", "done", "stopped"))
STATE = RunState("running", nodes={"a": NodeState("active"), "b": NodeState("validated")},
                 questions={"a": {"id": "q1", "text": "Which?"}})


def test_a_question_and_a_life_given_up_are_told_once() -> None:
    first = due(STATE, [("s1", "a", "6 deaths")], set(), ALL)
    assert [(one.event, one.text, one.node) for one in first] == [
        ("escalate", "a was given up: 6 deaths", "a"), ("question", "a asks: Which?", "a")]
    assert due(STATE, [("s1", "a", "6 deaths")], {one.key for one in first}, ALL) == []


def test_the_end_is_told_with_how_far_it_came() -> None:
    ended = RunState("failed", "a: red", nodes=STATE.nodes)
    assert [one.text for one in due(ended, [], set(), ALL, "failed")] == ["run failed, 1 of 2 merged: a: red"]
    assert due(ended, [], set(), ALL) == [], "only once the launcher ends with it"


@pytest.mark.parametrize("config", [Notify(), Notify((), ALL.on), Notify(("tell",), ())])
def test_nobody_is_told_without_a_command_or_an_occasion(config: Notify) -> None:
    assert due(STATE, [("s1", "a", "x")], set(), config, "failed") == []


def test_what_is_said_never_becomes_another_word_or_place() -> None:
    notice = Notice("k", "question", "a asks: {run}; $(rm -rf /)\n\x1b[31m", "a")
    argv = argv_of(Notify(("say", "{text}", "--tag={event}/{node}@{run}", "{other}")), "r1", notice)
    assert argv[0] == "say"
    assert argv[1].startswith("a asks: {run}; $(rm -rf /)")
    assert "\x1b" not in argv[1]
    assert "\n" not in argv[1]
    assert argv[2:] == ["--tag=question/a@r1", "{other}"]


@pytest.mark.parametrize(("table", "wrong"), [
    ("x", "should be a table"), ({"comand": []}, "comand is not known"), ({"command": "notify-send"}, "a list of"),
    ({"on": ["escalated"]}, "'escalated'"), ({"timeout": 0}, "timeout"), ({"timeout": True}, "timeout"),
])
def test_a_table_that_cannot_be_meant_is_refused(table: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        config_of("config.toml, [notify]", table)
