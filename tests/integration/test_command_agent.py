"""The command and scripted agents with real programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from garrison.agents.base import Assignment, Work, WorkResult
from garrison.agents.command import CommandAgent, CommandAttempt
from garrison.agents.command_profile import CommandProfile
from garrison.agents.registry import agent
from garrison.agents.scripted import SCRIPTED
from garrison.agents.success_rule import SuccessRule
from garrison.errors import GarrisonError, Refused
from garrison.records.run import Task
from garrison.values import replace
from support import git, is_gone, processes, until, wait_for


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    for name in ("tree", "folder"):
        (tmp_path / name).mkdir()
    made = Assignment(Task("r1", "a", 2), tmp_path / "tree", tmp_path / "folder",
                      {"PATH": os.environ["PATH"], "GARRISON_LIFE": f"{tmp_path}:r1:orchestrator-a#1", "SEEN": "yes"})
    made.prompt_file.write_text("the prompt; with 'quotes' and $VARS\nand lines")
    return made


def with_command(assignment: Assignment, command: str, timeout_s: float | None = None) -> Assignment:
    return replace(assignment, task=replace(assignment.task, command=command, timeout_s=timeout_s))


def finish(work: Work) -> WorkResult:
    return until(lambda: work.poll(time.monotonic()))


def run(profile: CommandProfile | None, assignment: Assignment) -> WorkResult:
    made = CommandAgent(profile) if profile else CommandAgent()
    return finish(made.start(assignment, time.monotonic()))


@pytest.mark.smoke
def test_a_nodes_command_runs_in_its_tree_with_its_environment_and_nothing_else(assignment: Assignment) -> None:
    command = "pwd; echo \"$SEEN\"; cat \"$GARRISON_PROMPT_FILE\" > copy; env | cut -d= -f1 | sort > names"
    assert run(None, with_command(assignment, command)) == WorkResult("success", "", 0)
    assert assignment.output.read_text() == f"{assignment.worktree}\nyes\n"
    assert (assignment.worktree / "copy").read_text() == assignment.prompt_file.read_text()
    names = set((assignment.worktree / "names").read_text().split())
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        "PATH", "SEEN", "GARRISON_LIFE", "GARRISON_PROMPT_FILE", "GARRISON_RESULT_FILE", "GARRISON_NOTES_FILE",
        "GARRISON_CONTEXT_FILE"}


def test_a_missing_command_or_program_is_reported_in_one_line(assignment: Assignment) -> None:
    with pytest.raises(Refused, match="node a has no command="):
        CommandAgent().start(assignment, 0.0)
    with pytest.raises(GarrisonError, match=r"cannot start no-such-program in .*: No such file or directory") as caught:
        CommandAgent(CommandProfile("p", ("no-such-program", "{node}"))).start(assignment, 0.0)
    assert "\n" not in str(caught.value)


def test_a_profile_passes_its_arguments_unchanged(assignment: Assignment) -> None:
    show = "import sys, json; json.dump(sys.argv[1:], open('argv', 'w'))"
    profile = CommandProfile("p", (sys.executable, "-c", show, "{prompt}", "{node}@{attempt}", "{x}", "$HOME", "a b"))
    assert run(profile, assignment).status == "success"
    given = json.loads((assignment.worktree / "argv").read_text())
    assert given == [assignment.prompt_file.read_text(), "a@2", "{x}", "$HOME", "a b"]


def test_a_failure_shows_its_last_lines(assignment: Assignment) -> None:
    outcome = run(None, with_command(assignment, "echo 1; echo 2; echo 3; echo last >&2; exit 3"))
    assert outcome == WorkResult(
        "fail", "command `echo 1; echo 2; echo 3; echo last >&2; exit 3` failed (exit 3): last\n2\n3\nlast", 3)
    assert run(None, with_command(assignment, "no-such-program-anywhere")).exit_code == 127


@pytest.mark.parametrize(("timeout", "ends", "reason"), [
    (0.5, "sleep 600", "` timed out after "), (None, "exit 0", "")])
def test_the_end_or_timeout_of_a_command_ends_its_children(assignment: Assignment, timeout: float | None, ends: str,
                                                   reason: str) -> None:
    outcome = run(None, with_command(assignment, f"sleep 600 & echo $! > below; {ends}", timeout))
    assert outcome.status == ("fail" if timeout else "success") and reason in outcome.reason
    assert is_gone(int((assignment.worktree / "below").read_text()))


def test_stop_ends_it(assignment: Assignment) -> None:
    work = CommandAgent().start(with_command(assignment, "echo up; sleep 600"), time.monotonic())
    process = work.process()
    assert process[0] > 0 and not is_gone(process[0]) and work.wake_at() is None
    work.stop(time.monotonic())
    assert work.wake_at() is not None
    assert finish(work).status == "fail" and is_gone(process[0])


@pytest.mark.parametrize(("says", "code", "status"), [
    ('{"status": "success"}', 0, "success"), ('{"status": "success"}', 1, "fail"),
    ('{"status": "fail", "reason": "tired"}', 0, "fail"), ("", 0, "fail")])
def test_a_program_that_writes_its_own_result(assignment: Assignment, says: str, code: int, status: str) -> None:
    profile = CommandProfile("p", ("sh", "-c", f"printf '%s' '{says}' > \"$GARRISON_RESULT_FILE\"; exit {code}"), (),
                      "result_file")
    assert run(profile, assignment).status == status


def test_a_result_of_an_earlier_incarnation_does_not_count(assignment: Assignment) -> None:
    assignment.exchange.mkdir(parents=True)
    assignment.result_file.write_text('{"status": "success"}')
    assert run(CommandProfile("p", ("true",), (), "result_file"), assignment).status == "fail"


# ---------------------------------------------------------------------------------------------------- scripted


def scripted(assignment: Assignment, script: str, life: int = 1, **environment: str) -> tuple[WorkResult, str]:
    subprocess.run(["git", "init", "-q", assignment.worktree], check=True)
    (assignment.folder / "a.yaml").write_text(script)
    values: Mapping[str, str] = {**assignment.environment, "GARRISON_SCRIPTS": str(assignment.folder),
                                 "GARRISON_INCARNATION": str(life), "HOME": str(assignment.folder), **environment}
    outcome = run(SCRIPTED, replace(assignment, environment=values))
    return outcome, assignment.output.read_text()


def test_a_script_works_commits_and_reports_no_failure(assignment: Assignment) -> None:
    script = ("- edit: {path: x.txt, text: 'for {node}'}\n- commit: Add x for {node}\n- commit: nothing\n"
              "- notes: half\n- run: echo hi > y\n")
    outcome, said = scripted(assignment, script)
    assert outcome == WorkResult("success", "", 0) and "scripted agent (not a real one) for a, incarnation 1" in said
    assert (assignment.worktree / "x.txt").read_text() == "for a" and (assignment.worktree / "y").exists()
    assert git(assignment.worktree, "log", "--format=%s|%an") == "Add x for a|scripted"
    assert agent("scripted", assignment.folder).name == "scripted" and SCRIPTED.argv[0] == sys.executable
    assert assignment.notes.read_text() == "half"


def test_a_script_may_fail_or_crash_in_one_incarnation_only(assignment: Assignment) -> None:
    script = "- {life: 1, crash: me}\n- {life: 2, exit: 4}\n- print: third\n"
    assert scripted(assignment, script)[0].exit_code == -9
    assert scripted(assignment, script, 2)[0].exit_code == 4
    outcome, said = scripted(assignment, script, 3)
    assert outcome.status == "success" and said.endswith("third\n")


def next_incarnation(assignment: Assignment) -> Assignment:
    return replace(assignment, incarnation=assignment.incarnation + 1)


@pytest.mark.parametrize("code", [0, 3, 200])
def test_a_command_that_had_ended_is_not_repeated_by_a_successor(assignment: Assignment, code: int) -> None:
    """Its orchestrator died before it wrote the result: exit code, output and report are those of the command."""
    command = f"echo ran; echo ran >> ledger; echo '{{\"notes\": \"n\"}}' > \"$GARRISON_RESULT_FILE\"; exit {code}"
    made = with_command(assignment, command)
    first = run(None, made)
    again = run(None, next_incarnation(made))
    assert again == first and (first.exit_code, first.report.get("notes")) == (code, "n")
    assert (made.worktree / "ledger").read_text() == "ran\n" == made.output.read_text()
    run(None, made)
    assert (made.worktree / "ledger").read_text() == "ran\n" * 2, "its own code is not an earlier incarnation's"
    for other in (replace(made, incarnation=2, task=replace(made.task, attempt=3)), next_incarnation(made)):
        work = CommandAgent().start(other, time.monotonic())
        finish(work)
        work.forget()
    assert (made.worktree / "ledger").read_text() == "ran\n" * 4, "another attempt repeats, and what was forgotten"


@pytest.mark.parametrize("ending", ["kill -KILL $$", "kill -TERM $$", "exit 143"])
def test_a_command_that_a_signal_ended_is_repeated(assignment: Assignment, ending: str) -> None:
    made = with_command(assignment, f"echo ran >> ledger; {ending}")
    assert run(None, made).killed and run(None, next_incarnation(made)).killed
    assert (made.worktree / "ledger").read_text() == "ran\n" * 2


def test_an_exit_code_after_the_death_of_the_orchestrator_is_not_recorded(assignment: Assignment) -> None:
    """A program that exits with 0 or 1 when it is terminated, while all that the dead one left is being killed."""
    script = ("import sys, time; from pathlib import Path; from garrison.agents.base import Assignment; "
              "from garrison.agents.command import CommandAgent; from garrison.records.run import Task; "
              f"p = Path({str(assignment.folder)!r}); c = 'touch at-work; while test ! -e end; do sleep 0.05; done'; "
              f"CommandAgent().start(Assignment(Task('r1', 'a', 2, command=c), Path({str(assignment.worktree)!r}), p, "
              f"{dict(assignment.environment)!r}), time.monotonic()); time.sleep(600)")
    orchestrator = subprocess.Popen([sys.executable, "-c", script])
    wait_for("the command is at work", (assignment.worktree / "at-work").exists)
    orchestrator.kill()
    orchestrator.wait()
    (assignment.worktree / "end").touch()
    wait_for("the command ends", lambda: not [*processes(str(assignment.exit_file))])
    assert not assignment.exit_file.exists()


# ---------------------------------------------------------------------------------------------------- streams


def prints(*lines: object, then: str = "") -> str:
    return "".join(f"printf '%s\\n' '{json.dumps(line)}'; " for line in lines) + then


BEGUN = {"type": "thread.started", "thread_id": "t-1"}
ENDED = ({"type": "item.completed", "item": {"type": "agent_message", "text": "made it"}}, {"type": "turn.completed"})


def streaming(argv: str, resume: str) -> CommandProfile:
    return CommandProfile("p", ("sh", "-c", argv), stream="codex", resume_argv=("sh", "-c", resume, "sh", "{session}"))


def test_a_successor_resumes_the_session_of_its_predecessors_stream(assignment: Assignment) -> None:
    profile = streaming(prints(BEGUN, then="kill -9 $$"), prints(BEGUN, *ENDED, then='test "$1" = t-1'))
    assert run(profile, assignment).killed
    work = CommandAgent(profile).start(replace(assignment, incarnation=2), time.monotonic())
    assert work.session == "t-1"
    assert finish(work) == WorkResult("success", "", 0, report={"notes": "made it"})
    shown = assignment.output.read_text()
    assert shown.count("begun,") == 1 and shown.count("resumed,") == 1 and "made it" in shown


def test_a_session_that_cannot_be_resumed_is_replaced_by_a_new_one(assignment: Assignment) -> None:
    profile = streaming(prints(BEGUN, *ENDED, then="test -e died && exit; touch died; kill -9 $$"),
                        "echo no such session >&2; exit 1")
    assert run(profile, assignment).killed
    assert run(profile, replace(assignment, incarnation=2)).status == "success"
    assert "no such session\n── its session could not be resumed; starting a new one\n" in assignment.output.read_text()


def test_a_program_in_a_loop_is_warned_once_and_then_the_user_is_asked(assignment: Assignment) -> None:
    """Its stream repeats one call for ever. Each later prompt has the warning; the last one has the user's answer."""
    item = {"id": "i", "type": "command_execution", "command": "ls", "aggregated_output": "calc.py"}
    looks = prints(BEGUN, *({"type": kind, "item": item} for kind in ("item.started", "item.completed")))
    ends = prints(BEGUN, *ENDED, then="exit")
    script = f"case $1 in *'Stop looking.'*) {ends};; esac; while :; do {looks} sleep 0.02; done"
    profile = CommandProfile("p", ("sh", "-c", script, "sh", "{prompt}"), stream="codex")
    work = CommandAgent(profile).start(assignment, time.monotonic())

    def asks() -> bool:
        assert work.poll(time.monotonic()) is None
        return work.question is not None

    wait_for("the user is asked", asks)
    assert work.question is not None and work.process() is None
    assert "it repeats itself despite a warning: its last 11 calls brought nothing new" in work.question.text
    assert "You were interrupted because you are going round" in assignment.read_prompt()
    assert assignment.output.read_text().count("→ command_execution ls") < 2 * 25
    work.answer(work.question.id, "Stop looking.")
    assert finish(work) == WorkResult("success", "", 0, report={"notes": "made it"})


def test_a_failed_turn_and_a_rule_of_success_name_the_reason(assignment: Assignment) -> None:
    failed = prints(BEGUN, {"type": "turn.failed", "error": {"message": "no such model"}})
    assert run(streaming(failed, "{session}"), assignment).reason == "agent p failed: no such model"
    judged = CommandProfile("p", ("sh", "-c", "echo '{\"ok\": false}'; exit 2"),
                            rule=SuccessRule((0, 2), json="ok == true"))
    assert run(judged, assignment) == WorkResult(
        "fail", "agent p: success.json asks for ok == true, but ok is false", 2)
    assert run(replace(judged, rule=SuccessRule((0, 2))), assignment) == WorkResult("success", "", 2)
    assert run(replace(judged, rule=SuccessRule((1,))), assignment).reason.startswith("agent p failed (exit 2)")


@pytest.mark.parametrize(("block", "status", "reason"), [
    ('{"status": "success", "summary": "tests pass"}', "success", ""),
    ('{"status": "failure", "summary": "no such file"}', "fail", "no such file"),
    ('{"summary": "done"}', "fail", "agent p: its result block has no status"),
])
def test_a_block_at_the_end_of_the_last_message_is_a_report(
        assignment: Assignment, block: str, status: str, reason: str) -> None:
    said = {"type": "item.completed", "item": {"type": "agent_message", "text":
                                               f"I looked.\n```garrison-result\n{block}\n```"}}
    (assignment.worktree / "lines").write_text(f"{json.dumps(BEGUN)}\n{json.dumps(said)}\n")
    outcome = run(CommandProfile("p", ("cat", "lines"), stream="codex"), assignment)
    assert (outcome.status, outcome.reason[:len(reason) or None]) == (status, reason)
    assert status == "fail" or outcome.report == {"status": "success", "notes": "tests pass"}


def test_the_prompt_on_standard_input_cannot_be_written(assignment: Assignment) -> None:
    profile = CommandProfile("p", ("sh", "-c", "cat > fed; (echo mine > /proc/self/fd/0) && exit 3; exit 0"),
                             stdin="prompt")
    assert run(profile, assignment).status == "success"
    assert (assignment.worktree / "fed").read_text() == assignment.prompt_file.read_text()


@pytest.mark.parametrize("as_command", [True, False])
def test_a_program_that_comes_back_before_its_absence_is_judged_is_waited_for(assignment: Assignment, *,
                                                                              as_command: bool) -> None:
    tool = assignment.folder / "agent-tool"
    given = replace(assignment, environment={**assignment.environment, "PATH": f"{tool.parent}:/usr/bin:/bin"},
                    programs=("agent-tool",))
    wall = time.time()
    profile = None if as_command else CommandProfile("p", ("agent-tool",))
    agent = CommandAgent(profile) if profile else CommandAgent()
    work = CommandAttempt(agent, with_command(given, "agent-tool") if as_command else given, time.monotonic(),
                          wall=lambda: wall)

    def waits() -> bool:
        assert work.poll(time.monotonic()) is None, work.outcome
        return work.program is None

    wait_for("the first absence is judged", waits)
    for _ in range(2):
        tool.unlink(missing_ok=True)
        wall = work.decision.until + 1
        assert work.poll(time.monotonic()) is None
        assert work.program is not None, "the wait is over, and a run was tried"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        wait_for("its absence is judged again", waits)
    wall = work.decision.until + 1
    assert finish(work).status == "success"
