"""End of a turn: what is refused after a report or a question, and which last words are a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.agents.conversation import questions, tools
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.questions import plain_question
from garrison.agents.conversation.tools import SessionReports
from garrison.errors import UsageError
from garrison.testing.model_apis import MESSAGES
from garrison.testing.script import parse_script
from garrison.testing.turn import ScriptError

TOOL = "mcp__garrison__"


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    made = AttemptFiles(tmp_path)
    made.make()
    return made


def test_after_a_report_everything_is_refused(files: AttemptFiles) -> None:
    end = SessionReports(files)
    assert (end.refuse("Bash", {}), end.end_after(f"{TOOL}save_notes")) == ("", "")
    tools.report_result(files).call(status="success", summary="done")
    assert end.end_after(f"{TOOL}report_result")
    assert "reported already (success)" in end.refuse("Bash", {})
    assert end.refuse(f"{TOOL}report_result", {})
    with pytest.raises(UsageError, match="the first report stands"):
        tools.report_result(files).call(status="failure", summary="broken")


def test_after_a_question_only_notes_and_further_questions_are_left(files: AttemptFiles) -> None:
    end = SessionReports(files)
    questions.ask(files, "May I?")
    assert end.end_after(f"{TOOL}ask_guardian")
    assert not end.end_after("Bash")
    assert "its answer is not there" in end.refuse("Bash", {})
    assert "its answer is not there" in end.refuse(f"{TOOL}report_result", {})
    assert not any(end.refuse(f"{TOOL}{name}", {}) for name in ("ask_guardian", "save_notes"))
    questions.save_answer(files, questions.read_json(files.question)["id"], "yes")
    assert not end.refuse("Bash", {})
    assert not end.reached


@pytest.mark.parametrize(("text", "first"), [
    ("Should I use tabs or spaces?", "Should I use tabs or spaces?"),
    ("I looked at both.\n\n**Which one do you want?**\n- the old\n- the new", "**Which one do you want?**"),
    ("どちらにしますか？", "どちらにしますか？"),
    ("May I go on? I wait for your word.", "May I go on? I wait for your word."),
    ("Done.", ""), ("", ""), ("?", ""), ("See https://x.org/?a=b for more.", ""), ("Done.\n```sh\nwhy?\n```", ""),
    ("Why did it fail? Because of the lock. " + "I mended it and ran the tests again. " * 20, "")])
def test_a_question_in_plain_text(text: str, first: str) -> None:
    assert plain_question(text).partition("\n")[0] == first


def test_a_script_names_a_misbehaviour() -> None:
    asks = {"messages": [{"role": "user", "content": "go"}]}
    script = parse_script({"conversations": [{"misbehaves": "reports_twice", "turns": ["I work."]}]})
    assert [block.type for block in script.answer(MESSAGES.read("", asks)).turn.blocks] == ["text"]
    spoken = {"messages": [*asks["messages"], {"role": "assistant", "content": "I work."}]}
    answer = script.answer(MESSAGES.read("", spoken))
    assert [block.input["status"] for block in answer.turn.blocks] == ["success", "failure"]
    with pytest.raises(ScriptError, match="no misbehaviour 'rests'; there are reports_and_goes_on"):
        parse_script({"conversations": [{"misbehaves": "rests"}]})
