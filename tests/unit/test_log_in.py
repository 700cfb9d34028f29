"""Log-ins of agents: which renewals the home takes back from a copy; an agent without key or log-in is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.claude import log_in
from garrison.agents.registry import check_access, check_program, log_in_of
from garrison.cli.configuration import write_setting
from garrison.errors import Refused

OLD = {"accessToken": "a1", "refreshToken": "r1", "expiresAt": 1000, "scopes": ["user:inference"],
       "subscriptionType": "max"}
NEW = {**OLD, "accessToken": "a2", "refreshToken": "r2", "expiresAt": 2000}


def write(folder: Path, table: Any, account: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / log_in.FILE).write_text(json.dumps({"claudeAiOauth": table, "mcpOAuth": {"x": str(folder)}}))
    if account:
        (folder / ".claude.json").write_text(json.dumps({"oauthAccount": {"accountUuid": account}}))
    return folder


def test_only_a_renewal_of_the_same_account_in_a_valid_file_is_taken_back(tmp_path: Path) -> None:
    home, copied = write(tmp_path / "home", OLD, "me"), write(tmp_path / "copied", {**NEW, "extra": 1}, "me")
    assert log_in.take_back(copied, home) == ""
    assert json.loads((home / log_in.FILE).read_text()) == {"claudeAiOauth": NEW, "mcpOAuth": {"x": str(home)}}
    assert (home / log_in.FILE).stat().st_mode & 0o777 == 0o600
    assert log_in.take_back(copied, home) == "", "the same log-in again changes nothing"
    home, copied = write(tmp_path / "home", OLD, "me"), write(tmp_path / "copied", NEW, "somebody")
    assert log_in.take_back(copied, home) == "it is of another account"
    for content in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000):
        (copied / log_in.FILE).write_bytes(content)
        assert log_in.take_back(copied, home) == "it is empty"
    (copied / log_in.FILE).unlink()
    (copied / log_in.FILE).symlink_to(home / log_in.FILE)
    assert log_in.take_back(copied, home) == "it is empty"
    assert json.loads((home / log_in.FILE).read_text())["claudeAiOauth"] == OLD
    (home / log_in.FILE).unlink()
    (copied / log_in.FILE).unlink()
    assert log_in.take_back(write(copied, NEW), home) == "" and not (home / log_in.FILE).exists(), "none is created"


@pytest.mark.parametrize(("table", "why"), [
    ({}, "it is empty"), (None, "it is empty"), ([], "it is empty"), ("x", "it is empty"),
    ({"accessToken": "a2", "expiresAt": 2000}, "it lacks refreshToken, scopes, subscriptionType"),
    ({**NEW, "accessToken": ""}, "it lacks accessToken"), ({**NEW, "expiresAt": 999}, "it is older than the home's"),
    ({**NEW, "expiresAt": 1000}, "it is older than the home's"),
    ({**NEW, "expiresAt": "9"}, "it is older than the home's"),
    ({**NEW, "subscriptionType": "pro"}, "it is of another account"),
    ({**NEW, "refreshToken": ["r"]}, "its fields are of another kind")])
def test_a_copy_that_is_no_renewal_changes_nothing(table: Any, why: str, tmp_path: Path) -> None:
    home, copied = write(tmp_path / "home", OLD), write(tmp_path / "copied", table)
    before = (home / log_in.FILE).read_bytes()
    assert log_in.take_back(copied, home) == why
    assert (home / log_in.FILE).read_bytes() == before


@pytest.mark.parametrize("environ", [
    {"ANTHROPIC_API_KEY": "k"}, {"ANTHROPIC_AUTH_TOKEN": "k"}, {"CLAUDE_CODE_OAUTH_TOKEN": "k"}])
def test_an_agent_needs_a_key_or_a_log_in(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"claude has no key and no log-in: set ANTHROPIC_API_KEY .* `garrison login`"):
        check_access("claude", tmp_path, {"PATH": "/bin", "ANTHROPIC_API_KEY": ""})
    check_access("claude", tmp_path, environ)
    check_access("claude", tmp_path, environ, passed=())
    with pytest.raises(Refused):
        check_access("claude", tmp_path, {"CLAUDE_CODE_USE_BEDROCK": "1"}, passed=())
    check_access("claude", tmp_path, {"CLAUDE_CODE_USE_BEDROCK": "1"}, passed=("CLAUDE_CODE_USE_BEDROCK",))
    (tmp_path / "config.toml").write_text('[agents.claude.set]\nANTHROPIC_API_KEY = "k"\n')
    check_access("claude", tmp_path, {})
    (tmp_path / "config.toml").unlink()
    (tmp_path / "claude").mkdir()
    (tmp_path / "claude" / log_in.FILE).write_text("{}")
    with pytest.raises(Refused):
        check_access("claude", tmp_path, {})
    write(tmp_path / "claude", {**OLD, "expiresAt": (time.time() + 3600) * 1000})
    check_access("claude", tmp_path, {})
    check_access("command", tmp_path, {})


def test_a_log_in_stays_outside_the_sandbox_and_only_its_cli_renews_it(tmp_path: Path) -> None:
    home, now, cli, runs = tmp_path, time.time(), tmp_path / "cli", tmp_path / "runs"
    copy = f"cp {home}/new $CLAUDE_CONFIG_DIR/{log_in.FILE}"
    cli.write_text(f"#!/bin/sh\necho $* >> {runs}\n[ -e {home}/new ] && {copy}\n")
    cli.chmod(0o755)
    (home / "config.toml").write_text(f'[agents.claude]\ncli = "{cli}"\n')
    folder, token = write(home / "claude", {**OLD, "expiresAt": (now + 3600) * 1000}), "CLAUDE_CODE_OAUTH_TOKEN"
    found = log_in_of("claude", home, {}, {})
    assert found is not None and found.variables(now) == {token: "a1"}
    check_access("claude", home, {})
    assert not runs.exists(), "a token that is valid is left as it is"
    assert found.variables(now + 3500) == {token: "a1"} and found.has_expired(now + 3700)
    assert found.variables(now + 3510) and runs.read_text() == "auth status\n", "tried once a minute"
    with pytest.raises(Refused, match=r"has expired, and its CLI did not renew it: run `garrison login`"):
        check_access("claude", write(home / "claude", {**OLD, "expiresAt": (now - 1) * 1000}).parent, {})
    write(tmp_path / "other", {**OLD, "accessToken": "", "refreshToken": "", "expiresAt": 0})
    (tmp_path / "other" / log_in.FILE).rename(home / "new")
    with pytest.raises(Refused, match="has expired"):  # a CLI whose renewal is refused for good empties its log-in
        check_access("claude", home, {})
    (home / "new").unlink()
    write(home / "claude", {**OLD, "expiresAt": (now - 1) * 1000})
    (write(tmp_path / "other", {**NEW, "expiresAt": (now + 3600) * 1000}) / log_in.FILE).rename(home / "new")
    check_access("claude", home, {})
    assert found.variables(now) == {token: "a2"} and len(runs.read_text().splitlines()) == 4
    write(folder, {"accessToken": "a3"})
    assert found.variables(now) == {token: "a3"} and not found.has_expired(now), "one of setup-token has no end"
    (folder / log_in.FILE).unlink()
    (folder / ".claude.json").write_text('{"primaryApiKey": "k"}')
    assert found.variables(now) == {"ANTHROPIC_API_KEY": "k"}, "a log-in to the Console"
    assert log_in_of("claude", home, {"ANTHROPIC_API_KEY": "k"}, {}) is None
    assert log_in_of("command", home, {}, {}) is None


def test_a_programs_own_log_in_stays_outside_if_the_proxy_can_add_it(tmp_path: Path) -> None:
    """An API key in its file or a Claude CLI's token, but no ChatGPT account, which the API does not accept."""
    environ, now = {"HOME": str(tmp_path), "PATH": "/bin"}, time.time()
    codex, opencode = tmp_path / ".codex", tmp_path / ".local/share/opencode"
    assert log_in_of("codex", tmp_path, {}, environ) is None
    for folder, content in ((codex, '{"OPENAI_API_KEY": "k1"}'), (opencode, '{"openai": {"key": "k2"}}')):
        folder.mkdir(parents=True)
        (folder / "auth.json").write_text(content)
    for name, key in (("codex", "k1"), ("codex-exec", "k1"), ("opencode", "k2")):
        found = log_in_of(name, tmp_path, {}, environ)
        assert found is not None and found.variables(now) == {"OPENAI_API_KEY": key}
        assert log_in_of(name, tmp_path, {"OPENAI_API_KEY": "mine"}, environ) is None
    for content in ('{"OPENAI_API_KEY": null, "tokens": {"access_token": "t"}}', "[]", "{"):
        (codex / "auth.json").write_text(content)
        found = log_in_of("codex", tmp_path, {}, environ)
        assert found is not None and found.variables(now) == {}
    program = tmp_path / "codex"
    program.touch(0o755)
    environ |= {"PATH": str(tmp_path), "GARRISON_SANDBOX": "bubblewrap"}
    with pytest.raises(Refused, match=r"codex-exec has no key, and its log-in \S+/auth.json belongs to an account"):
        check_program("codex-exec", tmp_path, environ, ())
    (codex / "auth.json").unlink()
    with pytest.raises(Refused, match=r"codex-exec has no key and no log-in: set OPENAI_API_KEY .* run `codex login`"):
        check_program("codex-exec", tmp_path, environ, ())
    for more in ({"OPENAI_API_KEY": "k"}, {"OPENAI_BASE_URL": "http://127.0.0.1:1"}):
        check_program("codex-exec", tmp_path, {**environ, **more, "GARRISON_SANDBOX": "none"}, ())
    (tmp_path / "config.toml").write_text('[agents.codex]\nkind = "acp"\nargv = ["codex-acp"]\n')
    assert log_in_of("codex", tmp_path, {}, environ) is None, "its profile has no key"
    write(tmp_path / ".claude", {**OLD, "expiresAt": (now + 3600) * 1000})
    for name in ("claude-p", "claude-acp"):
        found = log_in_of(name, tmp_path, {}, environ)
        assert found is not None and found.variables(now) == {"CLAUDE_CODE_OAUTH_TOKEN": "a1"}


@pytest.mark.parametrize(("before", "after"), [
    ("", '[agents.claude]\nlogin = "file"\n'),
    ('# mine\n[sandbox]\nmode = "none"\n', '# mine\n[sandbox]\nmode = "none"\n\n[agents.claude]\nlogin = "file"\n'),
    ('[agents."claude"] # x\nbudget = 3\n[agents.claude.set]\nA = "1"\n',
     '[agents."claude"] # x\nlogin = "file"\nbudget = 3\n[agents.claude.set]\nA = "1"\n'),
    ('[agents.claude]\nbudget = 3\n  login = "proxy"', '[agents.claude]\nbudget = 3\nlogin = "file"\n'),
    ('agents.claude = {budget = 3}\n', None), ('agents = 3\n', None)])
def test_a_command_chooses_where_the_log_in_is(before: str, after: str | None, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(before)
    if after is None:
        with pytest.raises(Refused, match=r'write login = "file" into \[agents.claude\] of '):
            write_setting(tmp_path, ("agents", "claude", "login"), "file")
    else:
        write_setting(tmp_path, ("agents", "claude", "login"), "file")
    assert config.read_text() == (before if after is None else after)
