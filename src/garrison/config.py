"""Configuration: the timing of the processes, and the home's `config.toml`.

Only this module and `directories` interpret garrison's environment variables. Everything is computed from arguments
(`environ`, paths), so that a test, or a resume by cron, controls the input.

Each table of `config.toml` is a record below, whose fields are keys with their default and meaning (`RECORDS`);
`[agents.NAME]` is an agent's profile, whose keys depend on its kind. `[sandbox]` sets the rights of confined processes
(`sandbox.rights`). docs/configuration.md lists all tables.

A repository may have a `garrison.toml` with only the tables `[launch]`, `[guard]` and `[[gates]]`: its own gate and
set-up, which files belong into it, and gates by path. Agents can change that file, so it cannot give them rights.
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
"""Keys of an agent profile for its rights in the sandbox, for all kinds."""
PROFILE_KEYS = ("kind", "env", "failover")
"""Other keys of an agent profile with the same meaning for all kinds."""
SANDBOX_KEYS = ("mode", *PROFILE_RIGHTS[1:])
"""Keys of `[sandbox]`, and of its tables for one role each."""
PROJECT_FILE = "garrison.toml"
"""A repository's own configuration, in its top directory."""
GATES, WHOLE_GATE_EVERY = "gates", "whole_gate_every"
"""Its gates by path (`merge.gates_by_path`), and the number of landings after which the whole gate runs."""
PROJECT_TABLES = ("launch", "guard", GATES, WHOLE_GATE_EVERY)
"""Its tables, and the key above them."""
OCCASIONS = ("escalate", "question", "failed", "wait", "done", "stopped")
"""Events for `[notify]`: for its command, its webhook and the page's desktop notifications."""


class Timing(Value):
    """Timeouts and intervals of the processes, in seconds; each value is set by `GARRISON_<NAME>`."""

    rescan: float = 1.0
    """Period of the slow timer, which bounds the cost of a lost event."""
    spawn_deadline: float = 30.0
    """Time from the lease to `active`; a later start counts as failed."""
    beat_timeout: float = 300.0
    """Age of the last heartbeat after which a process is reported stale."""
    orphan_grace: float = 600.0
    """Time without guardian and launcher after which a runner starts nothing new."""
    restart_window: float = 600.0
    """Sliding window in which the deaths of a name count."""
    healthy_after: float = 60.0
    """Uptime that resets the backoff of a name; a probe that reaches it closes the circuit breaker."""
    probe_after: float = 0.0
    """Time from parking a name to its first probe, doubled after each failed probe; 0: as long as the window."""
    damage_patience: float = 5.0
    """Time for repairing a damaged record; then the process gives up and names it."""
    failover_patience: float = 300.0
    """Longest wait for an agent's limit or outage before the next agent of its `failover` takes over."""
    git_patience: float = 10.0
    """Time for which the same git error, such as a lock, is retried before the node or attempt fails."""
    sweep_grace: float = 2.0
    """Time between TERM and KILL when an incarnation is replaced."""
    rescue_every: float = 300.0
    """Time between two snapshots of an agent's uncommitted work."""
    rescue_limit: float = 120.0
    """Time limit of a snapshot; a slower worktree is tried less and less often."""
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
    # also refuses nan and infinity, which float() accepts: every comparison with nan is false
    if not 0 < value < 1e7:
        raise UsageError(f"GARRISON_{name.upper()}={text!r} should be a number of seconds above 0")
    return value


# --- config.toml ------------------------------------------------------------------------------------------------------


class AgentsConfig(Value):
    """The table `[agents]` itself: defaults for all profiles."""

    budget: float | None = setting(None, or_none(as_amount))
    """US dollars per node; None: the default of the agent's kind."""
    turns: int | None = setting(300, or_none(as_count))
    """Responses of its model per attempt."""
    silence: float | None = setting(None, as_amount)
    """Seconds of silence that count as a hang; None: the default of the agent's kind."""


AGENTS_KEYS = tuple(readers_of(AgentsConfig))


class AgentTable(Value):
    """A profile `[agents.NAME]`, without the keys of its kind."""

    name: str
    kind: str
    table: Table
    env: tuple[str, ...] = ()
    """Names of environment variables that the agent gets."""
    failover: object = None
    """Failover agents, as written in the file."""

    @property
    def where(self) -> str:
        return f"{self.table.place()}: {self.table.name}"

    @property
    def settings(self) -> dict[str, object]:
        return {key: value for key, value in self.table.values.items()
                if key not in (*PROFILE_KEYS, *PROFILE_RIGHTS) and not key.startswith("x_")}


class SetupConfig(Value):
    """The table `[setup]`: how long and how much set-up output is kept per repository."""

    keep_days: float = setting(14.0, number("a number of days", 0, 1e6))
    """Maximum days since the last use."""
    keep_gb: float = setting(10.0, number("a number of gigabytes", 0, 1e6))
    """Maximum gigabytes in total."""
    keep_free: float = setting(10.0, number("a number of percent", 0, 90))
    """Percentage of the disk to keep free."""
    caches: bool = setting(True, as_flag)
    """True if set-ups, agents and gates read the caches of package managers in the user's home."""


_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*[ceE]|--(?:eval|command|execute)|-Command")
"""Option of a shell or an interpreter whose next word is a script."""


def _command(value: object) -> tuple[str, ...]:
    """Read a command whose scripts contain no text of an agent: it would run as the user."""
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
    """The table `[notify]`: an argv whose words may contain {text}, {run}, {event} and {node}; its time limit in
    seconds."""

    command: tuple[str, ...] = setting((), _command)
    webhook: str = setting("", matching(r"(https?://[^\s/]+\S*)?", "an address that starts with https:// or http://"),
                           is_secret=True)
    """Address to which each notification is sent by POST, as JSON."""
    on: tuple[str, ...] = setting(("escalate", "question", "failed", "wait"), _occasions)
    timeout: float = setting(10.0, number("seconds", 0, 600, above=True))
    urls_file: str = setting("", _path)
    """File with one apprise address per line, outside this file since they contain secrets."""
    quiet: str = setting("", _hours)
    """Hours of the day, in local time, during which nothing is sent."""
    link: str = setting("", matching(r"(https?://[^\s/?#]+/?)?", "the address of the page, as in https://box.example"))
    """Base address of links in messages; '': the address of the last `garrison serve`."""
    buttons: bool = setting(False, as_flag)
    """True if ntfy messages have a button to answer."""
    push_text: bool = setting(False, as_flag)
    """True if pushes to paired devices contain the text of a question, and not only its node and kind."""
    push_contact: str = setting("garrison@example.com", matching(r"[^\s@]+@[^\s@]+\.[^\s@]+", "an address of mail"))
    """Contact address for push services about this home's pushes; they see it."""


class ChatConfig(Value):
    """The table `[chat]`: limits per message to the butler (including specialists) and per day; None: no limit.
    """

    budget: float | None = setting(1.0, or_none(number("a number", 0, above=True)))
    """US dollars per message."""
    budget_day: float | None = setting(10.0, or_none(number("a number", 0, above=True)))
    """US dollars for all messages of the home per calendar day in UTC."""
    max_turns: int | None = setting(40, or_none(whole(1)))
    """Model turns per agent and message."""


class HostsConfig(Value):
    """The table `[hosts]`: the Temporal server through which other machines get their work."""

    temporal: str = setting("", matching(r"([^\s:/]+:[0-9]{1,5})?", "a server's address, as in temporal.example:7233"))
    """Host and port of your own server; '': garrison runs one for the home."""
    namespace: str = setting("default", matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a namespace"))
    lease: float = setting(5.0, number("seconds", 2, 600))
    """Seconds without a heartbeat after which another host may take over a node."""
    tls_ca: str = setting("", _path)
    """File with the certificate authority of the server; an absolute path, like the following three."""
    tls_certificate: str = setting("", _path)
    tls_key: str = setting("", _path)
    api_key_file: str = setting("", _path)
    tls_server_name: str = setting("", matching(r"[A-Za-z0-9.-]*", "the name in the server's certificate"))
    """Name in the server's certificate, if it differs from the address."""


class MergeConfig(Value):
    """The table `[merge]`: settings of all merge queues of the home's runs."""

    turn: float = setting(900.0, number("seconds", 1, 86_400))
    """Maximum seconds of work for which others wait for a node that lost to a moved target (`merge.turns`)."""


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
    """The table `[worktrees]`: which files the worktrees of agents and gates contain."""

    sparse: str | tuple[str, ...] = setting(INHERIT, _sparse)
    """`inherit`: the patterns of your checkout, if sparse; `full`: all files; or these folders, or patterns of git's
    sparse checkout."""


class LimitsConfig(Value):
    """The table `[limits]`: limits over all runs of the home."""

    agents: int | None = setting(None, or_none(whole(1, 10_000)))
    """Maximum number of agents at work; None: as many as the runs allow."""
    disk: int | None = setting(None, or_none(_size))
    """Maximum bytes of worktrees, kept set-ups, gate slots and records together; None: no limit."""


class MergeRule(StrEnum):
    """Who merges an approved and green pull request (`[pull_requests] merge`)."""

    FORGE = "forge"
    """garrison asks the forge to merge the expected commit under the forge's rules."""
    AUTO = "auto"
    """garrison turns on the forge's auto-merge for the tested commit, or hands it to the forge's merge queue."""
    GARRISON = "garrison"
    """Like FORGE, with a status by garrison that is green only for the tested merge."""
    PERSON = "person"


def _trust(value: object) -> str | tuple[str, ...]:
    return as_strings(value) if isinstance(value, list) else one_of("write", "all")(value)


_ANY = matching(r"(?s).*", "a text")


class PullRequestOptions(Value):
    """The table `[pull_requests]` of the home's config.toml."""

    merge: MergeRule = setting(MergeRule.FORGE, member(MergeRule))
    approvals: int = setting(1, whole(0, 100))
    """Approvals that garrison requires before merging."""
    trust: str | tuple[str, ...] = setting("write", _trust)
    """Whose comments reach agents: people with `write` permission, `all`, or the named ones."""
    mention: str = setting("garrison", _ANY)
    """Mention with which a general comment requests work (`@garrison`)."""
    check_limit: float = setting(3600.0, number("seconds", 1, 604_800))
    """Seconds without news after which the user is notified of an unfinished check."""
    node: str = setting("", _ANY)
    """Node that fixes problems outside all nodes' commits; '': the one that a refused run returns to."""
    labels: tuple[str, ...] = setting((), as_strings)
    poll: float = setting(30.0, number("seconds", 1, 3600))
    """Seconds between two polls; up to ten times as many while nothing changes."""
    settle: float = setting(60.0, number("seconds", 0, 86_400))
    """Seconds for which checks must be unchanged before a merge if the base requires none: a check that has not
    registered yet is invisible."""
    forge: str = setting("", one_of("", "github", "gitlab", "gitea", "forgejo"))
    """Type of the forge, for hosts whose name does not reveal it: github, gitlab, gitea or forgejo."""
    status: str = setting("garrison", _ANY)
    """Name of the status that `merge = "garrison"` publishes."""

    def hears(self, author: str, *, can_write: bool) -> bool:
        """Return whether somebody's comments reach an agent: a stranger's words would steer it."""
        if isinstance(self.trust, str):
            return can_write or self.trust == "all"
        return author.casefold() in map(str.casefold, self.trust)  # log-ins are case-insensitive on all forges


class LaunchConfig(Value):
    """The table `[launch]`: defaults for options that neither the command line nor the graph sets."""

    gate: str | None = setting(None, as_text)
    gate_path: str | None = setting(None, as_subfolder)
    """Folder of the merged tree in which the gate starts; None: its top."""
    setup: str | None = setting(None, as_text)
    agent: str | None = setting(None, as_text)
    """Agent of the nodes that name none."""
    failover: str | None = setting(None, as_text)
    """Failover agents, separated by commas."""
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
        """Read the table of a file; UsageError describes a mistake."""
        read = table.read(cls)
        return replace(read, sources={key: table.file for key in LAUNCH_KEYS if key in table.values})

    def over(self, other: LaunchConfig) -> LaunchConfig:
        chosen = {key: getattr(self if key in self.sources else other, key) for key in LAUNCH_KEYS}
        return LaunchConfig(**chosen, sources={**other.sources, **self.sources})


LAUNCH_KEYS = tuple(readers_of(LaunchConfig))


class GuardHooks(StrEnum):
    """Where a repository's own commit hooks run: the values of `[guard] hooks`."""

    AGENT = "agent"
    """On commits by agents, and by garrison on their behalf."""
    GATE = "gate"
    """As part of the gate."""
    NONE = "none"


DEFAULT_EFFECTS: Mapping[ChangeKind, Effect] = {
    **dict.fromkeys(ChangeKind, Effect.TELL), ChangeKind.GATE: Effect.ASK, ChangeKind.INSTRUCTIONS: Effect.ASK,
    ChangeKind.PARTIAL: Effect.ASK,
    ChangeKind.SECRETS: Effect.REFUSE, ChangeKind.SIZE: Effect.REFUSE, ChangeKind.NESTED: Effect.REFUSE}
"""Default consequence of each kind of change."""


class GuardConfig(Value):
    """The table `[guard]`: what may land, and what garrison commits of an agent's uncommitted work; None: no limit."""

    max_file: int | None = setting(10_000_000, or_none(_size))
    """Maximum size of a file in bytes."""
    max_files: int | None = setting(1000, or_none(whole(0)))
    """New files."""
    refuse: tuple[str, ...] = setting((), as_strings)
    """Patterns of further files to refuse."""
    allow: tuple[str, ...] = setting((), as_strings)
    """Patterns of files exempt from limits and refused names."""
    hooks: GuardHooks = setting(GuardHooks.AGENT, member(GuardHooks))
    effects: Mapping[ChangeKind, Effect] = settings_by_key(ChangeKind, member(Effect))
    """Kinds of change with a setting."""

    def effect(self, kind: ChangeKind) -> Effect:
        return self.effects.get(kind, DEFAULT_EFFECTS[kind])

    def with_project(self, table: Table) -> GuardConfig:
        """Return a copy combined with a repository's own table: its limits count, its patterns are added."""
        own, stated = table.read(GuardConfig), table.values
        if "hooks" in stated:
            raise table.error("hooks has no effect there, since agents can change that file; it belongs in config.toml "
                              "of the home (`garrison home`)", "hooks")
        return GuardConfig(own.max_file if "max_file" in stated else self.max_file,
                           own.max_files if "max_files" in stated else self.max_files,
                           (*self.refuse, *own.refuse), (*self.allow, *own.allow), self.hooks,
                           {**self.effects, **own.effects})


class PlanConfig(Value):
    """The table `[plan]`: the planner, and which settings of a plan take effect (`garrison plan`)."""

    agent: str | None = setting(None, as_text)
    """Planning agent; None: the one that does tasks."""
    agents: tuple[str, ...] = setting((), as_strings)
    """Agents that a plan may choose for a task in addition to the run's."""
    commands: tuple[str, ...] = setting((), as_strings)
    """Acceptance commands that a plan may use for a task, word for word."""
    max_tasks: int = setting(20, whole(1, 500))
    replans: int = setting(1, whole(0, 10))
    """Number of repairs of a failed plan."""


class LessonsConfig(Value):
    """The table `[lessons]`: who words the proposals of `garrison lessons`."""

    by: str = setting("rule", one_of("rule", "agent"))
    """`agent`: an agent that reads the repository, whose wording waits for the user like the rule's."""
    agent: str | None = setting(None, as_text)
    """Wording agent; None: the one that does tasks."""


class ServiceConfig(Value):
    """A table `[services.NAME]`: a server that a run starts for its nodes. `{port}` and `{data}` are its port and data
    folder."""

    command: str = setting("", as_text)
    port: int = setting(0, whole(1, 65535))
    ready: str = setting("", as_text)
    """Command that succeeds once the server is ready; '': it accepts connections on its port."""
    per: str = setting("node", one_of("node", "run"))
    """Scope: `node`, one per node and gate; `run`, one for all nodes of a run."""
    template: str = setting("", as_text)
    """Command that fills a data folder; each instance gets a copy."""
    env: tuple[tuple[str, str], ...] = setting((), lambda value: tuple(as_mapping(value).items()))
    """Variables of agents, acceptance and gates."""


_SERVICE = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
"""Name of a service."""
RECORDS: Mapping[str, type[object]] = {
    "notify": NotifyConfig, "setup": SetupConfig, "chat": ChatConfig, "launch": LaunchConfig, "guard": GuardConfig,
    "pull_requests": PullRequestOptions, "hosts": HostsConfig, "merge": MergeConfig, "limits": LimitsConfig,
    "plan": PlanConfig, "lessons": LessonsConfig, "worktrees": WorktreesConfig}
"""Table of config.toml → record."""
TABLES = ("agents", "sandbox", "services", *RECORDS)
"""Tables of config.toml."""


def _table(name: str, record: type[T]) -> Callable[[ConfigFile], T]:
    """Return the method that reads a table, raising UsageError if it is malformed."""
    def read(self: ConfigFile) -> T:
        return self.table.below(name).read(record)

    return read


class ConfigFile(Value):
    """A home's config.toml. Each table is checked when it is read."""

    path: Path
    table: Table
    """The whole file."""

    def agents(self) -> list[AgentTable]:
        """Return the agent profiles; UsageError if they are malformed."""
        agents = self.table.below("agents")
        return [parse_agent(agents.below(name)) for name, table in agents.require(("NAME = {…}",)).items()
                # `turns = 3` is a setting of all agents; `[agents.turns]` is a profile with that name
                if name not in AGENTS_KEYS or isinstance(table, dict)]

    def services(self) -> dict[str, ServiceConfig]:
        """Return the services by name; UsageError if one is malformed, or lacks command and port."""
        tables, found = self.table.below("services"), {}
        for name in tables.require(("NAME = {…}",)):
            table = tables.below(name)
            if not _SERVICE.fullmatch(name):
                raise table.error("should have a name of lower-case letters, digits and dashes")
            found[name] = service = table.read(ServiceConfig)
            if not service.command or not service.port:
                raise table.error("needs command and port")
        return found

    def agent_defaults(self) -> Mapping[str, object]:
        """Return the defaults in `[agents]` itself, as written; UsageError for an invalid value."""
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
    """Read a home's config.toml, if any; UsageError if it is not TOML."""
    path = config_path(home)
    try:
        return ConfigFile(path, Table.parse(path, path.read_bytes()))
    except FileNotFoundError:
        return ConfigFile(path, Table(str(path), {}))
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise RecordUnreadable(path, str(error.strerror).lower()) from error


def parse_agent(table: Table) -> AgentTable:
    """Parse a table `[agents.NAME]`; UsageError if it is not a table, or has an unknown kind."""
    name = table.keys[-1]
    if not isinstance(table.values, dict) and (near := nearest(name, AGENTS_KEYS)):
        raise UsageError(f"{table.place()}: [agents] {name} is not a setting; did you mean {near}?")
    kind = kind_of(name, table.require(("kind", "argv", "env", "success")))
    if kind not in AGENT_KINDS and kind not in (kinds := offered(PluginGroup.AGENTS)):
        kind = table.value("kind", one_of(*AGENT_KINDS, *kinds), kind)
    return AgentTable(name, str(kind), table, table.value("env", as_strings, ()), table.values.get("failover"))


def kind_of(name: str, table: Mapping[str, object]) -> object:
    """Return the kind of a profile, else the default for its name."""
    return table.get("kind", "claude" if name == "claude" else "command")
