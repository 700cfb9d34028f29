"""A profile's and a node's settings: the node wins, and what cannot be meant is refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from garrison.agents import registry
from garrison.agents.claude import cli_process, settings, takeover
from garrison.agents.claude.profile import ClaudeProfile
from garrison.agents.claude.settings import ENVIRONMENT, ClaudeSettings, ConnectionJob, from_profile
from garrison.agents.config_check import check_config
from garrison.agents.conversation import stream, tools
from garrison.agents.limits import limits_in_words, small_budgets
from garrison.errors import UsageError
from garrison.records.budget import Limits
from garrison.records.record import from_data
from garrison.sandbox.network import lowest_limits
from garrison.tables import Table
from garrison.values import asdict


def test_the_node_wins_over_the_profile_and_limits_have_defaults_and_can_be_switched_off():
    profile = from_profile(Table("here", {"model": "haiku", "tools": ["Read"], "budget": 2, "max_turns": 5}))
    found = profile.for_node("n", {"llm_model": "opus", "tools": "Read, Bash", "budget": "$0.5", "label": "x"})
    assert (found.model, found.tools, found.budget, found.max_turns) == ("opus", ("Read", "Bash"), 0.5, 5)
    assert (ClaudeSettings().budget, ClaudeSettings().max_turns) == (10.0, 300)
    assert limits_in_words(Limits(10.0), 300) == "$10.00 a node, 300 responses an attempt"
    off = from_profile(Table("here", {"budget": "none", "budget_day": 50, "max_idle": False})).for_node("n",
                   {"max_turns": "none"})
    assert (off.budget, off.max_turns, off.max_idle) == (None, None, None)
    assert limits_in_words(Limits(None, None, 50), None) == (
        "no budget (set budget), $50.00 a day, any number of responses (set max_turns)")


def test_a_budget_too_small_for_one_call_is_reported(tmp_path):
    """Calls without an agent have the lowest limits of all profiles."""
    (tmp_path / "config.toml").write_text('[agents.a]\nargv = ["a"]\nbudget_run = "$5"\nbudget_day = "none"\n'
                                          '[agents.b]\nargv = ["b"]\nbudget_run = 7\nbudget_day = 3\n')
    assert lowest_limits(tmp_path) == Limits(None, 5.0, 3.0)
    (tmp_path / "config.toml").write_text('[agents.c]\nargv = ["c"]\nbudget_run = 0.1\n'
                                          '[agents.claude]\nbudget = 0.01\n')
    said = small_budgets([("a", "c", {}), ("b", "c", {"budget": "5"}), ("d", "claude", {"model": "haiku"}),
                          ("e", "claude", {"model": "opus"}), ("f", "command", {})], tmp_path)
    assert said == [
        "a, b: budget_run = 0.1 is too small for one call of a model, which may cost $0.107 with an answer of 1,024 "
        "tokens; no call will be made",
        "e: budget = 0.01 is too small for one call of opus, which may cost $0.036 with an answer of 1,024 tokens; no "
        "call will be made"]


def test_the_table_agents_has_the_defaults_of_all_agents(tmp_path):
    """Without it each kind has its own; profiles and nodes override it, and presets follow it as well."""
    text = ('[agents]\nbudget = 3\nturns = 40\nsilence = 90\n[agents.p]\nargv = ["p"]\nbudget = 1\n'
            '[agents.a]\nkind = "acp"\nargv = ["a"]\nstale = 5\nmax_turns = "none"\n')
    bare = registry.limits_of("codex-exec", "n", {}, tmp_path)
    (tmp_path / "config.toml").write_text(text)
    assert (bare.node, bare.turns) == (None, 300)
    assert check_config(tmp_path) == []
    claude = registry.find_profile("claude", tmp_path).settings
    assert (claude.budget, claude.max_turns, claude.stale) == (3.0, 40, 90.0)
    assert [(found.node, found.turns) for found in (
        registry.limits_of("p", "n", {}, tmp_path), registry.limits_of("p", "n", {"max_turns": "7"}, tmp_path),
        registry.limits_of("codex-exec", "n", {"budget": "2"}, tmp_path), registry.limits_of("a", "n", {}, tmp_path),
        registry.limits_of("p", "n", {"budget": "none"}, tmp_path))
    ] == [(1.0, 40), (1.0, 7), (2.0, 40), (3.0, None), (None, 40)]
    assert registry.find_profile("a", tmp_path).settings.stale == 5.0
    assert [registry.find_profile(name, tmp_path).silence for name in ("p", "a", "command")] == [90.0, None, None]
    (tmp_path / "config.toml").write_text("[agents]\nbudgett = 3\n")
    with pytest.raises(UsageError, match=r"config\.toml:2: \[agents\] budgett is not a setting; did you mean budget\?"):
        registry.profiles(tmp_path)
    (tmp_path / "config.toml").write_text('[agents]\nturns = "many"\n[agents.p]\nargv = ["p"]\n')
    with pytest.raises(UsageError, match=r"config\.toml:2: \[agents\] turns='many' should be a whole number above 0"):
        registry.profiles(tmp_path)


@pytest.mark.parametrize(("values", "words"), [
    ({"modell": "x"}, "modell is not a setting"), ({"max_turns": "many"}, "max_turns"), ({"budget": -1}, "budget"),
    ({"permission_mode": "yolo"}, "one of dontAsk"),
    ({"permission_mode": "plan"}, "approve=true"), ({"effort": 3}, "effort"), ({"tools": [1]}, "a list of names"),
    ({"set": {"A": 1}}, "table of texts"), ({"model": " "}, "a text"), ({"starts": 0}, "starts")])
def test_invalid_settings_are_refused_with_their_place(values, words):
    with pytest.raises(UsageError) as caught:
        from_profile(Table("config.toml", values, ("agents", "x")))
    assert str(caught.value).startswith("config.toml: [agents.x] ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_validator_reads_only():
    assert ClaudeSettings(tools=("Bash", "Write", "Read")).read_only().tools == ("Read",)
    assert ClaudeSettings(tools=("Bash",)).read_only().tools == settings.READ_ONLY


def test_a_job_survives_its_file_with_the_keys_of_version_0_1():
    order = ConnectionJob("/h", 3, "/t", "/f", "id", "say", "system", "validator", run="r", node="n", attempt=2,
                          resume=True, settings=ClaudeSettings(tools=("Read",), set={"A": "b"}))
    assert from_data(ConnectionJob, json.loads(json.dumps(asdict(order)))) == order
    assert set(asdict(order)) - {"config", "inside", "folders", "repository", "outages", "subfolder"} == {
        "home", "run", "node", "attempt", "life", "tree", "folder", "session", "resume", "prompt", "system", "settings",
        "part", "past", "attempts"}, "as version 0.1 has it"


def test_profiles_of_both_kinds(tmp_path):
    (tmp_path / "config.toml").write_text(
        '[agents.claude]\nmodel = "haiku"\n[agents.second]\nkind = "claude"\nenv = ["EXTRA"]\n'
        '[agents.tool]\nargv = ["x"]\n')
    found = registry.profiles(tmp_path)
    assert isinstance(found["second"], ClaudeProfile)
    assert found["claude"].settings.model == "haiku"  # type: ignore[union-attr]
    assert "EXTRA" in registry.required_variables({"second", "tool"}, tmp_path)
    assert "ANTHROPIC_API_KEY" in registry.required_variables({"claude"}, tmp_path)
    with pytest.raises(UsageError, match="node n: max_turns"):
        registry.check_node("claude", "n", {"max_turns": "many"}, tmp_path)


@pytest.mark.parametrize("text", ["kind = 'robot'", "kind = 'claude'\nargv = ['x']", "env = 'A'", "argv = []"])
def test_a_malformed_profile_is_refused(tmp_path, text):
    (tmp_path / "config.toml").write_text(f"[agents.x]\n{text}\n")
    with pytest.raises(UsageError, match=r"config\.toml:[1-3]: \[agents\.x\] "):
        registry.profiles(tmp_path)


@pytest.mark.parametrize(("event", "line"), [
    ({"kind": "text", "text": " hello "}, "hello"),
    ({"kind": "tool", "name": "mcp__garrison__save_notes", "input": {"text": "a\nb"}}, "  → save_notes a b"),
    ({"kind": "tool", "name": "Bash", "input": {"command": "x" * 500}}, "  → Bash " + "x" * 239 + "…"),
    ({"kind": "tool", "name": "T", "input": [1]}, "  → T [1]"),
    ({"kind": "tool_result", "text": "", "error": False}, "  ← (nothing)"),
    ({"kind": "tool_result", "text": "no", "error": True}, "  ✗ no"),
    ({"kind": "retry", "status": 429, "delay": 3.2}, "  … the API answered 429; trying again in 3 s"),
    ({"kind": "result", "error": False, "usd": 0.5}, "── session ended its turn, $0.5000 in all"),
    ({"kind": "usage"}, ""), ({"kind": "from the future"}, "")])
def test_events_are_rendered_in_one_line(event, line):
    assert stream.render(event) == line
    cut = stream.cut("a" * 5000 + "END")  # it loses its middle
    assert len(cut) < 2100 and cut.startswith("aaa") and cut.endswith("END")


@pytest.mark.parametrize(("given", "word"), [
    ({}, "verdict"), ({"verdict": "pass", "reason": "r"}, "criterion"),
    ({"verdict": "pass", "reason": "r", "criteria": [{"met": False, "evidence": "e"}]}, "every criterion"),
    ({"verdict": "pass", "reason": "r", "criteria": [{"met": True, "evidence": ""}]}, "every criterion"),
    ({"verdict": "maybe", "reason": "r", "criteria": [{}]}, "verdict=pass"),
    ({"verdict": "fail", "reason": "r", "criteria": [{"criterion": "c", "met": False, "evidence": "e"}]}, "")])
def test_an_incomplete_verdict_is_refused(given, word):
    problem = tools.verdict_problem(given)
    assert word in problem and bool(word) == bool(problem)


@pytest.mark.parametrize(("given", "report"), [
    ({"status": "success", "preferred_label": "Ship", "context_updates": {"red": 0}},
     {"status": "success", "preferred_label": "Ship", "context_updates": {"red": 0}}),
    ({"status": "partial_success", "suggested_next_ids": ["b"]},
     {"status": "partial_success", "suggested_next_ids": ["b"]}),
    ({"status": "failure", "preferred_label": ""}, {"status": "fail"}), ({"status": "retry"}, {"status": "retry"})])
def test_a_report_becomes_an_agent_report(given, report):
    kept = tools.check_report({"summary": "s", **given})
    assert tools.to_agent_report(json.loads(json.dumps(kept))) == {**report, "notes": "s"}
    assert tools.to_agent_report(None) == {}


@pytest.mark.parametrize(("given", "word"), [
    ({"status": "done", "summary": "s"}, "status=failure"), ({"status": "success", "summary": " "}, "a summary"),
    ({"status": "success", "summary": "s", "preferred_label": 3}, "preferred_label is not a text"),
    ({"status": "success", "summary": "s", "context_updates": ["x"]}, "context_updates is not an object")])
def test_an_invalid_report_is_refused(given, word):
    with pytest.raises(UsageError, match=word):
        tools.check_report(given)


# ---- the CLI run by users: which program, which environment, without keys for a log-in


RUN = "import sys; from pathlib import Path; from garrison.agents.claude.settings import ClaudeSettings as S; " \
      "from garrison.cli.login import exec_cli; exec_cli(Path(sys.argv[1]), S(cli=sys.argv[2]), (), sys.argv[3:])"
SOURCE = {"PATH": "/bin", "HOME": "/h", "ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t", "SECRET": "s",
          "ANTHROPIC_BASE_URL": "u", "CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": "x", "GARRISON_LIFE": "l"}


def test_a_log_in_executes_the_cli_in_the_environment_of_a_session_without_keys(tmp_path):
    found = cli_process.log_in_environment(tmp_path, ClaudeSettings(set={"MINE": "1"}), ENVIRONMENT, SOURCE)
    assert found["CLAUDE_CONFIG_DIR"] == str(tmp_path / "claude")
    assert (found["MINE"], found["ANTHROPIC_BASE_URL"]) == ("1", "u")
    assert cli_process.find_cli(ClaudeSettings(cli="/x/claude")) == "/x/claude", "the profile's, else the SDK's"
    assert cli_process.find_cli(ClaudeSettings()).endswith("claude")
    assert not {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "SECRET", "CLAUDECODE", "CLAUDE_CODE_SESSION_ID",
                "GARRISON_LIFE"} & set(found)
    (tmp_path / "cli").write_text('#!/bin/sh\necho "$@"\nls -ld "$CLAUDE_CONFIG_DIR"\n')
    (tmp_path / "cli").chmod(0o755)
    done = subprocess.run([sys.executable, "-P", "-c", RUN, str(tmp_path), str(tmp_path / "cli"), "auth", "status"],
                          capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.startswith("auth status\ndrwx------")


def test_a_takeover_resumes_the_session_with_the_nodes_model():
    words = takeover.resume_argv(ClaudeSettings(model="haiku"), "an-id")
    assert words[1:5] == ["--resume", "an-id", "--model", "haiku"]
    assert words[5:] == ["--permission-mode", "default", "--setting-sources", ""], "the user is asked"
