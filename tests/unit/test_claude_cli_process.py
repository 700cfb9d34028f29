"""The CLI run by people: which program, which environment, and what a log-in is not given."""

from __future__ import annotations

import os
import subprocess
import sys

from garrison.agents.claude import cli_process, takeover
from garrison.agents.claude.settings import ENVIRONMENT, ClaudeSettings

RUN = "import sys; from pathlib import Path; from garrison.agents.claude.settings import ClaudeSettings as S; " \
      "from garrison.cli.login import exec_cli; exec_cli(Path(sys.argv[1]), S(cli=sys.argv[2]), (), sys.argv[3:])"
SOURCE = {"PATH": "/bin", "HOME": "/h", "ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t", "SECRET": "s",
          "ANTHROPIC_BASE_URL": "u", "CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": "x", "GARRISON_LIFE": "l"}


def test_a_log_in_has_a_sessions_environment_without_keys(tmp_path):
    found = cli_process.log_in_environment(tmp_path, ClaudeSettings(set={"MINE": "1"}), ENVIRONMENT, SOURCE)
    assert found["CLAUDE_CONFIG_DIR"] == str(tmp_path / "claude")
    assert (found["MINE"], found["ANTHROPIC_BASE_URL"]) == ("1", "u")
    assert not {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "SECRET", "CLAUDECODE", "CLAUDE_CODE_SESSION_ID",
                "GARRISON_LIFE"} & set(found)


def test_the_cli_is_the_profiles_else_the_sdks(tmp_path):
    assert cli_process.find_cli(ClaudeSettings(cli="/x/claude")) == "/x/claude"
    assert cli_process.find_cli(ClaudeSettings()).endswith("claude")


def test_log_in_executes_the_cli(tmp_path):
    """The same path with a program that tells what it got: its words, its folder (made, private)."""
    (tmp_path / "cli").write_text('#!/bin/sh\necho "$@"\nls -ld "$CLAUDE_CONFIG_DIR"\n')
    (tmp_path / "cli").chmod(0o755)
    done = subprocess.run([sys.executable, "-P", "-c", RUN, str(tmp_path), str(tmp_path / "cli"), "auth", "status"],
                          capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.startswith("auth status\ndrwx------")


def test_a_takeover_resumes_the_session_with_the_nodes_model():
    words = takeover.resume_argv(ClaudeSettings(model="haiku"), "an-id")
    assert words[1:5] == ["--resume", "an-id", "--model", "haiku"]
    assert words[5:] == ["--permission-mode", "default", "--setting-sources", ""], "a person is asked"
