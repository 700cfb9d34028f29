"""Configuration: the home, the timing of the processes, and the home's `config.toml`.

This is the only module that reads garrison's environment variables for itself. Everything is computed from arguments
(`environ`, paths), so that a test, or a resume by cron, decides what it sees. `config.toml` has these tables, and
`[hosts]` and `[pull_requests]`:

    [agents.aider]                                  # a profile: how an agent of that name is run
    argv = ["aider", "--yes", "--message-file", "{prompt_file}"]
    env = ["OPENAI_API_KEY"]

    [notify]                                        # a command that is run when a person is needed
    command = ["notify-send", "garrison {run}", "{text}"]
    on = ["escalate", "question", "failed", "wait"]
    timeout = 10

    [sandbox]                                       # what confined processes may do: see `sandbox.rights`
    mode = "auto"

    [chat]                                          # what the butler and its specialists may spend, in US dollars
    budget = 1                                      # a message
    budget_day = 10

    [merge]                                         # the merge queue
    turn = 900                                      # seconds for which others wait for a node that lost a conflict

    [limits]                                        # over all runs of the home
    agents = 4                                      # agents at work at once

    [launch]                                        # options of launches that state none themselves
    agent = "aider"

    [guard]                                         # what garrison commits for an agent that left it uncommitted
    max_file = "10 MB"
    max_files = 1000
    refuse = ["*.sqlite"]
    allow = ["tests/fixtures/*.pem"]
    hooks = "agent"                                 # where the repository's own commit hooks run: agent, gate, none
    gate = "ask"                                    # what a change of the gate's own files does: tell, ask, refuse

A repository may have a `garrison.toml` with the tables `[launch]` and `[guard]` alone: its own gate and set-up, and
which files belong into it. Agents can change that file, so nothing in it gives them rights.
"""

from __future__ import annotations

import os
import re
from dataclasses import field, fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from garrison.ends import ChangeKind, Effect
from garrison.errors import RecordUnreadable, UsageError
from garrison.frozen import frozen
from garrison.plugins import Group, offered
from garrison.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGENT_KINDS = ("command", "claude", "session", "acp")
"""Kinds of agent profiles."""
TABLES = ("agents", "notify", "sandbox", "setup", "chat", "launch", "guard", "pull_requests", "hosts", "merge",
          "limits")
"""Tables of config.toml."""
PROFILE_RIGHTS = ("sandbox", "network", "hosts", "read", "write", "hide", "push")
"""Keys of an agent profile that state its rights in the sandbox, whatever its kind."""
PROFILE_KEYS = ("kind", "env", "failover")
"""Other keys of an agent profile that mean the same whatever its kind."""
SANDBOX_KEYS = ("mode", *PROFILE_RIGHTS[1:])
"""Keys of `[sandbox]`, and of its tables for one role each."""
NOTIFY_KEYS = ("command", "webhook", "on", "timeout")
SETUP_KEYS = ("keep_days", "keep_gb", "keep_free", "caches")
GUARD_KEYS = ("max_file", "max_files", "refuse", "allow", "hooks", *ChangeKind)
PROJECT_FILE = "garrison.toml"
"""A repository's own configuration, in its top directory."""
PROJECT_TABLES = ("launch", "guard")
"""Its tables."""
AGENTS_KEYS = ("budget", "turns", "silence")
"""Keys of `[agents]` itself, for every agent whose profile states none of its own."""
CHAT_KEYS = ("budget", "budget_day", "max_turns")
MERGE_KEYS = ("turn",)
LIMITS_KEYS = ("agents",)
HOSTS_PATHS = ("tls_ca", "tls_certificate", "tls_key", "api_key_file")
HOSTS_KEYS = ("temporal", "namespace", "lease", *HOSTS_PATHS, "tls_server_name")
_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*[ceE]|--(?:eval|command|execute)|-Command")
"""Option of a shell or an interpreter whose next word is a script."""
OCCASIONS = ("escalate", "question", "failed", "wait", "done", "stopped")
"""Events that `[notify]` can name: those of the command, the webhook and the page's desktop notifications."""


@frozen
class Timing:
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
    """Longest wait for an agent's limit or outage before the next agent of its `failover` goes on."""
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
        for declared in fields(cls):
            text = environ.get(f"GARRISON_{declared.name.upper()}")
            if text is not None:
                values[declared.name] = _seconds(declared.name, text)
        return cls(**values)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise UsageError(f"GARRISON_{name.upper()}={text!r} is not a number of seconds above 0")
    return value


# --- directories ------------------------------------------------------------------------------------------------------


def checkout() -> Path | None:
    """Return the source checkout that garrison runs from, if any."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "scripts").is_dir() else None


def find_home(option: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the home: `option`, else GARRISON_HOME, else the checkout's state/, else the user's state directory.

    Never the current directory: cron, an agent in a worktree and a person must see the same state.
    """
    environ = os.environ if environ is None else environ
    named = option or environ.get("GARRISON_HOME")
    if named:
        return Path(os.path.abspath(named))  # noqa: PTH100  # resolve() would follow a symlinked home
    source = checkout()
    if source:
        return source / "state"
    return _user_state(environ)


def _user_state(environ: Mapping[str, str]) -> Path:
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "garrison"
    import platformdirs

    return Path(platformdirs.user_state_dir("garrison"))


def homes_list(environ: Mapping[str, str] | None = None) -> Path:
    """Return the file that lists the homes in which this user has launched, one per line."""
    return _user_state(os.environ if environ is None else environ) / "homes"


def trees_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the root of worktrees and gate slots: GARRISON_TREES, else the user cache directory's `garrison/`."""
    environ = os.environ if environ is None else environ
    if environ.get("GARRISON_TREES"):
        return Path(os.path.abspath(environ["GARRISON_TREES"]))  # noqa: PTH100
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "garrison"
    import platformdirs

    return Path(platformdirs.user_cache_dir("garrison"))


# --- config.toml ------------------------------------------------------------------------------------------------------


@frozen
class AgentConfig:
    """A profile `[agents.NAME]`; `settings` are the keys that depend on its kind, as the file has them."""

    name: str
    kind: str
    where: str
    """File and table, for error messages."""
    env: tuple[str, ...] = ()
    """Names of environment variables that the agent gets."""
    settings: dict[str, Any] = field(default_factory=dict)
    failover: Any = None
    """Agents that go on when it cannot, as the file has them."""


@frozen
class SetupConfig:
    """The table `[setup]`: how long and how much is kept of what set-ups left, for each repository."""

    keep_days: float = 14.0
    """Days since its last use."""
    keep_gb: float = 10.0
    """Gigabytes of all together."""
    keep_free: float = 10.0
    """Part of the disk that stays free, in percent."""
    caches: bool = True
    """Whether set-ups, agents and gates read the caches of package managers in the user's home."""


@frozen
class NotifyConfig:
    """The table `[notify]`: an argv whose words may hold {text}, {run}, {event} and {node}; seconds it may take."""

    command: tuple[str, ...] = ()
    webhook: str = ""
    """Address to which each notification is sent by POST, as JSON."""
    on: tuple[str, ...] = ("escalate", "question", "failed", "wait")
    timeout: float = 10.0


@frozen
class ChatConfig:
    """The table `[chat]`: limits of a message to the butler, its specialists included, and of all in a day; None: no
    limit.
    """

    budget: float | None = 1.0
    """US dollars of a message."""
    budget_day: float | None = 10.0
    """US dollars of all messages of the home, a calendar day in UTC."""
    max_turns: int | None = 40
    """Model turns of one agent for one message."""


@frozen
class HostsConfig:
    """The table `[hosts]`: the Temporal server through which other machines get their work."""

    temporal: str = ""
    """Host and port of a server of your own; '': garrison keeps one beside the home."""
    namespace: str = "default"
    lease: float = 5.0
    """Seconds without a sign of life after which another host may go on with a node."""
    tls_ca: str = ""
    """File with the authority that signed the server's certificate; like the following three an absolute path."""
    tls_certificate: str = ""
    tls_key: str = ""
    api_key_file: str = ""
    tls_server_name: str = ""
    """Name in the server's certificate, where it is not that of its address."""


@frozen
class MergeConfig:
    """The table `[merge]`: settings of all merge queues that the home's runs work."""

    turn: float = 900.0
    """Seconds of work for which others wait at most for a node that lost to a moved target (`merge.turns`)."""


@frozen
class LimitsConfig:
    """The table `[limits]`: limits over all runs of the home."""

    agents: int | None = None
    """Agents at work at once; None: as many as the runs allow."""


@frozen
class LaunchConfig:
    """The table `[launch]`: options of launches, for what neither the command line nor the graph states."""

    gate: str | None = None
    setup: str | None = None
    agent: str | None = None
    """Agent of the nodes that name none."""
    failover: str | None = None
    """Agents that go on when a node's agent cannot, separated by commas."""
    land: str | None = None
    """Rule for what lands, and when: `node`, `run`, `none` or `pr`."""
    base: str | None = None
    setup_key: tuple[str, ...] = ()
    gate_from_target: tuple[str, ...] = ()
    max_agents: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Key → the file that sets it."""

    def over(self, other: LaunchConfig) -> LaunchConfig:
        """Return it with the values of `other` for what it does not set."""
        chosen = {key: getattr(self if key in self.sources else other, key) for key in LAUNCH_KEYS}
        return LaunchConfig(**chosen, sources={**other.sources, **self.sources})


LAUNCH_KEYS = tuple(declared.name for declared in fields(LaunchConfig) if declared.name != "sources")


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


@frozen
class GuardConfig:
    """The table `[guard]`: what may be in the work that is to land, and what garrison commits for an agent that left it
    uncommitted; None: no limit."""

    max_file: int | None = 10_000_000
    """Bytes of a file."""
    max_files: int | None = 1000
    """New files."""
    refuse: tuple[str, ...] = ()
    """Patterns of further files to refuse."""
    allow: tuple[str, ...] = ()
    """Patterns of files that no limit and no name refuses."""
    hooks: GuardHooks = GuardHooks.AGENT
    effects: Mapping[ChangeKind, Effect] = field(default_factory=dict)
    """Those that are stated."""

    def effect(self, kind: ChangeKind) -> Effect:
        """Return what happens to a change of that kind."""
        return self.effects.get(kind, DEFAULT_EFFECTS[kind])

    def with_project(self, table: Any, where: str) -> GuardConfig:
        """Return it with what a repository's own table states: its limits count, its patterns are added."""
        own = parse_guard(where, table)
        if "hooks" in table:
            raise UsageError(f"{where}: hooks has no effect there, since agents can change that file; it belongs in "
                             "config.toml of the home (`garrison home`)")
        return GuardConfig(own.max_file if "max_file" in table else self.max_file,
                           own.max_files if "max_files" in table else self.max_files,
                           (*self.refuse, *own.refuse), (*self.allow, *own.allow), self.hooks,
                           {**self.effects, **own.effects})


@frozen
class ConfigFile:
    """A home's config.toml. Each table is checked when it is asked for."""

    path: Path
    tables: dict[str, Any]
    text: str = ""

    def place(self, *keys: str) -> str:
        """Return the file, and the line on which the key is set that `keys` lead to."""
        line = line_of(self.text, keys)
        return f"{self.path}:{line}" if line else str(self.path)

    def agents(self) -> list[AgentConfig]:
        """Return the agent profiles; UsageError if they are malformed."""
        agents = self.tables.get("agents", {})
        if not isinstance(agents, dict):
            raise UsageError(f"{self.path}: agents should be a table of tables, [agents.NAME]")
        return [parse_agent(f"{self.path}, [agents.{name}]", name, table) for name, table in agents.items()
                if name not in AGENTS_KEYS or isinstance(table, dict)]

    def agent_defaults(self) -> Mapping[str, Any]:
        """Return what `[agents]` itself says of every agent; whoever reads a profile checks the values."""
        agents = self.tables.get("agents", {})
        return {key: agents[key] for key in AGENTS_KEYS if isinstance(agents, dict) and key in agents
                and not isinstance(agents[key], dict)}

    def notify(self) -> NotifyConfig:
        """Return the table `[notify]`; UsageError if it is malformed."""
        return parse_notify(f"{self.path}, [notify]", self.tables.get("notify", {}))

    def setup(self) -> SetupConfig:
        """Return the table `[setup]`; UsageError if it is malformed."""
        return parse_setup(f"{self.path}, [setup]", self.tables.get("setup", {}))

    def chat(self) -> ChatConfig:
        """Return the table `[chat]`; UsageError if it is malformed."""
        return parse_chat(f"{self.path}, [chat]", self.tables.get("chat", {}))

    def hosts(self) -> HostsConfig:
        """Return the table `[hosts]`; UsageError if it is malformed."""
        return parse_hosts(f"{self.path}, [hosts]", self.tables.get("hosts", {}))

    def merge(self) -> MergeConfig:
        """Return the table `[merge]`; UsageError if it is malformed."""
        return parse_merge(f"{self.path}, [merge]", self.tables.get("merge", {}))

    def limits(self) -> LimitsConfig:
        """Return the table `[limits]`; UsageError if it is malformed."""
        return parse_limits(f"{self.path}, [limits]", self.tables.get("limits", {}))

    def launch(self) -> LaunchConfig:
        """Return the table `[launch]`; UsageError if it is malformed."""
        return parse_launch(str(self.path), self.tables.get("launch", {}))

    def guard(self) -> GuardConfig:
        """Return the table `[guard]`; UsageError if it is malformed."""
        return parse_guard(f"{self.path}, [guard]", self.tables.get("guard", {}))


def config_path(home: Path) -> Path:
    """Return the path of a home's configuration."""
    return home / "config.toml"


def read_config(home: Path) -> ConfigFile:
    """Read a home's config.toml, which may be absent; UsageError if it is not TOML."""
    import tomllib  # most processes need no configuration

    path = config_path(home)
    try:
        text = path.read_bytes().decode()
        return ConfigFile(path, tomllib.loads(text), text)
    except FileNotFoundError:
        return ConfigFile(path, {})
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise RecordUnreadable(path, str(error.strerror).lower()) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


MAX_LINES = 2000
"""Lines up to which the line of a key is searched for."""


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """Return the line of a TOML text on which the statement begins that sets a key; None if none does.

    tomllib knows no lines, so the text is parsed up to each line in turn: a part that is whole ends a statement.
    """
    import tomllib

    lines = text.splitlines(keepends=True)
    begin = 1
    for end in range(1, min(len(lines), MAX_LINES) + 1):
        try:
            table: Any = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for key in keys:
            table = table.get(key) if isinstance(table, dict) else None
        if table is not None:
            return begin
        begin = end + 1
    return None


def parse_agent(where: str, name: str, table: Any) -> AgentConfig:
    """Parse a table `[agents.NAME]`; UsageError if it is no table, or of no known kind."""
    if not isinstance(table, dict):
        if near := nearest(name, AGENTS_KEYS):
            raise UsageError(f"{where}: {name} is not a setting of [agents]; did you mean {near}?")
        raise UsageError(f"{where} should be a table with argv, env and success, or with kind = \"claude\"")
    kind = kind_of(name, table)
    if kind not in AGENT_KINDS and kind not in (kinds := offered(Group.AGENTS)):
        raise UsageError(f"{where}: kind is {kind!r}; use one of {', '.join((*AGENT_KINDS, *kinds))}")
    settings = {key: value for key, value in table.items()
                if key not in (*PROFILE_KEYS, *PROFILE_RIGHTS) and not key.startswith("x_")}
    return AgentConfig(name, kind, where, string_list(where, "env", table.get("env", [])), settings,
                       table.get("failover"))


def kind_of(name: str, table: Mapping[str, Any]) -> Any:
    """Return the kind that a profile states, else the default of its name."""
    return table.get("kind", "claude" if name == "claude" else "command")


def parse_notify(where: str, table: Any) -> NotifyConfig:
    """Parse a table `[notify]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with command, webhook, on and timeout")
    if unknown := sorted(key for key in set(table) - set(NOTIFY_KEYS) if not key.startswith("x_")):
        raise UsageError(f"{where}: {unknown[0]} is not known; there are command, webhook, on and timeout")
    command = string_list(where, "command", table.get("command", []))
    _refuse_text_in_script(where, command)
    webhook = table.get("webhook", "")
    if not isinstance(webhook, str) or (webhook and not re.fullmatch(r"https?://[^\s/]+\S*", webhook)):
        raise UsageError(f"{where}: webhook should be an address that begins with https:// or http://")
    occasions = string_list(where, "on", table.get("on", list(NotifyConfig.on)))
    if wrong := [occasion for occasion in occasions if occasion not in OCCASIONS]:
        raise UsageError(f"{where}: on names {wrong[0]!r}; there are {', '.join(OCCASIONS)}")
    timeout = table.get("timeout", NotifyConfig.timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= 600:
        raise UsageError(f"{where}: timeout should be seconds, above 0 and at most 600")
    return NotifyConfig(command, webhook, occasions, float(timeout))


def _refuse_text_in_script(where: str, command: Sequence[str]) -> None:
    """Raise UsageError if a part of a script is what an agent wrote: it would run as the user."""
    for option, word in pairwise(command):
        if _SCRIPT_FOLLOWS.fullmatch(option) and "{text}" in word:
            raise UsageError(f"{where}: command has {{text}} in a script, which would run what an agent writes; in the "
                             'script, use "$GARRISON_NOTIFY_TEXT", or read the JSON on standard input')


def parse_setup(where: str, table: Any) -> SetupConfig:
    """Parse a table `[setup]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(SETUP_KEYS)}")
    values = {key: value for key, value in table.items() if not key.startswith("x_")}
    for key, value in values.items():
        if key not in SETUP_KEYS:
            raise UsageError(f"{where}: {key} is not known; there are {', '.join(SETUP_KEYS)}")
        if key == "caches":
            if not isinstance(value, bool):
                raise UsageError(f"{where}: caches={value!r} should be true or false")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6 or (
                key == "keep_free" and value > 90):
            raise UsageError(f"{where}: {key}={value!r} should be a number of "
                             + {"keep_days": "days", "keep_gb": "gigabytes", "keep_free": "percent, at most 90"}[key])
    return SetupConfig(**values)


def parse_chat(where: str, table: Any) -> ChatConfig:
    """Parse a table `[chat]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(CHAT_KEYS)}")
    values = {key: None if value == "none" else value for key, value in table.items() if not key.startswith("x_")}
    for key, value in values.items():
        if key not in CHAT_KEYS:
            raise UsageError(f"{where}: {key} is not known; there are {', '.join(CHAT_KEYS)}")
        kinds = (int,) if key == "max_turns" else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1e9):
            raise UsageError(f"{where}: {key}={value!r} should be a {'whole ' if key == 'max_turns' else ''}number "
                             "above 0, or \"none\"")
    return ChatConfig(**values)


def parse_hosts(where: str, table: Any) -> HostsConfig:
    """Parse a table `[hosts]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(HOSTS_KEYS)}")
    values = {key: value for key, value in table.items() if not key.startswith("x_")}
    if unknown := [key for key in values if key not in HOSTS_KEYS]:
        raise UsageError(f"{where}: {unknown[0]} is not known; there are {', '.join(HOSTS_KEYS)}")
    temporal, namespace = values.get("temporal", ""), values.get("namespace", HostsConfig.namespace)
    if not isinstance(temporal, str) or (temporal and not re.fullmatch(r"[^\s:/]+:[0-9]{1,5}", temporal)):
        raise UsageError(f"{where}: temporal={temporal!r} should be a server's address, as in temporal.example:7233")
    if not isinstance(namespace, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", namespace):
        raise UsageError(f"{where}: namespace={namespace!r} should be the name of a namespace")
    lease = values.get("lease", HostsConfig.lease)
    if isinstance(lease, bool) or not isinstance(lease, (int, float)) or not 2 <= lease <= 600:
        raise UsageError(f"{where}: lease={lease!r} should be seconds, 2 to 600")
    paths = {key: _parse_path(where, key, values[key]) for key in HOSTS_PATHS if key in values}
    server = values.get("tls_server_name", "")
    if not isinstance(server, str) or not re.fullmatch(r"[A-Za-z0-9.-]*", server):
        raise UsageError(f"{where}: tls_server_name={server!r} should be the name in the server's certificate")
    return HostsConfig(temporal, namespace, float(lease), **paths, tls_server_name=server)


def parse_merge(where: str, table: Any) -> MergeConfig:
    """Parse a table `[merge]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(MERGE_KEYS)}")
    if unknown := [key for key in table if key not in MERGE_KEYS and not key.startswith("x_")]:
        raise UsageError(f"{where}: {unknown[0]} is not known; there is {', '.join(MERGE_KEYS)}")
    turn = table.get("turn", MergeConfig.turn)
    if isinstance(turn, bool) or not isinstance(turn, (int, float)) or not 1 <= turn <= 86_400:
        raise UsageError(f"{where}: turn={turn!r} should be seconds, 1 to 86400")
    return MergeConfig(float(turn))


def parse_limits(where: str, table: Any) -> LimitsConfig:
    """Parse a table `[limits]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(LIMITS_KEYS)}")
    if unknown := [key for key in table if key not in LIMITS_KEYS and not key.startswith("x_")]:
        raise UsageError(f"{where}: {unknown[0]} is not known; there is {', '.join(LIMITS_KEYS)}")
    agents = table.get("agents", "none")
    if agents != "none" and (isinstance(agents, bool) or not isinstance(agents, int) or not 1 <= agents <= 10_000):
        raise UsageError(f'{where}: agents={agents!r} should be a whole number from 1, or "none"')
    return LimitsConfig(None if agents == "none" else agents)


def _parse_path(where: str, key: str, value: Any) -> str:
    """Return the absolute path of a file; `~` is the user's home."""
    path = os.path.expanduser(value) if isinstance(value, str) else ""  # noqa: PTH111  # Path raises without a home
    if not path.startswith("/"):
        raise UsageError(f"{where}: {key}={value!r} should be the path of a file, from / or ~")
    return path


PULL_REQUEST_KEYS: dict[str, tuple[type[Any], ...]] = {
    "merge": (str,), "approvals": (int,), "trust": (str, list), "node": (str,), "labels": (list,), "poll": (int, float),
    "settle": (int, float), "check_limit": (int, float), "mention": (str,),
    "forge": (str,), "status": (str,)}
"""Keys of `[pull_requests]` and their types (`processes.pull_request_facts.PullRequestOptions`)."""
_PULL_REQUEST_WORDS = {"merge": ("forge", "auto", "garrison", "person"), "trust": ("write", "all"),
                       "forge": ("", "github", "gitlab", "gitea", "forgejo")}


_PULL_REQUEST_RANGES = {"poll": (1, 3600), "settle": (0, 86400), "check_limit": (1, 604800), "approvals": (0, 100)}


def parse_pull_requests(where: str, table: Any) -> dict[str, Any]:
    """Parse a table `[pull_requests]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(PULL_REQUEST_KEYS)}")
    values = {key: value for key, value in table.items() if not key.startswith("x_")}
    for key, value in values.items():
        if key not in PULL_REQUEST_KEYS:
            raise UsageError(f"{where}: {key} is not known; there are {', '.join(PULL_REQUEST_KEYS)}")
        if isinstance(value, bool) or not isinstance(value, PULL_REQUEST_KEYS[key]):
            raise UsageError(f"{where}: {key} has the wrong type: {value!r}")
        if key in _PULL_REQUEST_WORDS and not isinstance(value, list) and value not in _PULL_REQUEST_WORDS[key]:
            raise UsageError(f"{where}: {key} is {value!r}; use one of {', '.join(_PULL_REQUEST_WORDS[key])}")
        if key in _PULL_REQUEST_RANGES and not _PULL_REQUEST_RANGES[key][0] <= value <= _PULL_REQUEST_RANGES[key][1]:
            low, high = _PULL_REQUEST_RANGES[key]
            raise UsageError(f"{where}: {key} is {value!r}; it should be {low} to {high}")
    if "labels" in values:
        string_list(where, "labels", values["labels"])
    return values


def parse_launch(where: str, table: Any) -> LaunchConfig:
    """Parse a table `[launch]` of the file `where`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where}: launch should be a table with {', '.join(LAUNCH_KEYS)}")
    values = {key: value for key, value in table.items() if not key.startswith("x_")}
    for key, value in values.items():
        if key not in LAUNCH_KEYS:
            near = nearest(key, LAUNCH_KEYS)
            raise UsageError(f"{where}, [launch]: {key} is not known; "
                             + (f"did you mean {near}?" if near else f"there are {', '.join(LAUNCH_KEYS)}"))
        values[key] = _launch_value(f"{where}, [launch]", key, value)
    return LaunchConfig(**values, sources=dict.fromkeys(values, where))


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_guard(where: str, table: Any) -> GuardConfig:
    """Parse a table `[guard]`; UsageError names what is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} should be a table with {', '.join(GUARD_KEYS)}")
    values: dict[str, Any] = {}
    effects: dict[ChangeKind, Effect] = {}
    for key, value in table.items():
        if key.startswith("x_"):
            continue
        if key not in GUARD_KEYS:
            near = nearest(key, GUARD_KEYS)
            raise UsageError(f"{where}: {key} is not known; "
                             + (f"did you mean {near}?" if near else f"there are {', '.join(GUARD_KEYS)}"))
        if key in list(ChangeKind):
            effects[ChangeKind(key)] = _guard_word(Effect, where, key, value)
        else:
            values[key] = _guard_value(where, key, value)
    return GuardConfig(**values, effects=effects)


def _guard_value(where: str, key: str, value: Any) -> Any:
    if key == "hooks":
        return _guard_word(GuardHooks, where, key, value)
    if key == "max_file":
        return _parse_size(where, key, value)
    if key != "max_files":
        return string_list(where, key, value)
    if value != "none" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise UsageError(f'{where}: {key}={value!r} should be a whole number, or "none"')
    return None if value == "none" else value


_Word = TypeVar("_Word", bound=StrEnum)


def _guard_word(words: type[_Word], where: str, key: str, value: Any) -> _Word:
    if value not in list(words):
        raise UsageError(f"{where}: {key}={value!r} should be one of {', '.join(words)}")
    return words(value)


def _parse_size(where: str, key: str, value: Any) -> int | None:
    """Return a number of bytes, which may have a unit; None for `none`."""
    if value == "none":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _UNITS:
        raise UsageError(f'{where}: {key}={value!r} should be a size such as "10 MB", or "none"')
    return int(float(found[1]) * _UNITS[found[2].lower()])


_LANDS = ("node", "run", "none", "pr")


def _launch_value(where: str, key: str, value: Any) -> Any:
    if key in ("setup_key", "gate_from_target"):
        return string_list(where, key, value)
    if key == "max_agents":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{where}: max_agents={value!r} should be a whole number above 0")
    elif key == "land":
        if value not in _LANDS:
            raise UsageError(f"{where}: land={value!r} is not known; use one of {', '.join(_LANDS)}")
    elif not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key}={value!r} should be a text")
    return value


def string_list(where: str, key: str, value: Any) -> tuple[str, ...]:
    """Return a list of strings as a tuple; UsageError names table (`where`) and key if it is none."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"{where}: {key} should be a list of strings")
    return tuple(value)
