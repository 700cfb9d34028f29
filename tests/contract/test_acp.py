"""ACP agents: reports, questions, deaths, refusals and breaches, with a double that speaks the protocol."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from acp_support import BLOCK, Stage, agent_argv, connections_copied
from garrison.agents.acp.attempt import AcpAgent
from garrison.agents.acp.settings import AcpSettings, from_profile
from garrison.agents.base import WorkResult
from garrison.agents.conversation import messages
from garrison.agents.failover import gives_up
from garrison.records.json_io import read_json, read_lines
from garrison.records.record import from_data
from garrison.tables import Table
from garrison.values import asdict
from support import is_gone, wait_for

HANDED_OVER = "Another session worked on this task and could not be continued"


@pytest.fixture(scope="module", autouse=True)
def _copied() -> Iterator[None]:
    with connections_copied():
        yield


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with closing(Stage(tmp_path)) as one:
        yield one


def _tell(stage: Stage, text: str) -> None:
    messages.post(stage.files, text, "2026-11-23T10:00:00Z")


def test_it_works_and_reports_with_a_block(stage: Stage) -> None:
    """In the model and mode that were chosen; messages of a wrong shape and what follows its turn change nothing."""
    stage.play([{"write": {"made.txt": "made"}}, {"breach": "wrong_shapes"}, {"run": "echo hello"}, {"say": BLOCK},
                {"late": True}], models=["small", "large"], modes=["plan", "full"])
    work = stage.acp(allow=(), model="large", mode="full")
    outcome = stage.finish(work)
    assert outcome == WorkResult("success", report={"status": "success", "notes": "made it"})
    assert (stage.tree / "made.txt").read_text() == "made"
    assert work.session and work.session.startswith("double-")
    assert work.question is None and not stage.files.question.exists() and not stage.files.waiting.exists()
    assert stage.session()["chosen"] == ["full", "large"]
    prompt = stage.prompts()[0]
    assert prompt.startswith("# You work in a garrison") and "Do the task." in prompt and "```garrison-result" in prompt
    shown = (stage.attempt / "output.log").read_text()
    assert "→ execute echo hello" in shown and "← hello" in shown and "session double" in shown
    assert "Traceback" not in shown


def test_a_connection_builds_models_of_the_protocol_when_it_uses_them() -> None:
    code = ("import garrison.agents.acp.connection; from acp import schema; config = schema.BaseModel.model_config; "
            "print(config['defer_build'], config['use_attribute_docstrings'], schema.Plan.__pydantic_complete__)")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False False\n"


def test_a_refused_session_continues_with_the_refusal_once(stage: Stage) -> None:
    """The refusal is the next message of the session; a second one starts a fresh session with the whole task."""
    stage.play([{"say": BLOCK}], [{"say": BLOCK}])
    sessions, agent = [], AcpAgent("double", AcpSettings(argv=agent_argv(stage.script)))
    for number, refusal in enumerate(["", "It was refused.", "It was refused again."], 1):
        refused = stage.next_attempt(number) if number > 1 else None
        work = stage.start(agent, refused=refused, rework=refusal)
        assert stage.finish(work).status == "success", stage.describe()
        sessions.append(str(work.session))
    assert sessions[0] == sessions[1] != sessions[2]
    assert stage.prompts_of(sessions[0])[1].startswith("It was refused.\n\nEnd with your report")
    assert "Do the task." in stage.prompts_of(sessions[2])[0]


def test_it_reports_by_garrisons_mcp_server(stage: Stage) -> None:
    stage.play([{"tool": "update_phase", "with": {"phase": "executing"}},
                {"tool": "save_notes", "with": {"text": "half of it"}},
                {"tool": "report_result", "with": {"status": "failure", "summary": "no compiler",
                                                   "context_updates": {"tests.red": 3}}}])
    outcome = stage.finish(stage.acp())
    assert (outcome.status, outcome.reason) == ("fail", "no compiler")
    assert outcome.report["context_updates"] == {"tests.red": 3}
    assert (stage.reports.phase, stage.reports.notes) == ("executing", "half of it")


def test_it_gets_the_further_mcp_servers_of_its_profile_unless_it_only_judges(stage: Stage, tmp_path: Path) -> None:
    """One to start, with its variables, and one by url, which not every agent can call."""
    program = tmp_path / "server.py"
    program.write_text("import json, os, sys\nfor line in sys.stdin:\n    pass\n"
                       "print(json.dumps({'result': sys.argv[1] + os.environ['WORD']}))\n")
    servers = {"words": {"command": sys.executable, "args": [str(program), "said "], "env": {"WORD": "this"}},
               "far": {"url": "http://127.0.0.1:9/mcp", "type": "http", "headers": {"X-Key": "k"}}}
    turn = [*({"tool": "look", "with": {}, "server": name} for name in servers), {"say": BLOCK}]
    stage.play(turn, http=True)
    settings = from_profile(Table("here", {"argv": list(agent_argv(stage.script)), "mcp_servers": servers}))
    assert stage.finish(stage.start(AcpAgent("double", settings))).status == "success"
    shown = (stage.attempt / "output.log").read_text()
    assert 'look: "said this"' in shown and '"url": "http://127.0.0.1:9/mcp"' in shown and '"X-Key"' in shown
    assert from_data(AcpSettings, asdict(settings)) == settings and not settings.read_only().mcp_servers
    stage.next_attempt(2)
    stage.play(turn)
    refused = stage.start(AcpAgent("double", settings))
    wait_for("it is refused", lambda: stage.poll(refused) or stage.files.read_endings())
    assert "it does not support MCP servers over http (mcp_servers.far)" in stage.files.read_endings()[-1].reason


def test_an_agent_that_never_reports_is_asked_once_then_judged_by_its_work(stage: Stage) -> None:
    stage.play([{"say": "I think I am done."}])
    outcome = stage.finish(stage.acp())
    assert outcome == WorkResult("success", report={"notes": "I think I am done."})
    assert stage.endings() == ["silent", "silent"]
    assert stage.prompts()[1].startswith("You ended your turn without a report.")


def test_an_agent_whose_last_words_say_that_it_could_not_asks(stage: Stage) -> None:
    """Without a report, and asked for one in vain, it is not taken to have succeeded."""
    stage.play([{"say": "I could not install the compiler."}], [{"say": "As I said."}], [{"say": BLOCK}])
    work = stage.acp()
    stage.until(work, lambda: work.question is not None and work.process() is None)
    assert work.question is not None and "I could not install the compiler." in work.question.text
    work.answer(work.question.id, "Leave it out.")
    assert stage.finish(work).status == "success" and "Leave it out." in stage.prompts()[2]


def test_a_result_block_that_stays_invalid_fails(stage: Stage) -> None:
    """It learns why; work whose agent reported something unreadable does not count as successful."""
    stage.play([{"say": BLOCK.replace("{", "{{")}], [{"say": "I have said it."}])
    outcome = stage.finish(stage.acp())
    assert (outcome.status, outcome.reason.partition(": ")[0]) == ("fail", "it was warned, and made no valid report")
    assert stage.prompts()[1].startswith("You ended your turn without a report (its result block is invalid: ")


def test_an_agent_in_a_loop_is_warned_once_and_then_leads_to_a_question(stage: Stage) -> None:
    turn = [{"run": f"sleep 0.05; ls  # look {word}"} for word in ("here", "there", "again") * 15]
    stage.play(turn, [{**step, "at_end": True} for step in turn], [{"say": BLOCK}])
    work = stage.acp()
    stage.until(work, lambda: work.question is not None and work.process() is None)
    assert work.question is not None and "it repeats itself despite a warning: its last" in work.question.text
    assert stage.prompts()[1].startswith("You were interrupted because you are going round: its last")
    work.answer(work.question.id, "Stop looking.")
    assert stage.finish(work).status == "success" and "Stop looking." in stage.prompts()[2]
    assert stage.endings() == ["loop", "question", "reported"]


def test_a_question_by_the_tool_waits_without_a_process_and_the_answer_is_the_next_prompt(stage: Stage) -> None:
    """Together with what the user has said since."""
    stage.play([{"tool": "ask_guardian", "with": {"question": "Which colour?"}}], [{"say": BLOCK}])
    work = stage.acp()
    stage.until(work, lambda: bool(work.question) and work.process() is None)
    assert work.question is not None and work.question.text == "Which colour?"
    _tell(stage, "Hurry.")
    work.answer(work.question.id, "Blue.")
    assert stage.finish(work).status == "success"
    assert stage.prompts()[1].startswith("You asked: Which colour?") and "Blue." in stage.prompts()[1]
    assert f"{messages.HEADING}\n\nHurry." in stage.prompts()[1]
    assert stage.sessions() == 1


def test_what_the_profile_does_not_allow_is_a_question_while_the_agent_waits(stage: Stage) -> None:
    stage.play([{"ask": "read"}, {"ask": "execute", "title": "rm -rf build"}, {"ask": "fetch"}, {"say": BLOCK}])
    work = stage.acp(allow=("read",), deny=("fetch",))
    stage.until(work, lambda: work.question is not None and stage.files.waiting.exists())
    assert work.question is not None and "May it: rm -rf build?" in work.question.text
    assert stage.files.waiting.read_text().startswith("for an answer: May it")
    work.answer(work.question.id, "yes, always")
    assert stage.finish(work).status == "success"
    shown = (stage.attempt / "output.log").read_text()
    assert [line for line in shown.splitlines() if line.startswith("leave:")] == [
        "leave: yes", "leave: always", "leave: no"]
    assert work.question is None and not stage.files.waiting.exists()


@pytest.mark.parametrize(("how", "count"), [
    ({"load": True}, 1), pytest.param({"load": False, "resume": True}, 1, marks=pytest.mark.slow),
    ({"load": False}, 2), pytest.param({"resume_error": "no such thing"}, 2, marks=pytest.mark.slow)])
def test_a_killed_agent_is_resumed_in_its_session_or_hands_over(stage: Stage, how: dict[str, Any], count: int) -> None:
    stage.play([{"write": {"a": "1"}}, {"run": "true"}, {"die": 9}], [{"say": BLOCK}], **how)
    if count == 2:
        stage.play([{"write": {"a": "1"}}, {"run": f"test -e {stage.folder}/second || touch {stage.folder}/second"},
                    {"await": str(stage.folder / "go")}, {"say": BLOCK}], **how)
    _tell(stage, "Hurry.")
    first = stage.acp()
    if count == 2:
        stage.until(first, (stage.folder / "second").exists)
        os.kill(agent_pid(stage), signal.SIGKILL)
        (stage.folder / "go").touch()
    died = stage.finish(first)
    assert died.killed and died.reason == "the agent's program was killed (exit code -9)"
    session = first.session
    assert "Hurry." in stage.prompts()[0]
    second = stage.acp()
    assert stage.finish(second).status == "success", stage.describe()
    assert stage.sessions() == count and (second.session == session) == (count == 1)
    if count == 1:
        assert "This session was interrupted because its process died" in stage.prompts()[1]
    else:
        assert stage.endings() == ["crash", "reported"], "the program that lacks the session opens another one"
        told = stage.prompts_of(str(second.session))[0]
        assert "Do the task." in told and HANDED_OVER in told and "Hurry." in told, "it gets everything again"
        shown = (stage.attempt / "output.log").read_text()
        assert "continue" in shown and "; starting a new one" in shown
        assert [line["kind"] for line in read_lines(stage.files.prompts)] == ["task", "continue", "hand_over"]


def test_a_limit_at_which_a_session_is_resumed_does_not_lose_it(stage: Stage) -> None:
    said = "API Error: 429 rate limit reached, try again in 2 hours"
    stage.play([{"run": "true"}, {"die": 9}], [{"say": BLOCK}], load=True, resume_error=said)
    assert stage.finish(stage.acp()).killed
    work = stage.acp()
    stage.until(work, stage.files.waiting.exists)
    assert (stage.endings(), stage.sessions()) == (["crash", "rate_limit"], 1)
    work.stop(0.0)


def test_a_session_in_place_of_a_lost_one_keeps_the_hand_over_if_it_dies_before_it_answers(stage: Stage) -> None:
    stage.play([{"run": "true"}, {"die": 9}])
    assert stage.finish(stage.acp()).killed
    stage.play([{"die": 9}], [{"say": BLOCK}], resume_error="no such thing")
    second = stage.acp()
    assert stage.finish(second).killed
    stage.play([{"die": 9}], [{"say": BLOCK}])
    third = stage.acp()
    assert stage.finish(third).status == "success" and third.session == second.session
    for told in stage.prompts_of(str(third.session)):
        assert "Do the task." in told and HANDED_OVER in told


def test_a_program_that_opens_no_new_session_either_is_restarted(stage: Stage) -> None:
    stage.play([{"run": "true"}, {"die": 9}])
    assert stage.finish(stage.acp()).killed
    stage.play([{"say": BLOCK}], resume_error="no such thing", sulks=True)
    third = stage.acp()
    assert stage.finish(third).status == "success"
    assert stage.endings() == ["crash", "unknown_session", "reported"]
    assert HANDED_OVER in stage.prompts_of(str(third.session))[0]


def agent_pid(stage: Stage) -> int:
    return int(read_json(stage.files.process)["pid"])


def test_a_session_whose_agent_died_before_it_answered_gets_the_task_again(stage: Stage) -> None:
    """It may have died between the session's beginning and the prompt's arrival."""
    stage.play([{"die": 9}], [{"say": BLOCK}])
    assert stage.finish(stage.acp()).killed
    assert stage.finish(stage.acp()).status == "success"
    first, second = stage.prompts()
    assert "Do the task." in first and "Do the task." in second
    assert "could not be continued" not in second, "it is the same session, which nothing was done in"


def test_an_adapter_that_is_stopped_or_killed_ends_its_agent_and_the_session_continues(stage: Stage) -> None:
    stage.play(*([{"run": f"touch {stage.folder}/{how}"}, {"await": str(stage.folder / "never")}]
                 for how in ("stop", "kill")), [{"say": BLOCK}])
    for how in ("stop", "kill"):
        work = stage.acp()
        stage.until(work, (stage.folder / how).exists)
        agent, process = agent_pid(stage), work.process()
        assert process is not None
        if how == "stop":
            work.stop(time.monotonic())
            assert stage.finish(work) == WorkResult("fail", "stopped")
        else:
            os.kill(process[0], signal.SIGKILL)
            died = stage.finish(work)
            assert died.killed and died.reason == "the session's process was killed"
        assert is_gone(agent)
    last = stage.acp()
    assert stage.finish(last).status == "success"
    assert stage.sessions() == 1 and last.session == work.session


def test_an_answer_that_came_while_the_agent_was_dead_reaches_its_successor(stage: Stage) -> None:
    ask = [{"ask": "execute", "title": "deploy"}, {"say": BLOCK}]
    stage.play(ask)
    first = stage.acp(allow=())
    stage.until(first, lambda: first.question is not None)
    question = first.question.id
    os.kill(agent_pid(stage), signal.SIGKILL)
    assert stage.finish(first).killed
    second = stage.acp(allow=())
    second.answer(question, "no")
    assert stage.finish(second).status == "success"
    assert "leave: no" in (stage.attempt / "output.log").read_text()


@pytest.mark.parametrize(("error", "kind", "waits"), [
    ([-32603, "unexpected status 429 Too Many Requests"], "rate_limit", "until "),
    ([-32000, "Authentication required"], "authentication", "for you: agent double: the key or log-in was"),
    pytest.param([-32603, "last status: 402 garrison: budget used up"], "budget",
                 "for you: agent double: the budget", marks=pytest.mark.slow)])
def test_limits_and_refusals_are_waiting_states(stage: Stage, error: list[Any], kind: str, waits: str) -> None:
    stage.play([{"error": error}], [{"say": BLOCK}])
    work = stage.acp()
    stage.until(work, lambda: stage.files.waiting.exists() and work.process() is None)
    assert stage.endings() == [kind]
    assert stage.files.waiting.read_text().startswith(waits)
    assert work.wake_at() is not None or work.question is not None


def test_an_agent_that_wants_a_log_in_is_parked_and_its_method_can_be_named(stage: Stage) -> None:
    stage.play([{"say": BLOCK}], auth=True)
    work = stage.acp()
    stage.until(work, lambda: work.question is not None)
    assert stage.endings() == ["authentication"]
    work.stop(time.monotonic())
    stage.finish(work)
    assert stage.finish(stage.acp(auth="key")).status == "success"


@pytest.mark.parametrize(("settings", "reason"), [
    ({"model": "huge"}, "invalid: it has no model 'huge'; there are small, large"),
    ({"mode": "free"}, "invalid: it has no mode 'free'; it offers none")])
def test_a_model_or_mode_that_the_agent_lacks_ends_it(stage: Stage, settings: dict[str, Any], reason: str) -> None:
    stage.play([{"say": BLOCK}], models=["small", "large"])
    assert stage.finish(stage.acp(**settings)) == WorkResult("fail", reason)


@pytest.mark.parametrize(("step", "script", "reasons"), [
    ({"breach": "garbage"}, {}, ("51 lines that are not messages, the last: WARN this is line 50 of no protocol",)),
    ({"breach": "unknown_answers"}, {}, ("51 lines that are not messages, the",)),
    ({"breach": "huge_line"}, {}, ("a line of more than 16 MiB",)),
    pytest.param({"breach": "unknown_requests"}, {}, ("500 requests in a row that had to be refused, the last: ",),
                 marks=pytest.mark.slow),
    *((step, {}, ("500 permission requests in a row", "more than 64 requests at one time"))
      for step in ({"ask": "execute", "times": 1000}, {"breach": "flood"})),
    ({"say": BLOCK}, {"breach": "garbage"}, ("51 lines that are not messages",)),
    *(({"say": BLOCK}, {"answers": {method: answer}}, (f"its answer to {method} is invalid",))
      for method, answer in (("initialize", None), ("session/new", {"session": "x"}), ("session/prompt", [1])))])
def test_an_agent_that_breaks_the_protocol_ends_with_one_reason(stage: Stage, step: dict[str, Any],
                                                                script: dict[str, Any], reasons: Sequence[str]) -> None:
    """In its turn, at its greeting, or by an answer of the wrong shape."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    stage.play([step, {"say": BLOCK}], **script)
    outcome = stage.finish(stage.acp())
    assert outcome.status == "fail" and not outcome.killed
    said = outcome.reason.removeprefix("protocol: the agent breaks the protocol: ")
    assert said != outcome.reason and any(reason in said for reason in reasons), outcome.reason
    assert "\n" not in outcome.reason and stage.endings() == ["protocol"]
    assert "Traceback" not in (stage.attempt / "output.log").read_text()
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # A child of an earlier test may have used more, and each starts with what this process itself has at the fork.
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert used <= max(400 << 10, before, ours), f"{used} KiB"


def test_an_agent_that_asks_after_a_silent_turn_is_asked_for_its_report(stage: Stage) -> None:
    """A block that the program says of another session's id is none of this one."""
    stage.play([{"other": BLOCK}, {"say": "Done."}, {"late": True}], [{"say": BLOCK}])
    assert stage.finish(stage.acp(allow=())).status == "success"
    assert stage.endings() == ["silent", "reported"]


def test_an_exit_in_the_middle_of_a_turn_is_a_death_and_another_agent_may_take_over_after_three(stage: Stage) -> None:
    stage.play([{"exit": 3}])
    for count in (1, 2, 3):
        work = stage.acp()
        outcome = stage.finish(work)
        assert outcome.killed and "exit code 3" in outcome.reason
        trouble = work.trouble
        assert (trouble is not None and gives_up(trouble, 300.0)) is (count == 3)


@pytest.mark.slow
def test_a_session_that_is_always_refused_ends(stage: Stage) -> None:
    stage.play([{"tool": "ask_guardian", "with": {"question": "And now?"}}], load=False)
    work = stage.acp()
    for _ in range(20):
        stage.until(work, lambda: work.question is not None or work.outcome is not None)
        if work.outcome is not None:
            break
        work.answer(work.question.id, "go on")
        answered = work.question.id
        stage.until(work, lambda answered=answered: work.outcome is not None or (
            work.question is not None and work.question.id != answered))
    assert work.outcome.reason == "its session was lost 6 times: the agent cannot continue a session"


def test_another_version_of_the_protocol_is_named(stage: Stage) -> None:
    stage.play([{"say": BLOCK}], version=7)
    assert stage.finish(stage.acp()).reason.endswith("version 7 of the protocol; garrison speaks 1")


def test_a_user_message_is_a_prompt_after_the_turn_and_sets_its_report_aside(stage: Stage) -> None:
    report = {"tool": "report_result", "with": {"status": "success", "summary": "too early"}}
    stage.play([{"run": f"touch {stage.folder}/here"}, {"await": str(stage.folder / "go")}, report],
               [{"say": BLOCK}])
    work = stage.acp()
    stage.until(work, (stage.folder / "here").exists)
    _tell(stage, "Leave the API alone.")
    _tell(stage, "And be quick.")
    (stage.folder / "go").touch()
    outcome = stage.finish(work)
    assert outcome.report["notes"] == "made it", "what it says once it knows"
    told = stage.prompts()[1]
    assert told.startswith(f"{messages.HEADING}\n\nLeave the API alone.\n\nAnd be quick.\n"), told
    assert "What you reported is set aside." in told and len(stage.prompts()) == 2
    assert stage.endings() == ["reported"] and messages.pending(stage.files) is None


def test_a_user_message_survives_kills_before_the_agent_has_answered(stage: Stage) -> None:
    """The prompt may not have arrived: it is said again, and once the agent has answered, not any more."""
    here, go = stage.folder / "here", stage.folder / "go"
    hang = [{"await": str(stage.folder / "never")}]
    stage.play([{"run": f"touch {here}"}, {"await": str(go)}, {"say": BLOCK}], hang, hang,
               [{"run": "true"}, {"die": 9}], [{"say": BLOCK}])
    work = stage.acp()
    stage.until(work, here.exists)
    _tell(stage, "Hurry.")
    go.touch()
    for count, who in ((2, "agent"), (3, "adapter")):
        stage.until(work, lambda count=count: len(stage.prompts()) == count)
        victim = work.process() if who == "adapter" else (agent_pid(stage), 0)
        os.kill(victim[0], signal.SIGKILL)
        assert stage.finish(work).killed
        assert messages.pending(stage.files) is not None
        work = stage.acp()
    assert stage.finish(work).killed
    assert all("Hurry." in told for told in stage.prompts()[1:]) and messages.pending(stage.files) is None
    assert stage.finish(stage.acp()).status == "success"
    assert "Hurry." not in stage.prompts()[4]


def test_a_report_that_no_connection_has_taken_waits_for_a_user_message(stage: Stage) -> None:
    """The adapter is killed after the report and before the turn's end; then the user says something."""
    stage.play([{"tool": "report_result", "with": {"status": "success", "summary": "too early"}},
                {"run": f"touch {stage.folder}/here"}, {"await": str(stage.folder / "never")}], [{"say": BLOCK}])
    first = stage.acp()
    stage.until(first, (stage.folder / "here").exists)
    process = first.process()
    os.kill(process[0], signal.SIGKILL)
    assert stage.finish(first).killed
    _tell(stage, "Hurry.")
    assert stage.finish(stage.acp()).report["notes"] == "made it"
    assert "Hurry." in stage.prompts()[1]
