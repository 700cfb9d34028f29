"""Claude as a kind of agent: its profile, and access to its model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from garrison.agents.base import WORKER
from garrison.agents.claude.settings import (
    ENVIRONMENT,
    KEYS,
    PROXY,
    ClaudeSettings,
    from_profile,
)
from garrison.agents.profile import Profile
from garrison.errors import Refused
from garrison.extras import EXTRAS
from garrison.plugins import PluginGroup, load
from garrison.system.environment import child_environment
from garrison.tables import readers_of
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from garrison.agents.base import Agent, Assignment
    from garrison.agents.claude.attempt import ClaudeAgent
    from garrison.agents.claude.log_in import OutsideLogIn
    from garrison.agents.session_options import SessionOptions
    from garrison.config import AgentTable
    from garrison.records.budget import Limits

_OF_CLOUDS = "CLAUDE_CODE_USE_"
"""Prefix of the variables that make the CLI use another provider's API, with that provider's log-in."""


class ClaudeProfile(Value, Profile):
    """A Claude agent from the configuration."""

    extra: ClassVar[str] = "claude"
    modules: ClassVar[tuple[str, ...]] = ("garrison.agents.claude.attempt", "garrison.agents.claude.connection")
    has_session: ClassVar[bool] = True
    can_validate: ClassVar[bool] = True
    own_log_in: ClassVar[bool] = True
    reads_structure: ClassVar[bool] = True
    fills_variables: ClassVar[bool] = False
    is_always_shown: ClassVar[bool] = True
    silence_setting: ClassVar[str] = "stale"
    reporter: ClassVar[str] = "claude-cli/"  # type: ignore[misc]

    name: str
    settings: ClaudeSettings = msgspec.field(default_factory=ClaudeSettings)
    env: tuple[str, ...] = ENVIRONMENT

    @classmethod
    def read(cls, config: AgentTable) -> ClaudeProfile:
        return cls(config.name, from_profile(config.table), (*ENVIRONMENT, *config.env))

    @classmethod
    def setting_names(cls) -> Collection[str]:
        return tuple(readers_of(ClaudeSettings))

    def settings_shown(self) -> dict[str, object]:
        return {key: getattr(self.settings, key) for key in readers_of(ClaudeSettings)}

    # ---- where it starts

    def start_as(self, role: str) -> ClaudeAgent:
        from garrison.agents.claude.attempt import ClaudeAgent

        return ClaudeAgent(self.name, self.settings, role)

    def start_session(self, name: str, defaults: SessionOptions) -> Agent:
        make: Callable[[str, ClaudeSettings, SessionOptions], Agent] = load(PluginGroup.PARTS, "agent.session")
        return make(name, self.settings, defaults)

    @property
    def variables(self) -> Mapping[str, str]:
        return self.settings.set

    @property
    def program(self) -> str:
        return self.settings.cli or ""

    def is_installed(self, path: str) -> bool:
        return EXTRAS[self.extra].is_installed

    # ---- its node

    def check_node(self, node: str, attributes: Mapping[str, object]) -> None:
        self.settings.for_node(node, attributes)

    def limits_of(self, node: str, attributes: Mapping[str, object]) -> Limits:
        return self.settings.for_node(node, attributes).limits

    def turns_of(self, node: str, attributes: Mapping[str, object]) -> int | None:
        return self.settings.for_node(node, attributes).max_turns

    def model_of(self, node: str, attributes: Mapping[str, str]) -> str:
        return self.settings.for_node(node, attributes).model or ""

    def prompts_of(self, assignment: Assignment, text: str, *, is_session: bool) -> list[tuple[str, str]]:
        """Return the system prompt that garrison adds, and the task."""
        from garrison.agents.claude.attempt import SESSION, system_prompt

        task = assignment.task
        settings = self.settings.for_node(task.node, task.attributes)
        return [("system prompt, added to the program's own",
                 system_prompt(assignment, settings, SESSION if is_session else WORKER)), ("message (task)", text)]

    # ---- access to its model

    def log_in(self, home: Path, env: Mapping[str, str], environ: Mapping[str, str]) -> OutsideLogIn | None:
        """Return the log-in of its configuration folder, which its CLI renews; None with a key, or `login = "file"`."""
        if self.settings.login != PROXY or any({**env, **self.settings.set}.get(key) for key in KEYS):
            return None
        from garrison.agents.claude.cli_process import find_cli, log_in_environment
        from garrison.agents.claude.log_in import OutsideLogIn

        return OutsideLogIn(self._config_folder(home), (find_cli(self.settings),),
                            log_in_environment(home, self.settings, self.env, environ))

    def check_access(self, name: str, home: Path, environ: Mapping[str, str], passed: Collection[str] | None) -> None:
        """Refuse it without a key of any provider and without a valid log-in in the home."""
        from garrison.agents.claude.log_in import has_log_in

        env = dict(environ) if passed is None else child_environment(environ, {*passed, *self.env})
        known = {key for key, value in {**env, **self.settings.set}.items() if value}
        if known & set(KEYS) or any(key.startswith(_OF_CLOUDS) for key in known):
            return
        if not has_log_in(self._config_folder(home)):
            raise Refused(f"agent {name} has no key and no log-in: set ANTHROPIC_API_KEY where you launch, or run "
                          "`garrison login`")
        log_in = self.log_in(home, {}, environ)
        if log_in is not None and (not log_in.variables(now := time.time()) or log_in.has_expired(now)):
            raise Refused(f"the log-in of agent {name} has expired, and its CLI did not renew it: run `garrison login`")

    def _config_folder(self, home: Path) -> Path:
        from garrison.agents.claude.cli_process import config_folder

        return Path(self.settings.set.get("CLAUDE_CONFIG_DIR") or config_folder(home))

    # ---- what a user can do with it

    def why_no_keyboard(self, agent: str, node: str) -> str:
        return (f"a Claude session reads no keyboard; `garrison tell {node} TEXT` sends it a message, "
                f"`garrison takeover {node}` lets you take over")
