"""A suspended session: the records of its program, and the decisions of its orchestrator."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.agents.base import Assignment, WorkResult
from garrison.agents.claude.attempt import ClaudeAttempt
from garrison.agents.claude.settings import ClaudeSettings
from garrison.agents.conversation import policy, prompts, questions
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import NextStep
from garrison.agents.graph.model import AgentFailure
from garrison.agents.session_agent import SessionAttempt, read_graph
from garrison.agents.session_options import ORDER
from garrison.agents.trouble import WHAT_TO_DO, TroubleKind
from garrison.errors import UsageError
from garrison.node.session_attempt import SessionProgram
from garrison.records import costs
from garrison.records.api_answers import NETWORK, record_failure
from garrison.records.budget import FILE, SESSION_LOCK
from garrison.records.json_io import append_line, read_json, read_lines
from garrison.records.life_lock import LifeLock
from garrison.records.run import Task
from garrison.session.adapters import ToolDispatcher, plain_adapters
from garrison.values import fields_of


class Programs:
    """An orchestrator's programs, with a given end for each: an ending or an outcome."""

    def __init__(self, folder: Path, *ends: policy.ConnectionEnd | WorkResult) -> None:
        self.files, self.ends, self.begun = AttemptFiles(folder), list(ends), 0
        self.clock = 100.0
        self.assignment: Any = SimpleNamespace(folder=folder, output=folder / "output.log", account="")

    def begin(self, _now: float) -> Any:
        self.begun += 1
        return SimpleNamespace(poll=self.poll, process=lambda: (1, 1), wake_at=lambda: None, stop=lambda _now: None)

    def poll(self, _now: float) -> WorkResult:
        end = self.ends.pop(0)
        if isinstance(end, WorkResult):
            return end
        append_line(self.files.endings, fields_of(end))
        return WorkResult("fail", "it wrote no status")

    def work(self) -> SessionAttempt:
        return SessionAttempt(self.assignment, self.begin, 0.0, wall=lambda: self.clock)


DONE = WorkResult("success")


def test_a_question_waits_without_a_program_even_in_a_later_incarnation(tmp_path: Path) -> None:
    programs = Programs(tmp_path, policy.ConnectionEnd(policy.QUESTION, 1.0, "Which?"), DONE)
    work = programs.work()
    questions.ask(programs.files, "Which?", "c1")
    assert work.poll(0.0) is None
    assert (work.question.text, work.process(), programs.begun) == ("Which?", None, 1)
    assert programs.files.waiting.read_text() == "for an answer: Which?"
    later = programs.work()
    assert (later.poll(0.0), programs.begun) == (None, 1)
    later.answer(later.question.id, "blue")
    assert later.poll(0.0) is None
    assert not programs.files.waiting.exists()
    assert (later.poll(0.0), programs.begun, later.question) == (DONE, 2, None)
    assert questions.answer_to_call(programs.files, "c1") == "blue"
    assert questions.answer_to_call(programs.files, "c2") is None


@pytest.mark.parametrize("kind", [TroubleKind.BUDGET, TroubleKind.AUTHENTICATION, TroubleKind.BILLING])
def test_a_failure_for_the_user_parks_until_an_answer_or_a_new_incarnation(tmp_path: Path, kind: str) -> None:
    programs = Programs(tmp_path, *[policy.ConnectionEnd(kind, 1.0, "spent")] * 3, DONE)
    work = programs.work()
    assert work.poll(0.0) is None
    assert WHAT_TO_DO[kind] in work.question.text
    assert (work.poll(0.0), programs.begun) == (None, 1)
    work.answer(work.question.id, "done")
    assert (work.poll(0.0), programs.begun) == (None, 2)
    assert work.poll(0.0) is None
    assert work.question.id == "trouble-2", "it was refused again"
    assert (programs.work().process(), programs.begun) == ((1, 1), 3), "a new incarnation tries it"


def test_a_transient_failure_is_retried_until_it_is_over(tmp_path: Path) -> None:
    ending = policy.ConnectionEnd(TroubleKind.NETWORK, 100.0, "gone")
    programs = Programs(tmp_path, *[ending] * 30, DONE)
    work = programs.work()
    assert (work.poll(0.0), programs.begun, work.question) == (None, 1, None)
    assert "network: gone" in programs.files.waiting.read_text()
    programs.clock = 200.0
    outcomes = [work.poll(0.0) for _ in range(62)]
    assert (programs.begun, outcomes[-1]) == (31, DONE)


def test_a_takeover_suspends_the_session_and_its_end_resumes_it(tmp_path: Path) -> None:
    programs = Programs(tmp_path, WorkResult("fail", "struck", killed=True), DONE)
    work = programs.work()
    there = LifeLock.try_acquire(programs.files.takeover)
    programs.files.takeover.write_text(json.dumps({"pid": 7, "ticks": 8, "since": "now"}))
    assert (work.poll(0.0), programs.begun, work.process()) == (None, 1, (7, 8))
    assert "while it is taken over" in programs.files.waiting.read_text()
    assert (programs.work().process(), programs.begun) == ((7, 8), 1), "a new incarnation does not start it either"
    append_line(programs.files.endings, fields_of(policy.ConnectionEnd(policy.PERSON, 1.0)))
    there.release()
    assert (work.poll(0.0), programs.begun) == (None, 2)
    assert not programs.files.waiting.exists()
    there = LifeLock.try_acquire(programs.files.takeover)
    assert work.poll(0.0) == DONE, "a result during a takeover counts"
    there.release()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_report_during_a_takeover_ends_a_claude_session(tmp_path: Path, recorded: bool) -> None:
    """The connection that is stopped for the user may already have its report."""
    assignment = Assignment(Task("r", "n", 1), tmp_path, tmp_path, {"GARRISON_HOME": str(tmp_path)})
    ends = [policy.ConnectionEnd(policy.REPORTED, 1.0, success=True)] if recorded else [WorkResult("fail", "stopped")]
    programs = Programs(tmp_path, *ends)

    class Attempt(ClaudeAttempt):
        def _start(self, _decision: NextStep, now: float) -> Any:
            return programs.begin(now)

    attempt = Attempt(assignment, ClaudeSettings(), 0.0)
    there = LifeLock.try_acquire(programs.files.takeover)
    outcome = attempt.poll(0.0)
    assert (outcome is not None and outcome.status == "success") == recorded
    assert programs.files.waiting.exists() != recorded, "without a report it waits for the user"
    there.release()


def test_the_model_is_informed_of_a_takeover_until_the_next_end(tmp_path: Path) -> None:
    prompt, ran = ordered(tmp_path), []
    files = AttemptFiles(tmp_path)
    files.make()
    append_line(files.endings, fields_of(policy.ConnectionEnd(policy.PERSON, 1.0)))
    heard: list[Any] = []

    class Hears(Model):
        def _within_limits(self, ask: Any) -> Any:
            async def asked(messages: Any, *more: Any) -> Any:
                heard.append(messages[-1]["content"])
                return await ask(messages[:-1], *more)
            return super()._within_limits(asked)
    work = Hears(prompt)
    work.ran, work.plays = ran, [REPORT, "Done."]
    assert asyncio.run(work.run())["status"] == "success"
    assert all(one.startswith("The user has worked in your worktree") for one in heard)
    assert "report_result" in files.conversation.read_text()
    assert "The user has worked" not in files.conversation.read_text()


def test_the_users_cli_gets_the_end_of_a_long_conversation() -> None:
    told = prompts.conversation_for_person("é" * prompts.MAX_CONVERSATION + "the end")
    assert len(told.encode()) < 128 * 1024
    assert told.strip().endswith("the end")


def test_a_stopped_or_killed_session_is_left_to_a_later_incarnation(tmp_path: Path) -> None:
    spent = policy.ConnectionEnd(TroubleKind.BUDGET, 1.0, "spent")
    programs = Programs(tmp_path, WorkResult("fail", "killed", killed=True), spent)
    assert programs.work().poll(0.0) == WorkResult("fail", "killed", killed=True)
    work = programs.work()
    work.poll(0.0)
    work.stop(0.0)
    assert work.poll(0.0) == WorkResult("fail", "stopped")


def ordered(folder: Path, **more: Any) -> Path:
    (folder / "prompt.md").write_text("Do it.")
    (folder / ORDER).write_text(json.dumps({
        "home": str(folder), "run": "r", "node": "a", "attempt": 1, "life": 1, "tree": str(folder), "goal": "g",
        "tier": "trusted", "initiative": 0, "notes": str(folder / "notes.txt"), "turn_graph": None,
        "heartbeat_graph": None, "settings": None, "system": "", **more}))
    return folder / "prompt.md"


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"c{number}", "name": name, "arguments": arguments}


class Model(SessionProgram):
    """A session with a model that answers from `plays` by the number of results it has seen; `ran` lists its calls."""

    ran: list[str]
    plays: list[Any]

    async def _adapters(self, _stack: Any) -> dict[str, Any]:
        self.settings = ClaudeSettings(budget=1.0)

        def said(messages: list[dict[str, Any]], *_: Any) -> Any:
            play = self.plays[sum(one["role"] == "tool" for one in messages)]
            if isinstance(play, Exception):
                raise play
            return {"tool_calls": play} if isinstance(play, list) else {"content": play}

        async def ask(*given: Any) -> Any:
            return said(*given)

        class Noted(ToolDispatcher):
            async def __call__(_self, calls: list[dict[str, Any]], agent: str) -> list[str]:
                self.ran += [one["name"] for one in calls]
                return await ToolDispatcher.__call__(_self, calls, agent)
        return {**plain_adapters(), "llm_call": self._within_limits(ask),
                "tool_dispatch": self._with_questions(Noted(self._own_tools()))}


def life(prompt: Path, ran: list[str], plays: list[Any]) -> Any:
    work = Model(prompt)
    work.ran, work.plays = ran, plays
    return asyncio.run(work.run())


REPORT = [call(9, "report_result", status="success", summary="done")]


def test_questions_of_a_batch_are_asked_in_turn_and_its_other_calls_run_once(tmp_path: Path) -> None:
    prompt, ran = ordered(tmp_path), []
    batch = [call(1, "save_notes", text="n"), call(2, "ask_guardian", question="A?"),
             call(3, "ask_guardian", question="B?"), call(4, "ask_guardian", question=" ")]

    class Hears(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            return super().__getitem__({0: 0, 4: 1}.get(place, 2))
    plays = Hears([batch, REPORT, "Done."])
    files = AttemptFiles(tmp_path)
    for text, answer in (("A?", "yes"), ("B?", "no")):
        assert life(prompt, ran, plays) is None
        assert (files.read_endings()[-1].kind, files.read_endings()[-1].reason, ran) == (policy.QUESTION, text, [])
        questions.save_answer(files, read_json(files.question)["id"], answer)
    claim = life(prompt, ran, plays)
    assert (claim["status"], ran) == ("success", ["save_notes", "report_result"])
    assert read_json(files.folder / "answers.json") == {"c2": "yes", "c3": "no"}


@pytest.mark.parametrize("ending", [TroubleKind.BUDGET, TroubleKind.AUTHENTICATION, TroubleKind.OVERLOADED])
def test_a_limit_or_refusal_suspends_a_turn_without_repeating_work(tmp_path: Path, ending: str) -> None:
    prompt, ran = ordered(tmp_path), []
    files = AttemptFiles(tmp_path)
    status = {TroubleKind.AUTHENTICATION: 401, TroubleKind.OVERLOADED: 529}.get(ending)
    plays: list[Any] = [[call(1, "save_notes", text="n")], AgentFailure("no", status), "Done."]
    usage = tmp_path / "runs/r/nodes/a/1/claude/usage.jsonl"
    usage.parent.mkdir(parents=True)
    if ending == TroubleKind.BUDGET:
        costs.append_usage(usage, costs.UsageRecord("result", "s", "2026-01-31T00:00:00Z", 2.0))
    assert life(prompt, ran, plays) is None
    assert files.read_endings()[-1].kind == ending
    before = list(ran)
    usage.unlink(missing_ok=True)
    plays[1] = REPORT
    assert life(prompt, ran, plays)["status"] == "success"
    assert (before, ran) == ([] if ending == TroubleKind.BUDGET else ["save_notes"], ["save_notes", "report_result"])


def test_a_call_waits_if_another_in_progress_has_reserved_the_budget(tmp_path: Path) -> None:
    """Without a sandbox there is no other reservation: another attempt of the node has reserved the rest."""
    prompt, ran = ordered(tmp_path, config=str(tmp_path / "config")), []
    other = tmp_path / "runs/r/nodes/a/2/claude"
    other.mkdir(parents=True)
    (other / FILE).write_text('{"usd": 0.999}')
    lock = LifeLock.try_acquire(other / SESSION_LOCK)
    costs.append_usage(other / "usage.jsonl", costs.UsageRecord("call", "s", "2026-01-31T00:00:00Z", 0.0005))
    AttemptFiles(tmp_path).make()
    costs.append_usage(AttemptFiles(tmp_path).usage, costs.UsageRecord("call", "s", "2026-01-31T00:00:00Z", 0.1))
    assert life(prompt, ran, [REPORT, "Done."]) is None
    assert AttemptFiles(tmp_path).read_endings()[-1].kind == TroubleKind.RESERVED
    lock.release()
    assert life(prompt, ran, [REPORT, "Done."])["status"] == "success"
    assert not (AttemptFiles(tmp_path).folder / FILE).exists()


def test_an_ending_comes_from_the_answer_of_the_api_without_escape_sequences(tmp_path: Path) -> None:
    """As in a session of Claude or of an ACP agent: one recorder judges all of them."""
    files = AttemptFiles(tmp_path)
    assert life(ordered(tmp_path), [], [AgentFailure("\x1b[2Jfull", 529)]) is None
    assert (files.read_endings()[-1].kind, files.read_endings()[-1].reason) == (TroubleKind.OVERLOADED, "full")
    at = time.time() + 60
    record_failure(tmp_path / NETWORK, at, 429, {"retry-after": "30"}, ("rate_limit_error", "slow down"))
    assert life(ordered(tmp_path), [], [AgentFailure("overloaded", 529)]) is None
    ending = files.read_endings()[-1]
    assert (ending.kind, ending.status, ending.resets_at) == (TroubleKind.RATE_LIMIT, 429, at + 30)
    assert ending.reason == "429 rate_limit_error: slow down"


def test_a_permanent_failure_ends_the_attempt(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such model"):
        life(ordered(tmp_path), [], [AgentFailure("no such model", 404)])
    assert AttemptFiles(tmp_path).read_endings() == []


@pytest.mark.parametrize("planted", ["link", "pipe", "folder", "hard link"])
def test_planted_files_among_the_records_of_a_session_are_not_followed(planted: str, tmp_path: Path) -> None:
    own, record = tmp_path / "own", tmp_path / "endings.jsonl"
    own.write_text('{"a": 1}\n')
    {"link": lambda: record.symlink_to(own), "pipe": lambda: os.mkfifo(record), "folder": record.mkdir,
     "hard link": lambda: record.hardlink_to(own)}[planted]()
    if planted != "hard link":
        assert (read_json(record), read_lines(record)) == (None, [])
    append_line(record, {"b": 2})
    assert (own.read_text(), read_lines(record)) == ('{"a": 1}\n', [{"b": 2}])


def test_a_graph_in_the_worktree_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("digraph { }")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/turn.dot").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="symbolic link"):
        read_graph(tmp_path / "tree", "turn.dot")
