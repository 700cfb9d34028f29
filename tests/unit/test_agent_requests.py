"""Requests of an agent to its orchestrator: their text, their effects, and how many are accepted."""

from __future__ import annotations

import json

import pytest

from garrison.agents.base import PendingQuestion
from garrison.agents.channel import TokenBucket
from garrison.agents.reports import MAX_QUESTIONS, WAITING, AgentReports
from garrison.agents.requests import (
    MAX_TEXT,
    NoteRequest,
    PhaseRequest,
    QuestionRequest,
    Reply,
    ReportRequest,
    parse_request,
)


def parse(**body: object) -> object:
    return parse_request(json.dumps(body).encode())


def test_each_kind_of_request_is_parsed():
    assert parse(type="note", text=" half done ") == NoteRequest("half done")
    assert parse(type="phase", phase="impl_complete") == PhaseRequest("impl_complete")
    assert parse(type="question", text="Which?") == QuestionRequest("Which?")
    assert parse(type="report", status="success", context={"a": 1}) == ReportRequest(
        {"status": "success", "context_updates": {"a": 1}})


@pytest.mark.parametrize(("line", "complaint"), [
    (b"", "one line of JSON"),
    (b"\xff\xfe", "one line of JSON"),
    (b"[" * 200_000, "one line of JSON"),
    (b"9" * 5000, "one line of JSON"),
    (b"[]", "the type of a request"),
    (b'{"type": "stop"}', "the type of a request"),
    (b'{"type": ["note"]}', "the type of a request"),
    (b'{"type": "cancel", "text": "it"}', "the type of a request"),
    (b'{"type": "note"}', "text is missing"),
    (b'{"type": "note", "text": 7}', "text is missing"),
    (b'{"type": "note", "text": "\\ud800"}', "not text"),
    (b'{"type": "report", "notes": "\\ud800"}', "not text"),
    (b'{"type": "report"}', "a report needs content"),
    (b'{"type": "report", "status": 1}', "status is not a text"),
    (b'{"type": "report", "context": []}', "context is not an object"),
    (b'{"type": "phase", "phase": "merged"}', "an agent's phase"),
    (b'{"type": "phase", "phase": "validating"}', "an agent's phase"),
    (b'{"type": "note", "text": "' + b"x" * (MAX_TEXT + 1) + b'"}', "more than"),
    (b'{"type": "note", "text": "' + b"x" * (1 << 20) + b'"}', "at most 1 MiB"),
])
def test_malformed_requests_are_refused(line, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_request(line)


def test_a_result_counts_only_if_the_agent_reports_in_this_way(tmp_path):
    reports = AgentReports(tmp_path)
    request = parse(type="report", status="success")
    assert reports.handle(request) == Reply(
        "this agent reports its result in another way; only notes, phases and questions are accepted here")
    assert not reports.result
    reports.takes_result = True
    assert reports.handle(request) == Reply()
    assert reports.handle(parse(type="report", status="fail")) == Reply()
    assert reports.result["status"] == "fail", "the last one counts"
    successor = AgentReports(tmp_path)
    assert successor.result == {}, "an agent that works again reports again"
    successor.recall()
    assert successor.result == reports.result, "unless it had ended"
    successor.forget()
    third = AgentReports(tmp_path)
    third.recall()
    assert third.result == {}


def test_notes_are_added_and_kept_for_a_successor(tmp_path):
    reports = AgentReports(tmp_path)
    reports.handle(NoteRequest("one"))
    reports.handle(NoteRequest("two"))
    assert AgentReports(tmp_path).notes == "one\ntwo"
    reports.handle(NoteRequest("x" * MAX_TEXT))
    assert len(reports.notes) == MAX_TEXT


def test_a_question_is_asked_once_and_its_answer_survives_the_process(tmp_path):
    reports = AgentReports(tmp_path)
    first = reports.handle(QuestionRequest("Which colour?"))
    assert isinstance(first, str)
    assert reports.handle(QuestionRequest("Which colour?")) == first, "it is open already"
    second = reports.handle(QuestionRequest("And which size?"))
    assert reports.question == PendingQuestion(first, "Which colour?")
    assert "Which colour?" in (tmp_path / WAITING).read_text()
    assert reports.answer(first, "blue")
    assert reports.question == PendingQuestion(second, "And which size?")
    assert reports.answer(second, "7")
    assert reports.question is None
    assert not (tmp_path / WAITING).exists()
    again = reports.handle(QuestionRequest("Which colour?"))
    assert again != first, "an agent may repeat an answered question"
    successor = AgentReports(tmp_path)
    assert not successor.answer("0123456789ab", "blue") and not successor.answer("trouble-1", "done"), "a session's"
    assert successor.answer(again, "red")
    assert [successor.handle(QuestionRequest("Which colour?")) for _ in range(2)] == [
        Reply(answer="blue"), Reply(answer="red")], "in turn, including the answer that arrived in between"


def test_questions_are_bounded_and_need_a_guardian(tmp_path):
    reports = AgentReports(tmp_path)
    replies = [reports.handle(QuestionRequest(f"{number}?")) for number in range(MAX_QUESTIONS + 1)]
    assert all(isinstance(reply, str) for reply in replies[:-1])
    assert replies[-1] == Reply("too many questions; wait for the answers")
    assert AgentReports(tmp_path, can_ask=False).handle(QuestionRequest("?")) == Reply(
        "no one can be asked: this run has no guardian")


def test_the_rate_is_limited():
    limit = TokenBucket(rate=10.0, burst=5.0)
    assert [limit.take(100.0) for _ in range(6)] == [True] * 5 + [False]
    assert limit.next_at() == pytest.approx(100.5)
    assert limit.take(limit.next_at())
    assert sum(limit.take(100.0 + step / 100) for step in range(50, 150)) <= 15
