"""What a person is told by their own command, and when: pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garrison.config import NotifyConfig, parse_notify
from garrison.errors import UsageError
from garrison.processes.notifications import (
    Notification,
    Notifier,
    due_notifications,
    notify_argv,
)
from garrison.processes.run_state import NodeState, RunState, from_snapshot, replay_run, to_snapshot
from garrison.records.journal import Entry
from garrison.system.jobs import JobResult

ALL = NotifyConfig(("tell", "{text}"), ("escalate", "question", "failed", "done", "stopped"))
STATE = RunState("running", nodes={"a": NodeState("active"), "b": NodeState("validated")},
                 questions={"a": {"id": "q1", "text": "Which?"}})


def test_a_question_and_a_life_given_up_are_told_once() -> None:
    first = due_notifications(STATE, [("s1", "a", "6 deaths")], set(), ALL)
    assert [(one.event, one.text, one.node) for one in first] == [
        ("escalate", "a was given up: 6 deaths", "a"), ("question", "a asks: Which?", "a")]
    assert due_notifications(STATE, [("s1", "a", "6 deaths")], {one.key for one in first}, ALL) == []


def test_the_end_is_told_with_how_far_it_came() -> None:
    ended = RunState("failed", "a: red", nodes=STATE.nodes)
    assert [one.text for one in due_notifications(ended, [], set(), ALL,
                                                  "failed")] == ["run failed, 1 of 2 merged: a: red"]
    assert due_notifications(ended, [], set(), ALL) == [], "only once the launcher ends with it"


def test_a_run_that_was_resumed_is_told_of_when_it_ends_again() -> None:
    ended = replay_run([_entry(1, "running"), _entry(2, "failed")])
    told = {one.key for one in due_notifications(ended, [], set(), ALL, "failed")}
    assert due_notifications(ended, [], told, ALL, "failed") == []
    again = from_snapshot(to_snapshot(ended)).apply(_entry(3, "running")).apply(_entry(4, "failed"))
    assert [one.event for one in due_notifications(again, [], told, ALL, "failed")] == ["failed"]


def _entry(seq: int, status: str) -> Entry:
    return Entry(seq, 1, "t", "2026-01-31T12:00:00.000000Z", "run", {"status": status})


class _Command:
    """A notify command that ends when it is let."""

    ended = False

    def poll(self, _now: float) -> JobResult | None:
        return JobResult(0, False, 1.0) if self.ended else None


def test_only_a_notice_whose_command_has_ended_counts_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that dies while the first is told has a successor that tells the second, too."""
    begun: list[_Command] = []

    def start(*_: Any, **__: Any) -> _Command:
        begun.append(_Command())
        return begun[-1]

    monkeypatch.setattr("garrison.processes.notifications.Job.start", start)
    told: list[str] = []
    teller = Notifier(ALL, "r1", {}, tmp_path / "notify.log", lambda notice: told.append(notice.key))
    for key in ("one", "two", "one"):
        teller.tell(Notification(key, "failed", key))
    teller.poll(0.0)
    assert (len(begun), told, teller.busy) == (1, [], True)
    begun[0].ended = True
    teller.poll(1.0)
    assert (len(begun), told) == (2, ["one"])
    begun[1].ended = True
    teller.poll(2.0)
    assert (told, teller.busy) == (["one", "two"], False)


@pytest.mark.parametrize("config", [NotifyConfig(), NotifyConfig((), ALL.on), NotifyConfig(("tell",), ())])
def test_nobody_is_told_without_a_command_or_an_occasion(config: NotifyConfig) -> None:
    assert due_notifications(STATE, [("s1", "a", "x")], set(), config, "failed") == []


def test_what_is_said_never_becomes_another_word_or_place() -> None:
    notice = Notification("k", "question", "a asks: {run}; $(rm -rf /)\n\x1b[31m", "a")
    argv = notify_argv(NotifyConfig(("say", "{text}", "--tag={event}/{node}@{run}", "{other}")), "r1", notice)
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
        parse_notify("config.toml, [notify]", table)
