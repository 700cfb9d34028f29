"""Settings of command agents: what is read, and what is refused with a line that names the remedy; presets."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from garrison.agents import registry
from garrison.agents.acp.profile import AcpProfile
from garrison.agents.command_profile import CommandProfile
from garrison.agents.config_check import check_config
from garrison.agents.presets import PRESETS, Preset, find_preset
from garrison.agents.registry import find_profile
from garrison.agents.success_rule import SuccessRule, last_object
from garrison.agents.variables import expand
from garrison.cli.agents import agents
from garrison.doctor.findings import ExaminedState
from garrison.doctor.machine import examine_agents
from garrison.errors import Refused, UsageError

ARGV = '[agents.x]\nargv = ["x"]\n'


def read(home: Path, text: str) -> CommandProfile:
    (home / "config.toml").write_text(ARGV + text)
    found = registry.find_profile("x", home)
    assert isinstance(found, CommandProfile)
    return found


def test_all_settings_of_a_profile_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, 'stream = "codex"\nstdin = "prompt"\nresume_argv = ["x", "{session}"]\nexclude = [".x*"]\n'
                           'set = {A = "b"}\nsuccess = {exit = [0, 2], stdout_not = "^E", json = "ok == true"}\n')
    assert (found.stream, found.stdin, found.resume_argv, found.exclude, dict(found.set), found.tty) == (
        "codex", "prompt", ("x", "{session}"), (".x*",), {"A": "b"}, False)
    assert (found.success, found.rule) == ("exit_zero", SuccessRule((0, 2), "^E", "ok == true"))
    assert read(tmp_path, "tty = true\n").tty
    assert registry.model_profile("x", tmp_path).reporter == "", "the proxy counts what it calls"
    for form, agent in (("claude", "claude-cli/"), ("codex", "")):
        read(tmp_path, f'stream = "{form}"\n')
        assert registry.model_profile("x", tmp_path).reporter == agent, "only one stream tells each of its calls"
    read(tmp_path, "tty = true\n")
    assert registry.has_terminal("x", tmp_path)


@pytest.mark.parametrize(("text", "message"), [
    ('tty = "yes"', "[agents.x] tty='yes' should be true or false"),
    ('stdin = "file"', 'stdin=\'file\' should be "prompt"'),
    ('stream = "json"', "stream='json' should be one of claude, codex"),
    ('tty = true\nstdin = "prompt"', "tty = true and stdin exclude each other"),
    ('tty = true\nstream = "codex"', "tty = true and stream exclude each other"),
    ('resume_argv = ["x"]\nstream = "codex"',
     "should be a list of strings with {session}, the id of the session to resume"),
    ('resume_argv = ["x", "{session}"]', "resume_argv needs stream"),
    ('exclude = ["!a"]', "should be a list of patterns as in .gitignore, such as \".aider*\", not '!a'"),
    ('success = "exit_one"',
     "success='exit_one' should be one of exit_zero, result_file, or a table such as {exit = [0, 2]}"),
    ("success = {exit = []}", "[agents.x.success] exit=[] should be a list of exit codes"),
    ("success = {exits = [0]}", "[agents.x.success] exits is not a setting; did you mean exit?"),
    ('success = {stdout_not = "("}',
     "[agents.x.success] stdout_not='(' should be a regular expression, but is invalid: missing )"),
    ('success = {json = "a =="}', "[agents.x.success] json='a ==' should be a condition: condition"),
    ('success = {json = "ok"}', "json='ok' should be a condition on a key of the object, as in ok == true"),
])
def test_a_wrong_setting_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(("rule", "output", "why"), [
    (SuccessRule(stdout_not="^FATAL"), "all well: no FATAL\n", ""),
    (SuccessRule(stdout_not="^FATAL.*"), "well\nFATAL: no key\n",
     "it printed 'FATAL: no key', which success.stdout_not forbids"),
    (SuccessRule(json="is_error == false"), 'x\n{"is_error": false}\n', ""),
    (SuccessRule(json="is_error == false"), '{\n "is_error": true\n}\n',
     "success.json asks for is_error == false, but is_error is true"),
    (SuccessRule(json="a.b > 1"), '{"a": {"b": 1}}', "success.json asks for a.b > 1, but a.b is 1"),
    (SuccessRule(json="ok"), "no object\n", "it printed no JSON object, and success.json asks for ok"),
    (SuccessRule(json="ready"), '{"other": 1}', "success.json asks for ready, but ready is absent"),
])
def test_the_rule_that_refuses_is_named(rule: SuccessRule, output: str, why: str) -> None:
    assert rule.objection(output) == why


def test_a_regular_expression_that_takes_too_long_is_given_up() -> None:
    began = time.monotonic()
    why = SuccessRule(stdout_not="(a+)+$").objection("a" * 5000 + "b")
    assert why == "success.stdout_not = '(a+)+$' took longer than 2 s on its output; simplify it"
    assert time.monotonic() - began < 20


def test_the_last_object_of_an_output_is_found() -> None:
    assert last_object('{"a": 1}\n{"b": {"c": 2}}\n') == {"b": {"c": 2}}
    assert last_object('said\n{\n  "a": [\n{"x": 1}\n]\n}\nthe end\n') == {"x": 1}
    assert last_object('{"a": 1\n') is None
    assert last_object("[" * 100_000) is None
    assert last_object("{\"a\":" * 50_000) is None


def test_a_program_that_the_sandbox_does_not_show_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "tools" / "node_modules"
    program, link = package / "x" / "cli.js", package / ".bin" / "x"
    for each in (program, link):
        each.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    link.symlink_to(program)
    environ = {"PATH": f"{link.parent}:/usr/bin", "HOME": str(tmp_path / "user"), "GARRISON_SANDBOX": "bubblewrap"}
    read(tmp_path, "")
    registry.check_program("x", tmp_path, environ)  # shown with the packages next to it
    environ["GARRISON_HOME"] = str(tmp_path / "tools")
    with pytest.raises(Refused) as caught:
        registry.check_program("x", tmp_path, environ)
    assert str(caught.value) == (
        f'agent x runs {link}, a link to {program}, which its sandbox does not show; add read = ["{package}"] to '
        f"[agents.x] in {tmp_path / 'config.toml'}")
    registry.check_program("x", tmp_path, {**environ, "GARRISON_SANDBOX": "none"})
    read(tmp_path, f'read = ["{package}"]\n')
    registry.check_program("x", tmp_path, environ)
    with pytest.raises(Refused, match="agent x runs x, which is not on the PATH"):
        registry.check_program("x", tmp_path, {**environ, "PATH": "/usr/bin"})
    script = tmp_path / "user/agent.sh"
    script.parent.mkdir()
    script.touch()
    (tmp_path / "config.toml").write_text(f'[agents.y]\nkind = "command"\nargv = ["sh", "{script}"]\n')
    with pytest.raises(Refused, match=f'agent y runs {script} which .* add read = ."{script}". to .agents.y. in'):
        registry.check_program("y", tmp_path, environ)
    (tmp_path / "config.toml").write_text(
        f'[agents.y]\nkind = "command"\nargv = ["sh", "{script}"]\nread = ["{script}"]\n')
    registry.check_program("y", tmp_path, environ)


# ---- presets: each is a profile that garrison reads, and the doctor says which programs are there


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_a_profile(preset: Preset, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(preset.profile())
    assert check_config(tmp_path) == []
    profile = find_profile(preset.name, tmp_path)
    assert isinstance(profile, AcpProfile) == (preset.kind == "acp")
    assert getattr(profile, "argv") == preset.argv  # noqa: B009
    assert profile.env == (*preset.env, *preset.urls)
    if isinstance(profile, AcpProfile):
        inside = {name: f"http://127.0.0.1:61280/{name}" for name in preset.urls}
        for name, value in profile.settings.set.items():
            told = expand(value, inside, name)
            assert told == value or json.loads(told)
            assert "127.0.0.1" in told or "_URL" not in value, "its base URL is the proxy's"


def test_the_command_lists_and_prints_them() -> None:
    listed = CliRunner().invoke(agents, ["presets"]).output
    assert all(preset.name in listed for preset in PRESETS)
    assert CliRunner().invoke(agents, ["presets", "codex"]).output.startswith(
        '[agents.codex]\nkind = "acp"\nargv = ["codex-acp"]\nenv = ["OPENAI_API_KEY", "OPENAI_BASE_URL"]\n'
        'mode = "agent-full-access"\ntakeover = ["codex", "resume", "{session}", ')
    assert find_preset("codx") == "no preset 'codx'; did you mean codex?"


def test_the_doctor_lists_installed_presets_and_profiles_without_a_program(tmp_path: Path) -> None:
    (tmp_path / "codex-acp").write_text("#!/bin/sh\n")
    (tmp_path / "codex-acp").chmod(0o755)
    (tmp_path / "config.toml").write_text('[agents.mine]\nkind = "acp"\nargv = ["no-such-agent"]\n')
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    runtime: Any = SimpleNamespace(home=tmp_path, environ=environ)

    def line() -> str:
        return next(examine_agents(ExaminedState(cast("Any", runtime), {}))).text

    assert line() == ("codex is installed, no key and no log-in: set OPENAI_API_KEY where you launch, or run `codex "
                      "login`; its profile: `garrison agents presets codex`")
    log_in = tmp_path / ".codex/auth.json"
    log_in.parent.mkdir()
    os.mkfifo(log_in)  # would block a reader
    assert "no log-in" in line()
    log_in.unlink()
    log_in.touch(0o000)
    assert line().startswith(f"codex is installed, logged in ({log_in}, which a sandbox shows only if `read` names it")
    environ["OPENAI_API_KEY"] = "sk-secret"
    assert line().startswith("codex is installed, OPENAI_API_KEY is set;")
    found = list(examine_agents(ExaminedState(cast("Any", runtime), {})))
    assert not any("sk-secret" in finding.text or finding.wrong for finding in found)
    assert any("agent mine runs no-such-agent, which is not on the PATH" in finding.text for finding in found[1:])
