"""Questions and answers of a session, the end of a turn, extensions and permissions, and a CLI without its parent."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from garrison.agents import prompt
from garrison.agents.base import Assignment
from garrison.agents.briefing import Briefing
from garrison.agents.claude.attempt import ClaudeAttempt
from garrison.agents.claude.extensions import cli_settings, patterns
from garrison.agents.claude.settings import ClaudeSettings, from_profile
from garrison.agents.conversation import holder, prompts, questions, tools
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.messages import post, take
from garrison.agents.conversation.policy import Prompt
from garrison.agents.conversation.questions import Permissions, plain_question, save_answer
from garrison.agents.conversation.tools import SessionReports, report_result
from garrison.errors import UsageError
from garrison.records.json_io import append_line, read_json, read_lines, write_json
from garrison.records.life_lock import LifeLock
from garrison.records.record import from_data
from garrison.records.run import Task
from garrison.tables import Table
from garrison.testing.model_apis import MESSAGES
from garrison.testing.script import parse_script
from garrison.testing.turn import ScriptError
from garrison.values import asdict
from support import DEADLINE, wait_for

TOOL = "mcp__garrison__"


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    made = AttemptFiles(tmp_path)
    made.make()
    return made


def test_resolving_a_failure_does_not_overwrite_an_answer(files):
    """The agent's question was answered; then the key was refused, and the user said that it works again."""
    work = ClaudeAttempt.__new__(ClaudeAttempt)
    work.files = files
    work.answer("1f", "blue")
    work.answer("trouble-3", "it is mended")
    assert read_json(work.files.answer) == {"id": "1f", "text": "blue"}
    assert read_json(work.files.lifted)["id"] == "trouble-3"


def test_two_questions_in_one_turn_are_both_asked(files):
    ask = tools.ask_guardian(files).call
    ask(question="Which colour?")
    ask(question="Which size?")
    first = read_json(files.question)
    assert first["text"] == "Which colour?\nWhich size?"
    write_json(files.answer, {"id": first["id"], "text": "blue, large"})
    ask(question="Which name?")
    assert read_json(files.question)["text"] == "Which name?"


def test_half_a_surrogate_pair_is_written_as_an_escape(tmp_path):
    append_line(tmp_path / "lines", {"text": "\ud83d and ü"})
    write_json(tmp_path / "file", {"text": "\ud83d"})
    assert read_lines(tmp_path / "lines") == [{"text": "\ud83d and ü"}]
    assert read_json(tmp_path / "file") == {"text": "\ud83d"}
    assert (tmp_path / "lines").read_text().isascii(), "other readers take it as text"


def test_an_orphaned_cli_gets_time_to_save_its_transcript(files, tmp_path):
    """It gets SIGTERM before SIGKILL, and its record is removed with it."""
    script = 'trap "echo said > last; exit" TERM; touch ready; while :; do sleep 0.02; done'
    child = subprocess.Popen(["sh", "-c", script], cwd=tmp_path)
    try:
        wait_for("it is there", (tmp_path / "ready").exists)
        holder.record_process(files, child.pid, 1)
        holder.end_orphan(files)
        assert (tmp_path / "last").read_text() == "said\n"
        assert child.wait(DEADLINE) == 0
        assert not files.process.exists()
    finally:
        child.kill()
        child.wait()


def test_the_user_with_the_takeover_lock_has_the_session(files):
    assert holder.person_of(files) is None
    lock = LifeLock.try_acquire(files.takeover)
    assert lock is not None
    assert holder.person_of(files) == holder.Person(), "it has not said who it is yet"
    files.takeover.write_text(f'{{"pid": {os.getpid()}, "ticks": 5, "since": "now"}}')
    found = holder.person_of(files)
    assert found is not None
    assert found.pid == os.getpid()
    assert "while it is taken over" in found.describe()
    lock.release()
    assert holder.person_of(files) is None, "the file alone does not count"


def test_a_session_with_a_parent_does_not_get_the_preamble_again(files, tmp_path):
    """An interrupted one may not have received its task, which is repeated."""
    assignment = Assignment(Task("r", "n", 1, label="Do it", preamble="Done so far: x", continues="s"), tmp_path,
                            tmp_path, {}, 2)
    assignment.prompt_file.write_text(prompt.build(assignment.task, Briefing()))
    section = prompt.run_so_far(assignment.task)
    assert "```quoted\nDone so far: x\n```" in section
    assert assignment.prompt_file.read_text() == f"# Task n\n\nDo it\n\n{section}\n"
    lost = prompts.first_message(Prompt.TASK, assignment, files, fresh=False)
    assert lost == assignment.prompt_file.read_text()
    assert not prompts.first_message(Prompt.CONTINUE, assignment, files, fresh=False).count("# Task")
    write_json(files.session, {"id": "new", "begun": 1, "past": "s"})
    assert prompts.first_message(Prompt.TASK, assignment, files, fresh=False) == "# Task n\n\nDo it\n"
    again = prompts.first_message(Prompt.CONTINUE, assignment, files, fresh=False)
    assert again.startswith("# Task n") and "RESUMPTION CONTEXT" in again
    assignment.prompt_file.write_text("only the task")  # as a pipeline run without a garrison writes it
    files.session.unlink()
    assert prompts.first_message(Prompt.TASK, assignment, files, fresh=False) == f"{section}\n\nonly the task"


# ---- end of a turn: what is refused after a report or a question, and which last words are a question


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
    questions.save_answer(files, read_json(files.question)["id"], "yes")
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


# ---- extensions, permissions and messages


@pytest.mark.parametrize(("text", "found"), [
    ("Read, Bash(git status:*) Edit", ("Read", "Bash(git status:*)", "Edit")),
    ("Bash(npm run a, b),Read", ("Bash(npm run a, b)", "Read")), ("mcp__notes__recall", ("mcp__notes__recall",))])
def test_a_pattern_with_blanks_is_one_value(text: str, found: tuple[str, ...]) -> None:
    assert patterns(text) == found


@pytest.mark.parametrize(("values", "words"), [
    ({"tools": ["Bahs"]}, "there is no tool Bahs; did you mean Bash?"),
    ({"allowed_tools": "mcp__notes__recall"}, "there is no MCP server notes"),
    ({"disallowed_tools": ["Bash(rm"]}, "tools such as Bash"),
    ({"mcp_servers": {"a": {}}}, "either a command or a url"),
    ({"mcp_servers": {"a": {"comand": "x"}}}, "comand is not a setting; did you mean command?"),
    ({"mcp_servers": {"a": 3}}, "mcp_servers.a should be a table with type, command, "),
    ({"subagents": {"a": {"prompt": "x"}}}, "a description"),
    ({"subagents": {"a": {"promt": "x"}}}, "did you mean prompt"),
    ({"hooks": {"PreTol": []}}, "PreTol is not a setting; there are PreToolUse, PostToolUse, "),
    ({"hooks": {"Stop": [{"run": "x"}]}}, "[agents.x.hooks] Stop=[{'run': 'x'}] should be a list of tables with"),
    ({"skills": ["not/there"]}, "existing absolute paths"), ({"thinking": "much"}, "a number of tokens"),
    ({"output_schema": "{"}, "a JSON schema"), ({"attribution": "maybe"}, "true or false"),
    ({"hooks": 3}, "agents.x.hooks should be a table with PreToolUse, ")])
def test_invalid_extensions_are_refused_with_their_place(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_profile(Table("config.toml", values, ("agents", "x")))
    assert re.match(r"config\.toml: (\[agents\.x[].]|agents\.x\.)", str(caught.value))
    assert words in str(caught.value)


def test_extensions_survive_the_job_and_leave_a_validator() -> None:
    server = {"command": "notes"}
    made = from_profile(Table("here", {
        "mcp_servers": {"notes": server}, "allowed_tools": ["Read", "mcp__notes"],
        "hooks": {"Stop": [{"command": "true"}]}, "thinking": 2000}))
    made = made.for_node("n", {"disallowed_tools": "Bash(git push:*)", "attribution": "false"})
    assert from_data(ClaudeSettings, asdict(made)) == made
    assert (made.disallowed_tools, made.attribution) == (("Bash(git push:*)",), False)
    assert made.read_only().mcp_servers == {}
    assert cli_settings(made.hooks, attribution=False)["hooks"] == {
        "Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}
    assert cli_settings(ClaudeSettings().hooks, attribution=True) == {}


@pytest.mark.parametrize(("answer", "first", "second"), [
    ("yes", "", "is asked"), ("Always.", "", ""), ("not in this house", "refused it: not in this house", "is asked")])
def test_a_permission_is_asked_for_once(files: AttemptFiles, answer: str, first: str, second: str) -> None:
    permissions = Permissions(files)
    assert "is asked" in permissions.refuse("Bash", {"command": "rm a"})
    asked = read_json(files.question)
    assert asked["text"] == "May it use Bash rm a? (yes, always, or why not)"
    save_answer(files, asked["id"], answer)
    for command, words in (("rm a", first), ("rm b", second)):
        found = Permissions(files).refuse("Bash", {"command": command})
        assert words in found if words else found == ""


def test_messages_are_delivered_once_and_a_successful_report_must_have_its_output(files: AttemptFiles) -> None:
    assert take(files) == ""
    post(files, "Be quick.", "now")
    post(files, "Be careful.", "now")
    assert take(files).endswith("\n\nBe quick.\n\nBe careful.")
    assert take(files) == ""
    report = report_result(files, {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}})
    with pytest.raises(UsageError, match=r"output.n: 'x' is not of type 'integer'; say it again"):
        report.call(status="success", summary="done", output={"n": "x"})
    report.call(status="success", summary="done", output={"n": 3})
    assert read_json(files.report)["context_updates"] == {"output": {"n": 3}}
