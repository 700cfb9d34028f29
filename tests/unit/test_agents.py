"""Agents without processes: argv templates, success rules, errors in the configuration, prompts, scripts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from garrison.agents import prompt, registry, scripted
from garrison.agents.base import Assignment, WorkResult, read_notes
from garrison.agents.briefing import Briefing, LandingTerms, Reporting
from garrison.agents.command import fill_placeholders, outcome_by_exit_code, outcome_of
from garrison.agents.command_profile import SHELL, CommandProfile
from garrison.agents.result import MAX_BYTES, read_report
from garrison.cli.agents import control_graph
from garrison.cli.main import main
from garrison.ends import End
from garrison.errors import UsageError
from garrison.pipeline.outcome import STATUSES
from garrison.records.budget import Limits
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Task
from garrison.records.store import Store
from garrison.values import replace

TASK = Task("r1", "node-a", 2, "Do it", "PRD-7", "Please $do {this}", command='echo "{node}" {tree}; exit 0',
            acceptance="make test", goal="all of it")


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    made = Assignment(TASK, tmp_path / "tree", tmp_path / "folder", {"PATH": "/bin"})
    made.folder.mkdir()
    made.prompt_file.write_text("write {node} and {command} as they are: $x")
    return made


@pytest.mark.parametrize(("word", "filled"), [
    ("plain", "plain"), ("{node}", "node-a"), ("--n={node}:{run}:{attempt}", "--n=node-a:r1:2"), ("{tree}", "TREE"),
    ("{prompt_file}", "FOLDER/prompt.md"), ("{result_file}", "FOLDER/claim.json"),
    ("{prompt}", "write {node} and {command} as they are: $x"),
    ("-p {prompt}", "-p write {node} and {command} as they are: $x"),
    ("{command}", TASK.command), ("x{command}", "x{command}"), ("{other} {} {{node}}", "{other} {} {node-a}"),
    ('{"json": {"a": 1}}', '{"json": {"a": 1}}'), ("$(id) `x` \n *", "$(id) `x` \n *"), ("", "")])
def test_placeholders_are_filled_once(assignment: Assignment, word: str, filled: str) -> None:
    given = fill_placeholders(word, assignment, assignment.folder / "claim.json")
    assert given == filled.replace("FOLDER", str(assignment.folder)).replace("TREE", str(assignment.worktree))


@pytest.mark.parametrize(("result", "outcome"), [
    (End(0, False, 1.0), WorkResult("success", "", 0)),
    (End(3, False, 1.0), WorkResult("fail", "the command failed (exit 3): said", 3)),
    (End(-9, False, 1.0), WorkResult("fail", "the command was killed by SIGKILL: said", -9, killed=True)),
    (End(137, False, 1.0), WorkResult("fail", "the command failed (exit 137): said", 137, killed=True)),
    (End(-11, False, 1.0), WorkResult("fail", "the command was killed by SIGSEGV: said", -11, killed=True)),
    (End(143, False, 1.0), WorkResult("fail", "the command failed (exit 143): said", 143, killed=True)),
    (End(130, False, 1.0), WorkResult("fail", "the command failed (exit 130): said", 130, killed=True)),
    (End(-2, False, 1.0), WorkResult("fail", "the command was killed by SIGINT: said", -2, killed=True)),
    (End(129 + 31, False, 1.0), WorkResult("fail", "the command failed (exit 160): said", 160)),
    (End(-9, True, 61.2), WorkResult("fail", "the command timed out after 61 s: said", -9)),
    (End(-15, True, 61.2), WorkResult("fail", "the command timed out after 61 s: said", -15)),
    (End(0, True, 60.0), WorkResult("fail", "the command timed out after 60 s: said", 0))])
def test_the_rule_exit_zero(result: End, outcome: WorkResult) -> None:
    assert outcome_by_exit_code(result, "said") == outcome
    quiet = replace(outcome, reason=outcome.reason.replace("the command", "command `make`").replace(
        ": said", ": it printed nothing"))
    assert outcome_by_exit_code(result, "", "command `make`") == quiet


RULES = ("exit_zero", "result_file")


def wrote(path: Path, body: Any, code: int, rule: str) -> WorkResult:
    if body is not None:
        path.write_text(body if isinstance(body, str) else json.dumps(body))
    return outcome_of(CommandProfile("p", success=rule), path, End(code, False, 1.0), "printed")


@pytest.mark.parametrize(("body", "code", "status", "reason"), [
    ({"status": "success"}, 0, "success", ""), ({"status": "success"}, 1, "fail", "the command did not report success"),
    ({"status": "fail", "reason": "no idea"}, 0, "fail", "no idea"), ({}, 0, "fail", "the command wrote no status"),
    ({"outcome": "partial_success"}, 0, "success", ""),
    ({"status": "retry"}, 0, "fail", "the command did not report success"),
    ({"status": "needs_review"}, 0, "fail", "unknown outcome 'needs_review'"),
    (["success"], 0, "fail", "its result file is invalid"), (None, 0, "fail", "the command wrote no status"),
    ("{half", 4, "fail", "its result file is invalid")])
def test_the_rule_result_file(tmp_path: Path, body: Any, code: int, status: str, reason: str) -> None:
    outcome = wrote(tmp_path / "claim.json", body, code, "result_file")
    assert outcome.status == status and outcome.reason.startswith(reason) and outcome.exit_code == code


@pytest.mark.parametrize(("body", "code", "status", "reason"), [
    (None, 0, "success", ""), ("", 0, "success", ""), ({"preferred_label": "ship"}, 0, "success", ""),
    ({"preferred_label": "back"}, 3, "fail", "the command failed (exit 3): printed"),
    ({"status": "fail"}, 0, "fail", "it reports fail"),
    ({"status": "RETRY", "reason": "no network"}, 0, "fail", "no network"), ({"outcome": "passed"}, 0, "success", ""),
    ({"status": "blocked"}, 0, "fail",
     f"unknown outcome 'blocked'; write {', '.join(STATUSES)}, or a word that an edge of the node asks for"),
    ("[]", 0, "fail", "its result file is invalid: it is not a JSON object")])
def test_the_rule_exit_zero_with_a_result_file(tmp_path: Path, body: Any, code: int, status: str, reason: str) -> None:
    outcome = wrote(tmp_path / "claim.json", body, code, "exit_zero")
    assert (outcome.status, outcome.reason) == (status, reason)


@pytest.mark.parametrize("rule", RULES)
def test_the_agents_report_is_kept(tmp_path: Path, rule: str) -> None:
    body = {"status": "success", "preferred_next_label": "ship", "suggested_next_ids": ["deploy"], "notes": "",
            "context": {"tests.red": 3}, "unknown": 1}
    assert wrote(tmp_path / "claim.json", body, 0, rule).report == {
        "status": "success", "preferred_label": "ship", "suggested_next_ids": ["deploy"],
        "context_updates": {"tests.red": 3}}


@pytest.mark.parametrize(("body", "wrong"), [
    ({"status": 3}, "status is not a text"), ({"context_updates": [1]}, "context_updates is not an object"),
    ({"preferred_label": 3}, "preferred_label is not a text"), ({"notes": {}}, "notes is not a text"),
    ({"suggested_next_ids": [1]}, "suggested_next_ids is not an array of node ids")])
@pytest.mark.parametrize("rule", RULES)
def test_an_invalid_result_file_is_a_failure_with_its_reason(tmp_path: Path, body: Any, wrong: str, rule: str) -> None:
    outcome = wrote(tmp_path / "claim.json", body, 0, rule)
    assert outcome.status == "fail" and wrong in outcome.reason and not outcome.report


def test_profiles_of_a_home(tmp_path: Path) -> None:
    assert set(registry.profiles(tmp_path)) == {"claude", "command", "scripted"}
    (tmp_path / "config.toml").write_text("""
[agents.aider]
argv = ["aider", "--yes", "--message-file", "{prompt_file}"]
env = ["OPENAI_API_KEY"]
[agents.other]
argv = ["other"]
env = ["B", "OPENAI_API_KEY"]
success = "result_file"
""")
    found = registry.profiles(tmp_path)
    assert set(found) == {"claude", "command", "scripted", "aider", "other"}
    assert found["command"] is SHELL
    assert found["aider"] == CommandProfile("aider", ("aider", "--yes", "--message-file", "{prompt_file}"),
                                     ("OPENAI_API_KEY",), limits=Limits(turns=300))
    assert registry.agent("other", tmp_path).name == "other"
    assert registry.required_variables({"aider", "other", "command"}, tmp_path) == ["B", "OPENAI_API_KEY"]
    known = r"no agent 'x'; there are aider, claude, command, other, scripted \(more in .*config\.toml\)"
    with pytest.raises(UsageError, match=known):
        registry.required_variables({"aider", "x"}, tmp_path)


@pytest.mark.parametrize(("text", "why"), [
    ("[agents", "is not TOML"), ("\udcff\udcfe", "is not TOML"), ("agents = 5", "agents should be a table"),
    ("agents.x = 5", r"config.toml:1: agents.x should be a table with kind, argv, env, success"),
    ("[agents.x]\n", r"config.toml:1: \[agents.x\] argv is missing; name the program to run"),
    ("[agents.x]\nargv = 'prog'", "should be a list of strings"),
    ("[agents.x]\nargv = ['a', 1]", "should be a list of strings"),
    ("[agents.x]\nargv = []", r"config.toml:2: .* argv=\[\] should be a list of strings that starts with the prog"),
    ("[agents.x]\nargv = ['a']\nenv = 'HOME'", r"config.toml:3: \[agents.x\] env='HOME' should be a list of strings"),
    ("[agents.x]\nargv = ['a']\nsuccess = 'maybe'",
     "success='maybe' should be one of exit_zero, result_file, or a table such as"),
    ("[agents.x]\nargv = ['a']\nsuccess = ['exit_zero']", "should be one of exit_zero, result_file")])
def test_configuration_errors_are_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "config.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=why) as caught:
        registry.profiles(tmp_path)
    assert "\n" not in str(caught.value) and "config.toml" in str(caught.value)


def test_the_prompt_is_filled_and_keeps_the_tasks_own_dollar_signs() -> None:
    briefing = Briefing("garrison/r1/node-a", LandingTerms("main", "make $test"), reporting=Reporting.EXIT_CODE,
                        notes_file="notes.txt")
    text = prompt.build(TASK, briefing)
    for part in ("# Task node-a", "Do it", "Please $do {this}", "all of it", "PRD-7", "make test", "make $test",
                 "garrison/r1/node-a"):
        assert part in text
    assert "$node" not in text and "$prompt" not in text and "RESUMPTION" not in text
    assert prompt.build(Task("r1", "a", 1, label="a"), Briefing()) == "# Task a\n\na\n", "no empty sections"


def test_half_a_character_in_a_report_does_not_spoil_the_next_prompt(assignment: Assignment) -> None:
    text = prompt.build(Task("r1", "b", 1, preamble="done so far: \ud800 größer", prompt="\ud800"), Briefing())
    assignment.write_prompt(text)
    assert "done so far: \ufffd größer" in assignment.read_prompt()
    assert fill_placeholders("{prompt}", assignment, assignment.folder / "x") == assignment.read_prompt()
    assignment.prompt_file.write_text("\ud800", encoding="utf-8", errors="surrogatepass")
    assert assignment.read_prompt(), "as a pipeline run without a garrison may write it"


def test_a_script_is_found_by_node_or_by_variable(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- print: a\n")
    (tmp_path / "named").write_text("- print: named\n")
    folder = {"GARRISON_SCRIPTS": str(tmp_path)}
    assert scripted.script_for("a", folder) == [{"print": "a"}]
    assert scripted.script_for("a", {**folder, "GARRISON_SCRIPT": str(tmp_path / "named")}) == [{"print": "named"}]
    assert scripted.script_for("b", folder) == scripted.DEFAULT == scripted.script_for("a", {})
    (tmp_path / "a.yaml").write_text("print: a\n")
    with pytest.raises(SystemExit, match="a script is a list of steps"):
        scripted.script_for("a", folder)


def test_steps_are_played_in_their_incarnation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GARRISON_NOTES_FILE", str(tmp_path / "notes"))
    steps = [{"life": 1, "edit": {"path": "d/{node}.txt", "text": "one {node}\n"}},
             {"life": 2, "edit": {"path": "d/{node}.txt", "text": "two\n", "append": True}},
             {"notes": "was here"}, {"life": 2, "exit": 3}, {"print": "end of {node}"}]
    scripted.play("n", steps, 1)
    assert (tmp_path / "d/n.txt").read_text() == "one n\n" and (tmp_path / "notes").read_text() == "was here"
    out = capsys.readouterr().out.splitlines()
    assert out == ["scripted agent (not a real one) for n, incarnation 1", "end of n"]
    with pytest.raises(SystemExit) as caught:
        scripted.play("n", steps, 2)
    assert caught.value.code == 3 and (tmp_path / "d/n.txt").read_text() == "one n\ntwo\n"


@pytest.mark.parametrize(("make", "why"), [
    (lambda path: path.symlink_to("/etc/passwd"), "is a symbolic link"), (os.mkfifo, "is not a regular file"),
    (lambda path: path.write_bytes(b" " * (MAX_BYTES + 1)), "has more than 1 MiB"), (Path.mkdir, "not a regular file")])
def test_a_result_file_that_is_no_small_regular_file_is_not_read(tmp_path, make, why):
    make(tmp_path / "claim.json")
    with pytest.raises(ValueError, match=why):
        read_report(tmp_path / "claim.json")


def test_notes_are_read_from_the_exchange_folder_or_where_earlier_editions_kept_them(tmp_path):
    (tmp_path / "notes.txt").write_text("old")
    assert read_notes(tmp_path) == "old"
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/notes.txt").write_text("new")
    assert read_notes(tmp_path) == "new"
    (tmp_path / "agent/notes.txt").unlink()
    (tmp_path / "agent/notes.txt").symlink_to("/etc/passwd")
    assert read_notes(tmp_path) == "old"


def test_a_confined_agent_reads_its_prompt_and_may_write_only_its_exchange_folder(assignment):
    shown = {mount.source.name: mount.writable for mount in assignment.mounts()}
    assert shown == {"prompt.md": False, "agent": True}
    assert assignment.notes.parent == assignment.result_file.parent == assignment.exchange


# ---- the layers as an agent graph, and `garrison agents graph`


AT = "2026-01-31T12:00:00.000001Z"
GUARDIAN, RUNNER, ORCHESTRATOR = Key("guardian", "crew", "r1"), Key("runner", "a", "r1"), Key("orchestrator", "a", "r1")


def identity(key: Key, parent: Key | None = None) -> Identity:
    return Identity(f"{key.full}#1", key.role, key.name, key.run, AT, last_heartbeat=AT,
                    parent={"role": parent.role, "name": parent.name} if parent else None)


CREW = (identity(Key("launch", "launch", "r1")), identity(GUARDIAN, Key("launch", "launch", "r1")),
        identity(RUNNER, GUARDIAN), identity(ORCHESTRATOR, RUNNER), identity(Key("processor", "crew", "r1"), GUARDIAN))


def test_each_process_is_directed_by_its_parent_and_an_orchestrator_also_by_the_guardian() -> None:
    graph = control_graph(CREW)
    assert graph.relationships() == {
        "launch@r1": ["guardian-crew@r1"],
        "guardian-crew@r1": ["orchestrator-a@r1", "processor-crew@r1", "runner-a@r1"],
        "runner-a@r1": ["orchestrator-a@r1"]}
    assert graph.controllers_with_types("orchestrator-a@r1") == [
        ("guardian-crew@r1", "coordinates the run"), ("runner-a@r1", "supervises this node")]
    assert control_graph([identity(RUNNER, GUARDIAN), identity(ORCHESTRATOR, RUNNER)]).relationships() == {
        "runner-a@r1": ["orchestrator-a@r1"]}, "a missing parent directs no process"


def test_the_command_shows_one_run_and_prints_dot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    for one in (*CREW, identity(Key("guardian", "crew", "r2"))):
        store.update(Identity, one.key, lambda _, one=one: one)  # type: ignore[misc]
    assert main(["agents", "graph", "--run", "r1", "--json", "--home", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == 5
    assert shown[0] == {"controller": "guardian-crew@r1", "subordinate": "orchestrator-a@r1",
                        "control_type": "coordinates the run"}
    assert main(["agents", "graph", "--run", "r1", "--home", str(tmp_path)]) == 0
    assert "runner-a@r1" in capsys.readouterr().out
    assert main(["agents", "graph", "--dot", "--home", str(tmp_path)]) == 0
    dot = capsys.readouterr().out
    assert '"guardian-crew@r2"' in dot
    assert '"runner-a@r1" -> "orchestrator-a@r1" [label="supervises this node"];' in dot
