"""Streams of programs that print lines of JSON: what is kept, counted and shown, whatever they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garrison.agents.command_profile import STREAMS
from garrison.agents.program_stream import FORMATS, MAX_LINE, ProgramStream
from garrison.records.costs import append_usage, call_record, read_usage, total
from garrison.views.usage import cost_rows

CLAUDE = [
    {"type": "system", "subtype": "init", "session_id": "s-1", "model": "sonnet"},
    {"type": "assistant", "message": {"id": "m1", "model": "sonnet", "usage": {"input_tokens": 10, "output_tokens": 1},
                                      "content": [{"type": "text", "text": "I look."}, {
                                          "type": "tool_use", "name": "Bash", "input": {"command": "ls"}}]}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "content": "a.txt", "is_error": False}]}},
    {"type": "result", "subtype": "success", "is_error": False, "result": "done it", "total_cost_usd": 0.25,
     "usage": {"input_tokens": 10, "output_tokens": 40}},
]
CODEX = [
    {"type": "thread.started", "thread_id": "t-1"}, {"type": "turn.started"},
    {"type": "item.started", "item": {"id": "i0", "type": "command_execution", "command": "ls"}},
    {"type": "item.completed", "item": {"id": "i0", "type": "command_execution", "aggregated_output": "a.txt",
                                        "status": "completed"}},
    {"type": "item.completed", "item": {"id": "i1", "type": "agent_message", "text": "done it"}},
    {"type": "turn.completed", "usage": {"input_tokens": 30, "cached_input_tokens": 20, "output_tokens": 5}},
]


class Attempt:
    """An attempt whose program prints."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder, self.form, self.output = folder, form, folder / "output.log"
        self.stream = self.open()

    def open(self) -> ProgramStream:
        return ProgramStream(FORMATS[self.form], self.folder, self.output)

    def print(self, *lines: object, end: str = "\n") -> None:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        with self.stream.files.lines.open("a") as file:
            file.write(text + end)

    def shown(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


@pytest.mark.parametrize(("form", "lines", "session", "tokens"), [
    ("claude", CLAUDE, "s-1", (10, 40)), ("codex", CODEX, "t-1", (30, 5))])
def test_a_turn_is_read_shown_and_counted(form: str, lines: list[object], session: str, tokens: tuple[int, int],
                                          tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, form)
    for line in lines:  # as they come
        attempt.print(line)
        attempt.stream.read()
    attempt.stream.finish()
    told = attempt.stream.told
    assert (told.session, told.message, told.failure, told.has_begun) == (session, "done it", "", True)
    assert told.result == lines[-1]
    shown = attempt.shown()
    assert f"── session {session} begun" in shown and "→ " in shown and "← a.txt" in shown
    assert "── session ended its turn" in shown and "{" not in shown
    spent = total(read_usage(attempt.stream.files.usage))
    assert (spent.input, spent.output) == tokens
    assert form == "codex" or spent.usd == 0.25
    assert tuple(FORMATS) == STREAMS


def test_the_tokens_of_a_killed_turn_are_counted(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "claude")
    start = {"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 10, "output_tokens": 1}}}
    end = {"type": "message_delta", "usage": {"output_tokens": 40}}
    attempt.print(CLAUDE[0], *({"type": "stream_event", "event": event} for event in (start, end)), CLAUDE[1])
    attempt.stream.finish()
    spent = total(read_usage(attempt.stream.files.usage))
    assert (spent.input, spent.output, spent.calls) == (10, 40, 1)


def test_costs_of_the_proxy_and_of_the_program_are_not_added_twice(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r1" / "nodes" / "a" / "1"
    (folder / "network").mkdir(parents=True)
    (folder / "network" / "limits.json").write_text('{"node": 2.0}')
    attempt = Attempt(folder, "codex")
    attempt.print(*CODEX)
    attempt.stream.finish()
    [row] = cost_rows(tmp_path, "r1", "node")
    assert (row.of, row.input, row.output) == ("r1/a", 30, 5), "what no proxy has counted"
    counted = call_record("proxy-1", "2026-11-23T00:00:00Z", "m", "", {"input_tokens": 60, "output_tokens": 10})
    append_usage(folder / "network" / "usage.jsonl", counted)
    attempt.print(*CODEX)
    attempt.stream.finish()
    [row] = cost_rows(tmp_path, "r1", "node")
    assert (row.input, row.output, row.limit) == (90, 15, 2.0), "nothing is counted twice"


@pytest.mark.parametrize(("form", "line", "why"), [
    ("claude", {"type": "result", "subtype": "error_max_turns", "is_error": True}, "error_max_turns"),
    ("codex", {"type": "turn.failed", "error": {"message": "no key"}}, "no key")])
def test_a_failed_turn_has_its_reason(form: str, line: object, why: str, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, form)
    attempt.print(line)
    attempt.stream.finish()
    assert attempt.stream.told.failure == why
    assert f"── session failed: {why}" in attempt.shown()


def test_a_successor_continues_where_a_killed_orchestrator_was(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "codex")
    attempt.print(*CODEX[:3])
    attempt.stream.read()
    attempt.print(CODEX[3], CODEX[5])
    attempt.print('{"type": "item.comp', end="")  # a kill tore it
    later = attempt.open()
    later.catch_up()
    assert (later.told.session, later.told.has_begun, later.told.result) == ("t-1", False, None)
    assert attempt.shown().count("session t-1 begun") == 1 and attempt.shown().count("← a.txt") == 1
    attempt.print(*CODEX)
    later.finish()
    assert "session t-1 resumed" in attempt.shown() and later.told.message == "done it"
    assert total(read_usage(later.files.usage)).output == 10, "each turn is counted once"


def test_lines_that_are_no_events_are_bounded_and_harmless(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "claude")
    nonsense: list[object] = [
        "not JSON \x1b]0;title\x07", "[" * 5000, "[]", "{}", "9" * 5000, '{"type": []}',
        {"type": "assistant", "message": "x"}, {"type": "assistant", "message": {"content": {"a": 1}, "usage": []}},
        {"type": "assistant", "message": {"content": [1, None, {"type": "text", "text": 5}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "content": [3, {"text": []}]}]}},
        {"type": "system", "subtype": "init", "session_id": "--help", "model": 3},
        {"type": "result", "is_error": "no", "result": None, "total_cost_usd": -5, "usage": {"output_tokens": "many"}},
        {"type": "result", "is_error": False, "result": "\ud800", "total_cost_usd": 1e300},
    ]
    attempt.print(*nonsense)
    attempt.print('{"long": "' + "x" * (9 << 20) + '"}', CLAUDE[0])
    for form in FORMATS:
        attempt.stream = ProgramStream(FORMATS[form], tmp_path, attempt.output)
        attempt.stream.finish()
        attempt.stream.files.session.unlink()
    assert attempt.shown().count(f"a line of more than {MAX_LINE >> 20} MiB is left out") == 2
    assert "not JSON" in attempt.shown() and "\x1b" not in attempt.shown() and len(attempt.shown()) < 50_000
    again = Attempt(tmp_path, "claude").open()
    again.finish()
    assert again.told.session == "s-1", "a session that would be an option is none"


@pytest.mark.timeout(60)
def test_an_empty_terabyte_of_output_is_skipped(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "claude")
    attempt.print(CLAUDE[0], end="")
    with attempt.stream.files.lines.open("r+b") as file:
        file.truncate(1 << 40)
    attempt.print("", *CLAUDE)
    attempt.stream.finish()
    assert attempt.stream.told.session == "s-1"
    assert "MiB is left out" in attempt.shown()
