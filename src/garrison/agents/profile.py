"""Profile of an agent: what garrison needs from every agent, of any kind.

A kind is a class here or in a separate package: `command_profile` (any program), `plugin_kinds` (a package's),
`registry.SessionProfile` (another agent's model, turn by turn), and in the extras `claude.profile` and `acp.profile`,
which `plugins.OWN` names. `registry` finds an agent's profile by name. The differences between kinds are methods and
attributes of the profile, so no other module checks the kind.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from garrison.agents.briefing import Reporting
from garrison.errors import UsageError
from garrison.records.budget import NO_LIMITS, Limits
from garrison.tables import Table, as_amount, as_count, as_strings, or_none
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from garrison.agents.base import Agent, Assignment
    from garrison.agents.session_options import SessionOptions
    from garrison.config import AgentTable

BUDGETS = ("budget", "budget_run", "budget_day")
"""Settings that limit what an agent may cost: its node, its run, the home in a day."""
LIMITS = (*BUDGETS, "max_turns")
"""Settings of every agent that limit it."""
LIMIT_READERS: Mapping[str, Callable[[object], Any]] = {
    **dict.fromkeys(BUDGETS, or_none(as_amount)), "max_turns": or_none(as_count)}


class OutsideKey(Protocol):
    """Key or token of a log-in, which a network adds to an agent's requests."""

    @property
    def folder(self) -> Path:
        """Folder of the log-in's file."""
        ...

    def variables(self, now: float, /) -> dict[str, str]:
        """Return the variable with the key, empty without one; `now` is in seconds since 1970."""
        ...


class Profile:
    """An agent from config.toml, a preset, or built in. The defaults here are for a program without a session."""

    __slots__ = ()

    extra: ClassVar[str] = ""
    """Extra that has its library, '' if it needs none."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules of each attempt: what its orchestrator loads, then its connection, if it has one."""
    has_session: ClassVar[bool] = False
    """True if it works in a session that accepts messages."""
    can_validate: ClassVar[bool] = False
    """True if it can judge another agent's work."""
    gives_verdict_by_socket: ClassVar[bool] = False
    """True if its verdict as a validator comes through a socket instead of a file of its session."""
    own_log_in: ClassVar[bool] = False
    """True if it works with the log-in of the home, at Anthropic's API."""
    reads_structure: ClassVar[bool] = False
    """True if its report can follow a JSON schema of a node (`output_schema`)."""
    fills_variables: ClassVar[bool] = True
    """True if `${NAME}` in its variables stands for a variable."""
    is_always_shown: ClassVar[bool] = False
    """True if its sandbox always shows its program, whatever its rights."""
    silence_setting: ClassVar[str] = ""
    """Its setting of the seconds of silence that are a hang, '' if it has none."""
    reporter: str = ""
    """Prefix of the User-Agent of its program, if that reports its own usage."""
    silence: float | None = None
    """Seconds of silence that are a hang; None if its session watches that itself."""
    tty: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns of files that are not committed."""
    argv: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """Variables of the caller's environment that it gets."""
    limits: Limits = NO_LIMITS
    """Default limits on its cost."""
    name: str

    # ---- config.toml

    @classmethod
    def read(cls, config: AgentTable) -> Profile:
        """Read the profile of a table; UsageError for an invalid one."""
        raise NotImplementedError

    @classmethod
    def setting_names(cls) -> Collection[str]:
        """Return its settings, in addition to those of every profile."""
        raise NotImplementedError

    @classmethod
    def shared_settings(cls) -> Mapping[str, str]:
        """Return its settings that `[agents]` can set for all agents, each with its key there."""
        return {"budget": "budget", "max_turns": "turns",
                **({cls.silence_setting: "silence"} if cls.silence_setting else {})}

    def settings_shown(self) -> dict[str, object]:
        """Return all settings that depend on its kind, with their values."""
        raise NotImplementedError

    # ---- where it starts

    def start_as(self, role: str) -> Agent:
        """Return the agent for a role, WORKER or VALIDATOR (`agents.base`)."""
        raise NotImplementedError

    def start_session(self, name: str, defaults: SessionOptions) -> Agent:
        """Return the agent that runs its model as a session; UsageError if that cannot be called turn by turn."""
        raise UsageError(f"agent {self.name} cannot run as a session; a Claude agent can, and `scripted`")

    @property
    def reporting(self) -> Reporting:
        """How it reports the end of its task."""
        return Reporting.TOOLS

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that are set for its program."""
        return {}

    @property
    def program(self) -> str:
        """Its program, '' if it has none or the node determines it."""
        return self.argv[0] if self.argv else ""

    def is_installed(self, path: str) -> bool:
        """Return whether it could work on this machine, with that PATH."""
        return shutil.which(self.program, path=path) is not None

    def programs(self, command: str | None) -> list[str]:
        """Return the programs that it may run for a node with that `command`."""
        return []

    def scripts(self) -> list[str]:
        """Return the files that its command names by their full path."""
        return []

    def check_words(self, env: Mapping[str, str]) -> None:
        """Refuse (UsageError) a word of its command that names a variable that is not in `env`."""

    # ---- its node

    def check_node(self, node: str, attributes: Mapping[str, object]) -> None:
        """Refuse (UsageError) attributes of a node that it cannot follow."""

    def limits_of(self, node: str, attributes: Mapping[str, object]) -> Limits:
        """Return the limits on what it may cost at a node; UsageError for an invalid one."""
        stated = read_limits(Table(f"node {node}", {key: attributes[key] for key in ("budget", "max_turns")
                                                    if key in attributes}))
        limits = replace(self.limits, node=stated.node) if "budget" in attributes else self.limits
        return replace(limits, turns=stated.turns) if "max_turns" in attributes else limits

    def turns_of(self, node: str, attributes: Mapping[str, object]) -> int | None:
        """Return the limit of its responses in an attempt of a node; None: no limit."""
        return self.limits_of(node, attributes).turns

    def model_of(self, node: str, attributes: Mapping[str, str]) -> str:
        """Return the model that it uses at a node, '' for its program's default."""
        return attributes.get("model") or ""

    def prompts_of(self, assignment: Assignment, text: str, *, is_session: bool) -> list[tuple[str, str]]:
        """Return (description, text) of each of its first messages, given the text of its task."""
        return [("prompt", text)]

    # ---- access to its model

    def log_in(self, home: Path, env: Mapping[str, str], environ: Mapping[str, str]) -> OutsideKey | None:
        """Return the log-in that its network uses from outside; None for none, or if it has a key.

        Args:
            env: variables of the agent.
            environ: those of this process, for a program that renews it.
        """
        return None

    def check_access(self, name: str, home: Path, environ: Mapping[str, str], passed: Collection[str] | None) -> None:
        """Refuse (Refused) an agent that has neither a key nor a log-in; arguments as of `registry.check_variables`."""

    # ---- what a user can do with it

    def why_no_keyboard(self, agent: str, node: str) -> str:
        """Return why it ignores what the user types, '' if its program has a terminal."""
        if self.tty:
            return ""
        if self.has_session:
            return f"the session of agent {agent} reads no keyboard; `garrison tell {node} TEXT` sends it a message"
        if agent == "command":
            return "its command reads no keyboard; a profile with tty = true gives a program a terminal"
        return f"agent {agent} reads no keyboard; tty = true in [agents.{agent}] gives a command agent a terminal"


def as_program(value: object) -> tuple[str, ...]:
    """Read a command line: a list of strings, the first of which is a program."""
    words = as_strings(value)
    if not words or not words[0]:
        raise ValueError("a list of strings that starts with the program to run")
    return words


def read_limits(table: Table) -> Limits:
    """Return the limits that a table states; UsageError for an invalid one."""
    return Limits(*(table.value(key, LIMIT_READERS[key], None) for key in LIMITS))


def show_limits(limits: Limits) -> dict[str, object]:
    """Return limits as the settings that state them."""
    return dict(zip(LIMITS, (limits.node, limits.run, limits.day, limits.turns), strict=True))


def values_of(attributes: Mapping[str, object], spellings: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return the settings that a node's attributes set; of several spellings, the first one present wins."""
    values = {}
    for name, known in spellings.items():
        value = next((attributes[spelling] for spelling in known if spelling in attributes), None)
        if value is not None:
            values[name] = value
    return values
