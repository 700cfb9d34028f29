"""Presets: profiles of known agents for config.toml, and what each needs. Pure but for the look at the PATH.

A preset is a text to copy, no code: an agent that is not here needs a profile of the same form.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

from garrison.frozen import frozen
from garrison.spelling import nearest


@frozen
class Preset:
    """A profile of a known agent."""

    name: str
    kind: str
    argv: tuple[str, ...]
    package: str
    """How the program is installed."""
    env: tuple[str, ...]
    """Variables that hold its key; with a log-in of its own program it needs none."""
    seen: str
    """Features seen to work with garrison."""
    more: tuple[tuple[str, str], ...] = ()
    """Further settings, as TOML has them."""

    @property
    def program(self) -> str:
        """Return its program."""
        return self.argv[0]

    def find(self, path: str | None = None) -> str | None:
        """Return where its program is installed, None if it is not."""
        return shutil.which(self.program, path=path)

    def profile(self) -> str:
        """Return the profile as config.toml has it."""
        kind = [] if self.kind == "command" else [f'kind = "{self.kind}"']
        lines = [*kind, f"argv = {_list(self.argv)}", f"env = {_list(self.env)}",
                 *(f"{key} = {value}" for key, value in self.more)]
        return "\n".join([f"[agents.{self.name}]", *lines])

    def to_json(self, path: str | None = None) -> dict[str, Any]:
        """Return it as `garrison agents presets --json` prints it."""
        return {"name": self.name, "kind": self.kind, "program": self.program, "installed": self.find(path),
                "package": self.package, "env": list(self.env), "seen": self.seen, "profile": self.profile()}


def _list(words: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


_OPENAI = ("OPENAI_API_KEY",)
_ANTHROPIC = ("ANTHROPIC_API_KEY",)
_MANY = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
_UNTRIED = "not tried"
_CLAUDE_P = ("claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
             "--permission-mode", "bypassPermissions")
_CODEX_EXEC = ("codex", "exec", "--json", "--dangerously-bypass-approvals-and-sandbox")
PRESETS = (
    Preset("codex", "acp", ("codex-acp",), "npm install -g @openai/codex @agentclientprotocol/codex-acp", _OPENAI,
           "a command killed with kill -9, the session resumed, garrison's tools offered, a report (codex-acp 2.6.0)",
           (("mode", '"agent-full-access"'),)),
    Preset("gemini", "acp", ("gemini", "--acp"), "npm install -g @google/gemini-cli", ("GEMINI_API_KEY",),
           "initialize and session/new, with a prototype of the client; no whole turn"),
    Preset("opencode", "acp", ("opencode", "acp"), "npm install -g opencode-ai", _MANY,
           "turns, session/load and session/resume after kill -9, with a prototype of the client"),
    Preset("claude-acp", "acp", ("claude-agent-acp",), "npm install -g @agentclientprotocol/claude-agent-acp",
           _ANTHROPIC, _UNTRIED),
    Preset("aider", "command", ("aider", "--yes-always", "--no-gitignore", "--no-check-update", "--no-analytics",
                                "--no-show-model-warnings", "--message-file", "{prompt_file}"),
           "pip install aider-chat", _MANY, "an edit, committed by itself, and landed, with a terminal (aider 0.86.2)",
           (("tty", "true"), ("exclude", '[".aider*"]'))),
    Preset("claude-p", "command", _CLAUDE_P, "npm install -g @anthropic-ai/claude-code", _ANTHROPIC,
           "killed with kill -9 in a command, the session resumed, landed, each token counted (Claude Code 2.1)",
           (("resume_argv", _list((*_CLAUDE_P, "--resume", "{session}"))), ("stdin", '"prompt"'),
            ("stream", '"claude"'), ("success", '{json = "is_error == false"}'))),
    Preset("codex-exec", "command", (*_CODEX_EXEC, "-"), "npm install -g @openai/codex", _OPENAI,
           "killed with kill -9 in a command, the session resumed, landed (codex-cli 0.169.0)",
           (("resume_argv", _list((*_CODEX_EXEC, "resume", "{session}", "-"))), ("stdin", '"prompt"'),
            ("stream", '"codex"'))),
)
"""The presets. Those that pass by an agent's own sandbox or questions rely on garrison's sandbox in their place."""


def find_preset(name: str) -> Preset | str:
    """Return the preset with that name, else what to say."""
    by_name = {preset.name: preset for preset in PRESETS}
    if name in by_name:
        return by_name[name]
    near = nearest(name, by_name)
    return f"no preset {name!r}; " + (f"did you mean {near}?" if near else f"there are {', '.join(by_name)}")
