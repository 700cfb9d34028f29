"""Questions and answers that must not be lost, and the CLI that somebody left."""

from __future__ import annotations

import os
import subprocess

from garrison.agents import prompt
from garrison.agents.base import Assignment
from garrison.agents.briefing import Briefing
from garrison.agents.claude.attempt import ClaudeAttempt
from garrison.agents.conversation import holder, prompts, tools
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import Prompt
from garrison.records.json_io import append_line, read_json, read_lines, write_json
from garrison.records.life_lock import LifeLock
from garrison.records.run import Task
from support import DEADLINE, wait_for


def made(folder) -> AttemptFiles:
    files = AttemptFiles(folder)
    files.make()
    return files


def test_resolving_a_failure_does_not_overwrite_an_answer(tmp_path):
    """The agent's question was answered; then the key was refused, and a person said that it is mended."""
    work = ClaudeAttempt.__new__(ClaudeAttempt)
    work.files = made(tmp_path)
    work.answer("1f", "blue")
    work.answer("trouble-3", "it is mended")
    assert read_json(work.files.answer) == {"id": "1f", "text": "blue"}
    assert read_json(work.files.lifted)["id"] == "trouble-3"


def test_two_questions_in_one_turn_are_both_asked(tmp_path):
    files = made(tmp_path)
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


def test_an_orphaned_cli_gets_time_to_save_its_transcript(tmp_path):
    """It is told to end before it is killed; once it is gone, nothing is known of it."""
    files = made(tmp_path)
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


def test_the_holder_of_the_takeover_lock_has_the_session(tmp_path):
    files = made(tmp_path)
    assert holder.person_of(files) is None
    lock = LifeLock.try_acquire(files.takeover)
    assert lock is not None
    assert holder.person_of(files) == holder.Person(), "it has not said who it is yet"
    files.takeover.write_text(f'{{"pid": {os.getpid()}, "ticks": 5, "since": "now"}}')
    found = holder.person_of(files)
    assert found is not None
    assert found.pid == os.getpid()
    assert "held by a person" in found.describe()
    lock.release()
    assert holder.person_of(files) is None, "a file that says so is not a person"


def test_a_session_with_a_parent_is_not_given_the_preamble_again(tmp_path):
    """One that was interrupted may not have heard of its own task: it is told that again."""
    files = made(tmp_path)
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
