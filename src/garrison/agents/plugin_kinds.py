"""Kinds of agents from installed packages: entry points of the group `garrison.agents`.

A package offers a function `make(name, settings) -> Agent`: it takes the name and the settings of a profile
`[agents.NAME]` with that kind, raises ValueError for a wrong one, and returns an object with `start(assignment, now)`
(`agents.base.Agent`), such as a `CommandAgent`. An attribute `program` names the program that it runs, which is checked
before a run starts, and `reporting` says how it reports (`briefing.Reporting`).

A plug-in is third-party code: an exception ends the attempt with one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from garrison.agents.base import PendingQuestion, Trouble, Work, WorkResult
from garrison.agents.briefing import Reporting
from garrison.agents.profile import LIMITS, Profile, read_limits, show_limits
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.plugins import PluginGroup, load
from garrison.records.budget import NO_LIMITS, Limits
from garrison.values import Value

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from garrison.agents.base import Agent, Assignment
    from garrison.config import AgentTable


class PluginProfile(Value, Profile):
    """An agent from the configuration whose kind comes from a package."""

    name: str
    kind: str
    where: str
    settings: Mapping[str, object] = msgspec.field(default_factory=dict)
    env: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS

    fills_variables: ClassVar[bool] = False

    @classmethod
    def read(cls, config: AgentTable) -> PluginProfile:
        settings = {name: value for name, value in config.settings.items() if name not in LIMITS}
        return cls(config.name, config.kind, config.where, settings, config.env, read_limits(config.table))

    def settings_shown(self) -> dict[str, object]:
        return {**self.settings, **show_limits(self.limits)}

    def start_as(self, role: str) -> PluginAgent:
        return PluginAgent(self)

    @property
    def reporting(self) -> Reporting:
        return PluginAgent(self).reporting

    @property
    def program(self) -> str:
        return PluginAgent(self).program

    def is_installed(self, path: str) -> bool:
        return True

    def check_node(self, node: str, attributes: Mapping[str, object]) -> None:
        PluginAgent(self)


class PluginAgent:
    """An agent of a plug-in; its exceptions become one line."""

    def __init__(self, profile: PluginProfile) -> None:
        """Make it; UsageError if the package cannot be loaded or refuses the profile."""
        self.name, self.kind = profile.name, profile.kind
        make = load(PluginGroup.AGENTS, profile.kind)
        try:
            self._agent: Agent = make(profile.name, dict(profile.settings))
        except GarrisonError:
            raise
        except Exception as error:  # a package's code may raise anything
            raise UsageError(f"{profile.where}: {_describe(error)}") from error

    @property
    def program(self) -> str:
        return str(getattr(self._agent, "program", "") or "")

    @property
    def reporting(self) -> Reporting:
        told = getattr(self._agent, "reporting", Reporting.EXIT_CODE)
        return told if isinstance(told, Reporting) else Reporting.EXIT_CODE

    def start(self, assignment: Assignment, now: float) -> Work:
        """Start the work; Refused if the plug-in fails."""
        return _Guarded(self.kind, self._call(lambda: self._agent.start(assignment, now)))

    def _call(self, start: Callable[[], Work]) -> Work:
        try:
            return start()
        except GarrisonError:
            raise
        except Exception as error:  # a package's code may raise anything
            raise Refused(f"the kind of agent {self.kind} failed: {_describe(error)}") from error


class _Guarded(Work):
    """Work of a plug-in's agent: its errors end the attempt, not the orchestrator."""

    def __init__(self, kind: str, work: Work) -> None:
        self._kind, self._work = kind, work
        self._failed = ""

    def poll(self, now: float) -> WorkResult | None:
        if self._failed:
            return WorkResult("fail", self._failed)
        try:
            return self._work.poll(now)
        except GarrisonError:
            raise
        except Exception as error:  # a package's code may raise anything
            self._failed = f"the kind of agent {self._kind} failed: {_describe(error)}"
            self.stop(now)
            return None

    def stop(self, now: float) -> None:
        self._ask(lambda: self._work.stop(now), None)

    def process(self) -> tuple[int, int] | None:
        return self._ask(self._work.process, None)

    def wake_at(self) -> float | None:
        return 0.0 if self._failed else self._ask(self._work.wake_at, None)

    def forget(self) -> None:
        self._ask(self._work.forget, None)

    @property
    def session(self) -> str | None:
        return self._ask(lambda: self._work.session, None)

    @property
    def phase(self) -> str | None:
        return self._ask(lambda: self._work.phase, None)

    @property
    def question(self) -> PendingQuestion | None:
        return self._ask(lambda: self._work.question, None)

    @property
    def trouble(self) -> Trouble | None:
        return self._ask(lambda: self._work.trouble, None)

    @property
    def has_keyboard(self) -> bool:
        return self._ask(lambda: self._work.has_keyboard, False)

    @property
    def watched_files(self) -> tuple[Path, ...]:
        return self._ask(lambda: self._work.watched_files, ())

    def answer(self, question: str, text: str) -> None:
        self._ask(lambda: self._work.answer(question, text), None)

    def _ask(self, call: Callable[[], T], default: T) -> T:
        try:
            return call()
        except Exception as error:  # it need not implement the whole protocol
            if not isinstance(error, AttributeError):
                self._failed = f"the kind of agent {self._kind} failed: {_describe(error)}"
            return default


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"
