"""Configuration: the timing of the processes, and the home's `config.toml`.

Only this module and `directories` read garrison's environment variables for themselves. Everything is computed from
arguments (`environ`, paths), so that a test, or a resume by cron, decides what it sees.

Each table of `config.toml` is a record below, in which a field is a key with its default and its meaning (`RECORDS`);
`[agents.NAME]` is a profile, and how an agent of that name is run depends on its kind. `[sandbox]` says what confined
processes may do (`sandbox.rights`). docs/configuration.md shows all of them.

A repository may have a `garrison.toml` with the tables `[launch]`, `[guard]` and `[[gates]]` alone: its own gate and
set-up, which files belong into it, and what tests which paths. Agents can change that file, so nothing in it gives them
rights.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from garrison.directories import find_home as find_home  # noqa: PLC0414  # plug-ins import it from here
from garrison.ends import ChangeKind, Effect
from garrison.errors import RecordUnreadable, UsageError
from garrison.plugins import PluginGroup, offered
from garrison.spelling import nearest
from garrison.tables import (
    Table,
    as_amount,
    as_count,
    as_flag,
    as_mapping,
    as_strings,
    as_subfolder,
    as_text,
    matching,
    member,
    number,
    one_of,
    or_none,
    readers_of,
    setting,
    settings_by_key,
    whole,
)
from garrison.values import Value, field_names, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
AGENT_KINDS = ("command", "claude", "session", "acp")
"""Kinds of agent profiles."""
PROFILE_RIGHTS = ("sandbox", "network", "hosts", "host_ports", "read", "write", "hide", "push", "image", "devcontainer")
"""Keys of an agent profile that state its rights in the sandbox, whatever its kind."""
PROFILE_KEYS = ("kind", "env", "failover")
"""Other keys of an agent profile that mean the same whatever its kind."""
SANDBOX_KEYS = ("mode", *PROFILE_RIGHTS[1:])
"""Keys of `[sandbox]`, and of its tables for one role each."""
PROJECT_FILE = "garrison.toml"
"""A repository's own configuration, in its top directory."""
GATES, WHOLE_GATE_EVERY = "gates", "whole_gate_every"
"""Its gates by path (`merge.gates_by_path`), and after how many landings the whole gate runs."""
PROJECT_TABLES = ("launch", "guard", GATES, WHOLE_GATE_EVERY)
"""Its tables, and the key above them."""
OCCASIONS = ("escalate", "question", "failed", "wait", "done", "stopped")
"""Events that `[notify]` can name: those of the command, the webhook and the page's desktop notifications."""


class Timing(Value):
    """Timeouts and intervals of the processes, in seconds; each value is set by `GARRISON_<NAME>`."""

    rescan: float = 1.0
    """Period of the slow timer, which bounds the cost of a lost event."""
    spawn_deadline: float = 30.0
    """From the lease to `active`; a later start counts as failed."""
    beat_timeout: float = 300.0
    """Age of the last heartbeat after which a process is reported stale."""
    orphan_grace: float = 600.0
    """Time without a guardian and a launcher after which a runner starts nothing new."""
    restart_window: float = 600.0
    """Sliding window in which the deaths of a name count."""
    healthy_after: float = 60.0
    """Uptime that resets the backoff of a name; a probe that reaches it closes the circuit breaker."""
    probe_after: float = 0.0
    """From parking a name to its first probe, doubled after each that fails; 0: as long as the window."""
    damage_patience: float = 5.0
    """Time for a damaged record to be repaired; then the process gives up and names it."""
    failover_patience: float = 300.0
    """Longest wait for an agent's limit or outage before the next agent of its `failover` continues."""
    git_patience: float = 10.0
    """Time for which the same error of git is retried before the node or attempt fails for it; a lock passes."""
    sweep_grace: float = 2.0
    """Between TERM and KILL when an incarnation is replaced."""
    rescue_every: float = 300.0
    """Between two snapshots of an agent's uncommitted work."""
    rescue_limit: float = 120.0
    """Longest duration of a snapshot; a worktree that needs longer is tried less and less often."""
    stop_launcher: float = 60.0
    stop_guardian: float = 45.0
    stop_runner: float = 30.0
    stop_orchestrator: float = 15.0
    """Deadlines of a graceful stop; each process has less time than its parent."""
    gate_timeout: float = 1800.0
    acceptance_timeout: float = 1800.0
    setup_timeout: float = 1800.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Timing:
        """Return the defaults, overridden by `GARRISON_RESCAN`, `GARRISON_ORPHAN_GRACE` and so on."""
        values = {}
        for name in field_names(cls):
            text = environ.get(f"GARRISON_{name.upper()}")
            if text is not None:
                values[name] = _seconds(name, text)
        return cls(**values)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Also refuses nan and infinity, which float() reads: every comparison with nan is false.
    if not 0 < value < 1e7:
        raise UsageError(f"GARRISON_{name.upper()}={text!r} should be a number of seconds above 0")
    return value


# --- config.toml ------------------------------------------------------------------------------------------------------


class AgentsConfig(Value):
    """The table `[agents]` itself: what applies to every agent whose profile states none of its own."""

    budget: float | None = setting(None, or_none(as_amount))
    """US dollars of a node; None: that of the agent's kind."""
    turns: int | None = setting(300, or_none(as_count))
    """Responses of its model in an attempt."""
    silence: float | None = setting(None, as_amount)
    """Seconds of silence that are a hang; None: that of the agent's kind."""


AGENTS_KEYS = tuple(readers_of(AgentsConfig))


class AgentTable(Value):
    """A profile `[agents.NAME]`; its table has the keys that depend on its kind as well."""

    name: str
    kind: str
    table: Table
    env: tuple[str, ...] = ()
    """Names of environment variables that the agent gets."""
    failover: object = None
    """Agents that continue when it cannot, as the file has them."""

    @property
    def where(self) -> str:
        return f"{self.table.place()}: {self.table.name}"

    @property
    def settings(self) -> dict[str, object]:
        return {key: value for key, value in self.table.values.items()
                if key not in (*PROFILE_KEYS, *PROFILE_RIGHTS) and not key.startswith("x_")}


class SetupConfig(Value):
    """The table `[setup]`: how long and how much is kept of what set-ups left, for each repository."""

    keep_days: float = setting(14.0, number("a number of days", 0, 1e6))
    """Days since its last use."""
    keep_gb: float = setting(10.0, number("a number of gigabytes", 0, 1e6))
    """Gigabytes of all together."""
    keep_free: float = setting(10.0, number("a number of percent", 0, 90))
    """Part of the disk that stays free, in percent."""
    caches: bool = setting(True, as_flag)
    """True if set-ups, agents and gates read the caches of package managers in the user's home."""


_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*[ceE]|--(?:eval|command|execute)|-Command")
"""Option of a shell or an interpreter whose next word is a script."""


def _command(value: object) -> tuple[str, ...]:
    """Read a command, no script of which may have a part that an agent wrote: it would run as the user."""
    words = as_strings(value)
    if any(_SCRIPT_FOLLOWS.fullmatch(option) and "{text}" in word for option, word in pairwise(words)):
        raise ValueError('without {text} in a script, which would run what an agent writes; in the script, use '
                         '"$GARRISON_NOTIFY_TEXT", or read the JSON on standard input')
    return words


def _occasions(value: object) -> tuple[str, ...]:
    words = as_strings(value)
    if any(word not in OCCASIONS for word in words):
        raise ValueError(f"a list of events among {', '.join(OCCASIONS)}")
    return words


def _path(value: object) -> str:
    """Read the absolute path of a file; `~` is the user's home."""
    path = os.path.expanduser(value) if isinstance(value, str) else ""  # noqa: PTH111  # Path raises without a home
    if not path.startswith("/"):
        raise ValueError("the path of a file, from / or ~")
    return path


def _hours(value: object) -> str:
    """Read two times of a day, `22:00-07:00`, or '' for none."""
    if not isinstance(value, str) or not re.fullmatch(r"((?:[01]\d|2[0-3]):[0-5]\d-(?:[01]\d|2[0-3]):[0-5]\d)?", value):
        raise ValueError('two times of a day, as in "22:00-07:00"')
    return value


class NotifyConfig(Value):
    """The table `[notify]`: an argv whose words may hold {text}, {run}, {event} and {node}; seconds it may take."""

    command: tuple[str, ...] = setting((), _command)
    webhook: str = setting("", matching(r"(https?://[^\s/]+\S*)?", "an address that begins with https:// or http://"),
                           is_secret=True)
    """Address to which each notification is sent by POST, as JSON."""
    on: tuple[str, ...] = setting(("escalate", "question", "failed", "wait"), _occasions)
    timeout: float = setting(10.0, number("seconds", 0, 600, above=True))
    urls_file: str = setting("", _path)
    """File with one address of a service a line, in the form of apprise; they have secrets, so none stands here."""
    quiet: str = setting("", _hours)
    """Hours of the day, in local time, in which nothing is sent."""
    link: str = setting("", matching(r"(https?://[^\s/?#]+/?)?", "the address of the page, as in https://box.example"))
    """Address to which links of messages lead; '': that of the last `garrison serve`."""
    buttons: bool = setting(False, as_flag)
    """True if ntfy's messages answer with a button."""
    push_text: bool = setting(False, as_flag)
    """True if pushes to paired devices carry the text of a question, and not only its node and kind."""
    push_contact: str = setting("garrison@example.com", matching(r"[^\s@]+@[^\s@]+\.[^\s@]+", "an address of mail"))
    """Whom a push service may write to about this home's pushes; it sees this address."""


class ChatConfig(Value):
    """The table `[chat]`: limits of a message to the butler, its specialists included, and of all in a day; None: no
    limit.
    """

    budget: float | None = setting(1.0, or_none(number("a number", 0, above=True)))
    """US dollars of a message."""
    budget_day: float | None = setting(10.0, or_none(number("a number", 0, above=True)))
    """US dollars of all messages of the home, a calendar day in UTC."""
    max_turns: int | None = setting(40, or_none(whole(1)))
    """Model turns of one agent for one message."""


class HostsConfig(Value):
    """The table `[hosts]`: the Temporal server through which other machines get their work."""

    temporal: str = setting("", matching(r"([^\s:/]+:[0-9]{1,5})?", "a server's address, as in temporal.example:7233"))
    """Host and port of your own server; '': garrison keeps one alongside the home."""
    namespace: str = setting("default", matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a namespace"))
    lease: float = setting(5.0, number("seconds", 2, 600))
    """Seconds without a sign of life after which another host may continue with a node."""
    tls_ca: str = setting("", _path)
    """File with the authority that signed the server's certificate; like the following three an absolute path."""
    tls_certificate: str = setting("", _path)
    tls_key: str = setting("", _path)
    api_key_file: str = setting("", _path)
    tls_server_name: str = setting("", matching(r"[A-Za-z0-9.-]*", "the name in the server's certificate"))
    """Name in the server's certificate, where it is not that of its address."""


class MergeConfig(Value):
    """The table `[merge]`: settings of all merge queues that the home's runs work."""

    turn: float = setting(900.0, number("seconds", 1, 86_400))
    """Seconds of work for which others wait at most for a node that lost to a moved target (`merge.turns`)."""


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _size(value: object) -> int:
    """Read a number of bytes, which may have a unit."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError('a size such as "10 MB"')
    return int(float(found[1]) * _UNITS[found[2].lower()])


INHERIT, FULL = "inherit", "full"


def _sparse(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list) and value and all(isinstance(each, str) and each.strip() and "\n" not in each
                                                 for each in value):
        return tuple(value)
    if value not in (INHERIT, FULL):
        raise ValueError('"inherit", "full" or a list of folders, such as ["packages/a"]')
    return str(value)


class WorktreesConfig(Value):
    """The table `[worktrees]`: which files the worktrees of agents and the gate's have."""

    sparse: str | tuple[str, ...] = setting(INHERIT, _sparse)
    """`inherit`: where your checkout is sparse, those of its patterns; `full`: all; or those of these folders, or
    patterns of git's sparse checkout."""


class LimitsConfig(Value):
    """The table `[limits]`: limits over all runs of the home."""

    agents: int | None = setting(None, or_none(whole(1, 10_000)))
    """Agents at work at once; None: as many as the runs allow."""
    disk: int | None = setting(None, or_none(_size))
    """Bytes that worktrees, kept set-ups, gate slots and records may take together; None: as many as there are."""


class MergeRule(StrEnum):
    """Who merges an approved and green pull request (`[pull_requests] merge`)."""

    FORGE = "forge"
    """garrison asks the forge to merge the expected commit, by the forge's own rules."""
    AUTO = "auto"
    """garrison turns on the forge's auto-merge for the tested commit, or hands it to the forge's merge queue."""
    GARRISON = "garrison"
    """As FORGE, with a status of garrison's that is green only for the tested merge."""
    PERSON = "person"


def _trust(value: object) -> str | tuple[str, ...]:
    return as_strings(value) if isinstance(value, list) else one_of("write", "all")(value)


_ANY = matching(r"(?s).*", "a text")


class PullRequestOptions(Value):
    """The table `[pull_requests]` of the home's config.toml."""

    merge: MergeRule = setting(MergeRule.FORGE, member(MergeRule))
    approvals: int = setting(1, whole(0, 100))
    """Approvals without which garrison does not merge."""
    trust: str | tuple[str, ...] = setting("write", _trust)
    """Whose comments reach agents: of people with `write` permission, of `all`, or of those named."""
    mention: str = setting("garrison", _ANY)
    """Name by which a comment on the whole asks for work (`@garrison`)."""
    check_limit: float = setting(3600.0, number("seconds", 1, 604_800))
    """Seconds without news after which the user is notified of a check that has not ended."""
    node: str = setting("", _ANY)
    """Node that mends what no node's commits own; '' for the one that a refused run returns to."""
    labels: tuple[str, ...] = setting((), as_strings)
    poll: float = setting(30.0, number("seconds", 1, 3600))
    """Seconds between two looks; up to ten times as many while nothing changes."""
    settle: float = setting(60.0, number("seconds", 0, 86_400))
    """Seconds for which the checks must have stayed as they are before a merge, where the base requires none: a check
    that has yet to register looks like none at all."""
    forge: str = setting("", one_of("", "github", "gitlab", "gitea", "forgejo"))
    """Program of the forge, for hosts whose name does not tell: github, gitlab, gitea or forgejo."""
    status: str = setting("garrison", _ANY)
    """Name of the status that `merge = "garrison"` publishes."""

    def hears(self, author: str, *, can_write: bool) -> bool:
        """Return whether what somebody writes reaches an agent: a stranger's words would steer it."""
        if isinstance(self.trust, str):
            return can_write or self.trust == "all"
        return author.casefold() in map(str.casefold, self.trust)  # no forge tells log-ins apart by case


class LaunchConfig(Value):
    """The table `[launch]`: options of launches, for what neither the command line nor the graph states."""

    gate: str | None = setting(None, as_text)
    gate_path: str | None = setting(None, as_subfolder)
    """Folder of the merged tree in which the gate begins; None: its top."""
    setup: str | None = setting(None, as_text)
    agent: str | None = setting(None, as_text)
    """Agent of the nodes that name none."""
    failover: str | None = setting(None, as_text)
    """Agents that continue when a node's agent cannot, separated by commas."""
    land: str | None = setting(None, one_of("node", "run", "none", "pr"))
    """Rule for what lands, and when: `node`, `run`, `none` or `pr`."""
    base: str | None = setting(None, as_text)
    setup_key: tuple[str, ...] = setting((), as_strings)
    gate_from_target: tuple[str, ...] = setting((), as_strings)
    max_agents: int | None = setting(None, whole(1))
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Key → the file that sets it."""

    @classmethod
    def of(cls, table: Table) -> LaunchConfig:
        """Read the table of a file; UsageError names what is wrong."""
        read = table.read(cls)
        return replace(read, sources={key: table.file for key in LAUNCH_KEYS if key in table.values})

    def over(self, other: LaunchConfig) -> LaunchConfig:
        chosen = {key: getattr(self if key in self.sources else other, key) for key in LAUNCH_KEYS}
        return LaunchConfig(**chosen, sources={**other.sources, **self.sources})


LAUNCH_KEYS = tuple(readers_of(LaunchConfig))


class GuardHooks(StrEnum):
    """Where a repository's own commit hooks run: the values of `[guard] hooks`."""

    AGENT = "agent"
    """For what agents commit, and for what garrison commits for them."""
    GATE = "gate"
    """As part of the gate."""
    NONE = "none"


DEFAULT_EFFECTS: Mapping[ChangeKind, Effect] = {
    **dict.fromkeys(ChangeKind, Effect.TELL), ChangeKind.GATE: Effect.ASK, ChangeKind.INSTRUCTIONS: Effect.ASK,
    ChangeKind.PARTIAL: Effect.ASK,
    ChangeKind.SECRETS: Effect.REFUSE, ChangeKind.SIZE: Effect.REFUSE, ChangeKind.NESTED: Effect.REFUSE}
"""What happens to a change of each kind where `[guard]` does not say it."""


class GuardConfig(Value):
    """The table `[guard]`: what may be in the work that is to land, and what garrison commits for an agent that left it
    uncommitted; None: no limit."""

    max_file: int | None = setting(10_000_000, or_none(_size))
    """Bytes of a file."""
    max_files: int | None = setting(1000, or_none(whole(0)))
    """New files."""
    refuse: tuple[str, ...] = setting((), as_strings)
    """Patterns of further files to refuse."""
    allow: tuple[str, ...] = setting((), as_strings)
    """Patterns of files that no limit and no name refuses."""
    hooks: GuardHooks = setting(GuardHooks.AGENT, member(GuardHooks))
    effects: Mapping[ChangeKind, Effect] = settings_by_key(ChangeKind, member(Effect))
    """Those that are stated."""

    def effect(self, kind: ChangeKind) -> Effect:
        return self.effects.get(kind, DEFAULT_EFFECTS[kind])

    def with_project(self, table: Table) -> GuardConfig:
        """Return it with what a repository's own table states: its limits count, its patterns are added."""
        own, stated = table.read(GuardConfig), table.values
        if "hooks" in stated:
            raise table.error("hooks has no effect there, since agents can change that file; it belongs in config.toml "
                              "of the home (`garrison home`)", "hooks")
        return GuardConfig(own.max_file if "max_file" in stated else self.max_file,
                           own.max_files if "max_files" in stated else self.max_files,
                           (*self.refuse, *own.refuse), (*self.allow, *own.allow), self.hooks,
                           {**self.effects, **own.effects})


class PlanConfig(Value):
    """The table `[plan]`: who plans, and what a plan may say with effect (`garrison plan`)."""

    agent: str | None = setting(None, as_text)
    """Agent that plans; None: the one that does tasks."""
    agents: tuple[str, ...] = setting((), as_strings)
    """Agents that a plan may choose for a task, besides the run's own."""
    commands: tuple[str, ...] = setting((), as_strings)
    """Commands by which a plan may have a task's work accepted, word for word."""
    max_tasks: int = setting(20, whole(1, 500))
    replans: int = setting(1, whole(0, 10))
    """Times that a plan which failed is mended."""


class LessonsConfig(Value):
    """The table `[lessons]`: who words what `garrison lessons` proposes."""

    by: str = setting("rule", one_of("rule", "agent"))
    """`agent`: an agent that reads the repository; what it writes waits for the user as the rule's words do."""
    agent: str | None = setting(None, as_text)
    """That agent; None: the one that does tasks."""


class ServiceConfig(Value):
    """A table `[services.NAME]`: a server that a run starts for its nodes. `{port}` and `{data}` stand for its port and
    its data folder."""

    command: str = setting("", as_text)
    port: int = setting(0, whole(1, 65535))
    ready: str = setting("", as_text)
    """Command that succeeds once it can be used; '' for a connection to its port."""
    per: str = setting("node", one_of("node", "run"))
    """Who shares one: `node` for each node and gate its own, `run` for all nodes of a run."""
    template: str = setting("", as_text)
    """Command that fills a data folder, of which each service gets a copy."""
    env: tuple[tuple[str, str], ...] = setting((), lambda value: tuple(as_mapping(value).items()))
    """Variables of agents, acceptance and gates."""


_SERVICE = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
"""Name of a service."""
RECORDS: Mapping[str, type[object]] = {
    "notify": NotifyConfig, "setup": SetupConfig, "chat": ChatConfig, "launch": LaunchConfig, "guard": GuardConfig,
    "pull_requests": PullRequestOptions, "hosts": HostsConfig, "merge": MergeConfig, "limits": LimitsConfig,
    "plan": PlanConfig, "lessons": LessonsConfig, "worktrees": WorktreesConfig}
"""Table of config.toml → its record."""
TABLES = ("agents", "sandbox", "services", *RECORDS)
"""Tables of config.toml."""


def _table(name: str, record: type[T]) -> Callable[[ConfigFile], T]:
    """Return the method that reads a table, and raises UsageError if it is malformed."""
    def read(self: ConfigFile) -> T:
        return self.table.below(name).read(record)

    return read


class ConfigFile(Value):
    """A home's config.toml. Each table is checked when it is asked for."""

    path: Path
    table: Table
    """The whole file."""

    def agents(self) -> list[AgentTable]:
        """Return the agent profiles; UsageError if they are malformed."""
        agents = self.table.below("agents")
        return [parse_agent(agents.below(name)) for name, table in agents.require(("NAME = {…}",)).items()
                # `turns = 3` is a setting of all agents; `[agents.turns]` is a profile that somebody called so.
                if name not in AGENTS_KEYS or isinstance(table, dict)]

    def services(self) -> dict[str, ServiceConfig]:
        """Return the services by name; UsageError if one is malformed, or says neither command nor port."""
        tables, found = self.table.below("services"), {}
        for name in tables.require(("NAME = {…}",)):
            table = tables.below(name)
            if not _SERVICE.fullmatch(name):
                raise table.error("should be named by small letters, digits and dashes")
            found[name] = service = table.read(ServiceConfig)
            if not service.command or not service.port:
                raise table.error("needs command and port")
        return found

    def agent_defaults(self) -> Mapping[str, object]:
        """Return what `[agents]` itself says of every agent, as it says it; UsageError for an invalid value."""
        agents = self.table.below("agents")
        values = agents.values if isinstance(agents.values, dict) else {}
        stated = {key: values[key] for key in AGENTS_KEYS if key in values and not isinstance(values[key], dict)}
        replace(agents, values=stated).read(AgentsConfig)
        return stated

    notify = _table("notify", NotifyConfig)
    setup = _table("setup", SetupConfig)
    chat = _table("chat", ChatConfig)
    hosts = _table("hosts", HostsConfig)
    merge = _table("merge", MergeConfig)
    limits = _table("limits", LimitsConfig)
    plan = _table("plan", PlanConfig)
    lessons = _table("lessons", LessonsConfig)
    worktrees = _table("worktrees", WorktreesConfig)
    guard = _table("guard", GuardConfig)
    pull_requests = _table("pull_requests", PullRequestOptions)

    def launch(self) -> LaunchConfig:
        """Return the table `[launch]`; UsageError if it is malformed."""
        return LaunchConfig.of(self.table.below("launch"))


def config_path(home: Path) -> Path:
    return home / "config.toml"


def read_config(home: Path) -> ConfigFile:
    """Read a home's config.toml, which may be absent; UsageError if it is not TOML."""
    path = config_path(home)
    try:
        return ConfigFile(path, Table.parse(path, path.read_bytes()))
    except FileNotFoundError:
        return ConfigFile(path, Table(str(path), {}))
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise RecordUnreadable(path, str(error.strerror).lower()) from error


def parse_agent(table: Table) -> AgentTable:
    """Parse a table `[agents.NAME]`; UsageError if it is not a table, or of no known kind."""
    name = table.keys[-1]
    if not isinstance(table.values, dict) and (near := nearest(name, AGENTS_KEYS)):
        raise UsageError(f"{table.place()}: [agents] {name} is not a setting; did you mean {near}?")
    kind = kind_of(name, table.require(("kind", "argv", "env", "success")))
    if kind not in AGENT_KINDS and kind not in (kinds := offered(PluginGroup.AGENTS)):
        kind = table.value("kind", one_of(*AGENT_KINDS, *kinds), kind)
    return AgentTable(name, str(kind), table, table.value("env", as_strings, ()), table.values.get("failover"))


def kind_of(name: str, table: Mapping[str, object]) -> object:
    """Return the kind that a profile states, else the default of its name."""
    return table.get("kind", "claude" if name == "claude" else "command")
