"""What the demonstration with Claude sessions adds to the stage: the model's server, the configuration, the answers.

The rule of this room: what plays the model is always said; a key is looked for only where `--live` was said, and never
read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from garrison.agents.claude.attempt_files import ClaudeFiles, read_lines
from garrison.cli.demo_stage import RUN, Stage
from garrison.errors import Refused

SERVER = (sys.executable, "-P", "-m", "garrison.testing.model_server")
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
ANSWER = "only noted: `check` says how many"
"""What the person in charge of the demonstration says about dates that go back."""
ANY_ANSWER = "Settle it as you think best, and say in your report how."
_SCRIPTED = """\
A copy of examples/ledger is in {repo}; four sessions of the Claude CLI are let loose on it.
The CLI and its tools are real. The model is not: a script, examples/claude_crew/model.yaml, plays it, so what it
costs is made up too. No network is in reach, no key is used."""
_LIVE = """\
A copy of examples/ledger is in {repo}; four sessions of the Claude CLI are let loose on it.
A real model answers; you pay for it, at most $5."""


def has_key(environ: Mapping[str, str], home: Path) -> bool:
    """Whether a real model could be asked: a key is set, or somebody has logged in in the home."""
    return any(environ.get(name) for name in KEYS) or (home / "claude" / ".credentials.json").exists()


def configure(home: Path, settings: Mapping[str, Any]) -> None:
    """Write config.toml: settings of the claude agent; a mapping among them becomes a table."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    plain = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if not isinstance(value, dict)]
    tables = [line for name, value in settings.items() if isinstance(value, dict)
              for line in (f"[agents.claude.{name}]", *(f"{key} = {json.dumps(one)}" for key, one in value.items()))]
    (home / "config.toml").write_text("\n".join(["[agents.claude]", *plain, *tables, ""]))


@contextmanager
def served(script: Path, log: Path) -> Iterator[str]:
    """The model's server while it is needed; its URL."""
    server = subprocess.Popen([*SERVER, str(script), "--log", str(log)], stdout=subprocess.PIPE, text=True,
                              start_new_session=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        if not url:
            raise Refused(f"the server that plays the model did not start (exit code {server.wait()})")
        yield url
    finally:
        server.terminate()
        server.wait()


@dataclass
class ClaudeStage:
    """The stage, and who answers there: a script or a real model."""

    stage: Stage
    live: bool
    answered: dict[str, str] = field(default_factory=dict)
    """Question id → node."""

    @property
    def introduction(self) -> str:
        """What is about to happen."""
        return (_LIVE if self.live else _SCRIPTED).format(repo=self.stage.repo)

    def files(self, node: str) -> ClaudeFiles:
        """The files of the node's sessions, in its present attempt."""
        return ClaudeFiles(self.stage.world.files(RUN).attempt(node, self.stage.state.nodes[node].attempt))

    def events(self, node: str) -> list[dict[str, Any]]:
        """What happened in the node's sessions so far, in its present attempt."""
        return read_lines(self.files(node).stream) if node in self.stage.state.nodes else []

    def answer_questions(self) -> None:
        """Answer what is asked, by the command that a person would use."""
        for node, question in list(self.stage.state.questions.items()):
            if question["id"] in self.answered:
                continue
            self.answered[question["id"]] = node
            text = ANSWER if node == "date_order" else ANY_ANSWER
            click.secho(f'          garrison answer {node} "{text}"', fg="green")
            self.stage.command("answer", node, text)
