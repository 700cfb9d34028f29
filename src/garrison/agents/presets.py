"""Presets: profiles of known agents for config.toml, and what each needs. Pure except for checking the PATH and the
files of log-ins: whether they exist, and whether one contains an API key.

A preset is a text to copy, not code: any other agent needs a profile of the same form.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.plugins import PluginGroup, load
from garrison.sandbox.proxy.apis import APIS
from garrison.spelling import nearest
from garrison.system.environment import child_environment
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.agents.profile import OutsideKey, Profile


class LogIn(Value):
    """A log-in of an agent's own program."""

    command: str
    """Command that logs in."""
    folder: str
    """Folder of its file, below the user's home."""
    file: str
    variable: str = ""
    """Variable that names another folder."""
    key: tuple[str, ...] = ()
    """Keys of the tables in its file, outermost first, that may contain an API key."""
    key_variable: str = ""
    """Variable that also passes that key to the program."""

    def find(self, environ: Mapping[str, str]) -> Path | None:
        """Return the path of its file, None if there is none."""
        folder = Path(environ.get(self.variable) or Path(environ.get("HOME") or "/", self.folder))
        return folder / self.file if (folder / self.file).is_file() else None


class KeyInFile(Value):
    """The API key in the log-in of a program, for use outside a sandbox."""

    folder: Path
    log_in: LogIn

    def variables(self, _now: float) -> dict[str, str]:
        """Return the variable with the key; empty if the file contains none, but for example an account's tokens."""
        value: object = None
        # The file belongs to another program: it may be unreadable, half written or too deeply nested for `json`.
        with suppress(OSError, ValueError, RecursionError):
            value = json.loads((self.folder / self.log_in.file).read_bytes())
        for name in self.log_in.key:
            value = value.get(name) if isinstance(value, dict) else None
        return {self.log_in.key_variable: value} if self.log_in.key and value and isinstance(value, str) else {}


class Preset(Value):
    """A profile of a known agent."""

    name: str
    kind: str
    argv: tuple[str, ...]
    package: str
    """How the program is installed."""
    env: tuple[str, ...]
    """Variables that contain its key; not needed if its own program is logged in."""
    seen: str
    """Features tested with garrison."""
    more: tuple[tuple[str, str], ...] = ()
    """Further settings, as TOML has them."""
    set: tuple[tuple[str, str], ...] = ()
    """Variables that it gets, with their values."""
    log_in: LogIn | None = None
    urls: tuple[str, ...] = ()
    """Variables with the base URL of its model's API, if it is not the provider's."""

    @property
    def program(self) -> str:
        return self.argv[0]

    def find(self, path: str | None = None) -> str | None:
        """Return where its program is installed, None if it is not."""
        return shutil.which(self.program, path=path)

    def has_access(self, environ: Mapping[str, str]) -> bool:
        """Return whether it can access its model from here, by a key or a log-in."""
        return any(environ.get(name) for name in self.env) or (
            self.log_in is not None and self.log_in.find(environ) is not None)

    def access(self, environ: Mapping[str, str]) -> str:
        """Return how it accesses its model from here: by a key, by a log-in, or not at all and what to do."""
        if key := next((name for name in self.env if environ.get(name)), ""):
            return f"{key} is set"
        if self.log_in is not None and (path := self.log_in.find(environ)):
            if KeyInFile(path.parent, self.log_in).variables(0.0) or self.log_in is _CLAUDE_LOG_IN:
                return f"logged in ({path}, which stays outside a sandbox)"
            return f"logged in ({path}, which a sandbox shows only if `read` names it: docs/agents.md)"
        other = f", or run `{self.log_in.command}`" if self.log_in is not None else ""
        return f"no key and no log-in: set {' or '.join(self.env)} where you launch{other}"

    def profile(self) -> str:
        """Return the profile as TOML for config.toml."""
        kind = [] if self.kind == "command" else [f'kind = "{self.kind}"']
        lines = [*kind, f"argv = {_list(self.argv)}", f"env = {_list((*self.env, *self.urls))}",
                 *(f"{key} = {value}" for key, value in self.more)]
        table = [f"[agents.{self.name}.set]", *(f"{name} = '{value}'" for name, value in self.set)]
        return "\n".join([f"[agents.{self.name}]", *lines, *(table if self.set else ())])

    def to_json(self, environ: Mapping[str, str]) -> dict[str, object]:
        return {"name": self.name, "kind": self.kind, "program": self.program,
                "installed": self.find(environ.get("PATH")), "package": self.package, "env": list(self.env),
                "access": self.access(environ), "seen": self.seen, "profile": self.profile()}


def _list(words: Iterable[str]) -> str:
    return "[" + ", ".join(json.dumps(word) for word in words) + "]"


_KEY_NAMES = frozenset(key.name for api in APIS.values() for key in api.keys)
_CLAUDE_TOKEN = "CLAUDE_CODE_OAUTH_TOKEN"
_OPENAI = ("OPENAI_API_KEY",)
_ANTHROPIC = ("ANTHROPIC_API_KEY", _CLAUDE_TOKEN)
_MANY = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
_OPENAI_URL, _ANTHROPIC_URL = ("OPENAI_BASE_URL",), ("ANTHROPIC_BASE_URL",)
_AT_OPENAI = "${OPENAI_BASE_URL:-https://api.openai.com/v1}"
_CODEX_LOG_IN = LogIn("codex login", ".codex", "auth.json", "CODEX_HOME", ("OPENAI_API_KEY",), "OPENAI_API_KEY")
_CLAUDE_LOG_IN = LogIn("claude auth login", ".claude", ".credentials.json", "CLAUDE_CONFIG_DIR")
_AIDER_GAVE_UP = r"litellm\.\w+Error(?![\s\S]*(?:Retrying in |Applied edit to ))"
"""aider's output when it gives up a request; it still exits with 0."""
_CLAUDE_P = ("claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
             "--permission-mode", "bypassPermissions")
# Codex runs commands in login shells, whose /etc/profile sets the PATH again: programs below HOME were not found there
_NO_LOGIN_SHELL = ("-c", "allow_login_shell=false")
_CODEX_EXEC = ("codex", "exec", "--json", "--dangerously-bypass-approvals-and-sandbox", *_NO_LOGIN_SHELL,
               "-c", "model_provider=garrison", "-c", 'model_providers.garrison={name="OpenAI", '
               'wire_api="responses", base_url="{env:OPENAI_BASE_URL:-https://api.openai.com/v1}", '
               'env_key="OPENAI_API_KEY"}')
_CODEX_RESUME = ("codex", "resume", "{session}", "--dangerously-bypass-approvals-and-sandbox", *_NO_LOGIN_SHELL, "-c",
                 "model_provider=garrison", "-c", 'model_providers.garrison={name="OpenAI", wire_api="responses", '
                 f'base_url="{_AT_OPENAI}", env_key="OPENAI_API_KEY"}}')
_SEEN = "in the sandbox, offline: killed with kill -9 at each phase, resumed in its session, its report taken"
_IN_COMMAND = "in the sandbox, offline: killed with kill -9 in a command, resumed in its session, each token counted"
_CODEX_CONFIG = ('{"allow_login_shell": false, "model_provider": "garrison", "model_providers": {"garrison": '
                 f'{{"name": "OpenAI", "wire_api": "responses", "base_url": "{_AT_OPENAI}", '
                 '"env_key": "OPENAI_API_KEY"}}}')
_OPENCODE_CONFIG = ('{"autoupdate": false, "enabled_providers": ["garrison"], "model": "garrison/gpt-5.1", "provider": '
                    '{"garrison": {"npm": "@ai-sdk/openai-compatible", "name": "OpenAI", "models": {"gpt-5.1": {}}, '
                    f'"options": {{"baseURL": "{_AT_OPENAI}", "apiKey": "{{env:OPENAI_API_KEY}}"}}}}}}}}')
PRESETS = (
    Preset("codex", "acp", ("codex-acp",), "npm install -g @openai/codex @agentclientprotocol/codex-acp", _OPENAI,
           f"{_SEEN} (codex-acp 2.6.0)", (("mode", '"agent-full-access"'), ("takeover", _list(_CODEX_RESUME))),
           (("CODEX_CONFIG", _CODEX_CONFIG),),
           _CODEX_LOG_IN, _OPENAI_URL),
    Preset("gemini", "acp", ("gemini", "--acp", "--model", "gemini-2.5-pro"), "npm install -g @google/gemini-cli",
           ("GEMINI_API_KEY",),
           "in the sandbox, offline: killed with kill -9 at each phase, often in another session from then on (0.61.0)",
           set=(("GEMINI_CLI_TRUST_WORKSPACE", "true"),),
           log_in=LogIn("gemini", ".gemini", "oauth_creds.json"), urls=("GOOGLE_GEMINI_BASE_URL",)),
    Preset("opencode", "acp", ("opencode", "acp"), "npm install -g opencode-ai", _OPENAI, f"{_SEEN} (1.18.33)",
           (("takeover", _list(("opencode", "--session", "{session}"))),),
           set=(("OPENCODE_DISABLE_MODELS_FETCH", "1"), ("OPENCODE_CONFIG_CONTENT", _OPENCODE_CONFIG)),
           log_in=LogIn("opencode auth login", ".local/share/opencode", "auth.json", "", ("openai", "key"),
                        "OPENAI_API_KEY"), urls=_OPENAI_URL),
    Preset("claude-acp", "acp", ("claude-agent-acp",), "npm install -g @agentclientprotocol/claude-agent-acp",
           _ANTHROPIC, f"{_SEEN} (0.49.0)", (("takeover", _list(("claude", "--resume", "{session}"))),),
           log_in=_CLAUDE_LOG_IN, urls=_ANTHROPIC_URL),
    Preset("aider", "command", ("aider", "--yes-always", "--no-gitignore", "--no-check-update", "--no-analytics",
                                "--no-show-model-warnings", "--message-file", "{prompt_file}"),
           "pip install aider-chat", _MANY,
           "in the sandbox, offline: an edit that it committed itself, landed, each token counted (0.86.2)",
           (("tty", "true"), ("exclude", '[".aider*"]'), ("success", f"{{stdout_not = '{_AIDER_GAVE_UP}'}}")),
           (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),), urls=_OPENAI_URL),
    Preset("claude-p", "command", _CLAUDE_P, "npm install -g @anthropic-ai/claude-code", _ANTHROPIC,
           f"{_IN_COMMAND} (Claude Code 2.1.330)",
           (("resume_argv", _list((*_CLAUDE_P, "--resume", "{session}"))), ("stdin", '"prompt"'),
            ("stream", '"claude"'), ("success", '{json = "is_error == false"}')),
           log_in=_CLAUDE_LOG_IN, urls=_ANTHROPIC_URL),
    Preset("codex-exec", "command", (*_CODEX_EXEC, "-"), "npm install -g @openai/codex", _OPENAI,
           f"{_IN_COMMAND} (codex-cli 0.169.0)",
           (("resume_argv", _list((*_CODEX_EXEC, "resume", "{session}", "-"))), ("stdin", '"prompt"'),
            ("stream", '"codex"')), log_in=_CODEX_LOG_IN, urls=_OPENAI_URL),
)
"""The presets. Those that disable an agent's own sandbox or questions rely on garrison's sandbox instead."""


def find_log_in(program: str) -> LogIn | None:
    """Return the log-in of a preset's program, None if there is none, or no such preset."""
    name = Path(program).name
    return next((preset.log_in for preset in PRESETS if preset.program == name and preset.log_in is not None), None)


def find_outside_key(profile: Profile, env: Mapping[str, str], environ: Mapping[str, str]) -> OutsideKey | None:
    """Return the log-in of an agent's own program, if its profile names its variable but no key.

    Args:
        env: variables of the agent.
        environ: those of this process.
    """
    found = find_log_in(profile.program)
    path = found.find(environ) if found is not None else None
    if found is None or path is None or any({**env, **profile.variables}.get(name) for name in profile.env
                                            if name in _KEY_NAMES):
        return None
    if found.key_variable in profile.env:
        return KeyInFile(path.parent, found)
    if _CLAUDE_TOKEN not in profile.env:
        return None
    names = {"CLAUDE_CONFIG_DIR": str(path.parent)} if environ.get("CLAUDE_CONFIG_DIR") else {}
    renewed: Callable[[Path, tuple[str, ...], Mapping[str, str]], OutsideKey] = load(PluginGroup.PARTS, "claude.log_in")
    return renewed(path.parent, ("claude",), child_environment(environ, (), names))


def find_preset(name: str) -> Preset | str:
    """Return the preset with that name, else the error message."""
    by_name = {preset.name: preset for preset in PRESETS}
    if name in by_name:
        return by_name[name]
    near = nearest(name, by_name)
    return f"no preset {name!r}; " + (f"did you mean {near}?" if near else f"there are {', '.join(by_name)}")
