"""An agent that speaks the Agent Client Protocol as a kind of agent: its profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from garrison.agents.acp.settings import AcpSettings, from_profile
from garrison.agents.presets import find_outside_key
from garrison.agents.profile import LIMITS, Profile, read_limits, show_limits
from garrison.agents.variables import expand
from garrison.records.budget import NO_LIMITS, Limits
from garrison.tables import readers_of
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from garrison.agents.acp.attempt import AcpAgent
    from garrison.agents.base import Assignment
    from garrison.agents.profile import OutsideKey
    from garrison.config import AgentTable


class AcpProfile(Value, Profile):
    """An agent from the configuration that speaks the Agent Client Protocol."""

    extra: ClassVar[str] = "acp"
    modules: ClassVar[tuple[str, ...]] = ("garrison.agents.acp.attempt", "garrison.agents.acp.connection")
    has_session: ClassVar[bool] = True
    can_validate: ClassVar[bool] = True
    gives_verdict_by_socket: ClassVar[bool] = True
    silence_setting: ClassVar[str] = "stale"

    name: str
    settings: AcpSettings
    env: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    """Limits on the cost of its model API calls, if the run's proxy makes them."""

    @classmethod
    def read(cls, config: AgentTable) -> AcpProfile:
        return cls(config.name, from_profile(config.table), config.env, read_limits(config.table))

    @classmethod
    def setting_names(cls) -> Collection[str]:
        return (*readers_of(AcpSettings), *LIMITS)

    def settings_shown(self) -> dict[str, object]:
        return {key: getattr(self.settings, key) for key in readers_of(AcpSettings)} | show_limits(self.limits)

    def start_as(self, role: str) -> AcpAgent:
        from garrison.agents.acp.attempt import AcpAgent

        return AcpAgent(self.name, self.settings, role)

    @property
    def argv(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.settings.argv

    @property
    def variables(self) -> Mapping[str, str]:
        return self.settings.set

    def check_words(self, env: Mapping[str, str]) -> None:
        for word in (*self.argv, *self.settings.takeover):
            expand(word, env, f"agent {self.name}: argv")

    def check_node(self, node: str, attributes: Mapping[str, object]) -> None:
        self.settings.for_node(node, attributes)

    def prompts_of(self, assignment: Assignment, text: str, *, is_session: bool) -> list[tuple[str, str]]:
        from garrison.agents.acp.prompts import rules

        return [("rules, before the message", rules(assignment)), ("message (task)", text)]

    def log_in(self, home: Path, env: Mapping[str, str], environ: Mapping[str, str]) -> OutsideKey | None:
        return find_outside_key(self, env, environ)
