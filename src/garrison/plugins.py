"""Plug-ins: extensions of the core by garrison's extras and installed packages, by group and name.

The core imports no extra. It looks up a name in a group, and gets the object from `OWN` (garrison's extras) or an entry
point (a package). Names are read without importing anything, so a broken plug-in causes a one-line error only when it
is used. If two packages offer the same name, the first package by name wins; garrison's names always come first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from garrison.errors import UsageError
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint, EntryPoints


class PluginGroup(StrEnum):
    """Group of entry points."""

    AGENTS = "garrison.agents"
    """Kinds of agents: `kind =` of a profile."""
    HANDLERS = "garrison.handlers"
    """Types of nodes."""
    TERMINALS = "garrison.terminals"
    """Values of `--terminal`."""
    STRATEGIES = "garrison.merge_strategies"
    """Strategies by which the merge queue makes commits from a branch."""
    TRANSFORMS = "garrison.transforms"
    """Transforms of every graph that is read."""
    LINT_RULES = "garrison.lint_rules"
    """Lint rules for graphs."""
    COMMANDS = "garrison.commands"
    """Commands of `garrison`."""
    LAUNCH_CHECKS = "garrison.launch_checks"
    """Checks before a run starts."""
    PARTS = "garrison.parts"
    """Parts that the core looks up by name when a run needs them."""


WORDS = {PluginGroup.AGENTS: "kind of agent", PluginGroup.HANDLERS: "handler", PluginGroup.TERMINALS: "terminal",
         PluginGroup.STRATEGIES: "merge strategy", PluginGroup.TRANSFORMS: "transform",
         PluginGroup.LINT_RULES: "lint rule", PluginGroup.COMMANDS: "command",
         PluginGroup.LAUNCH_CHECKS: "launch check",
         PluginGroup.PARTS: "part"}


class OwnCommand(Value):
    """Command of one of garrison's extras, for the help."""

    heading: str
    line: str
    value: str
    """Module and object."""


OWN_COMMANDS = {
    # top
    "top": OwnCommand("Most used", "Watch processes, queue, costs and deaths live, and act.", "garrison.cli.top:top"),
    # forges
    "take": OwnCommand("Runs", "Start runs from issues, each with a pull request.", "garrison.cli.take:take"),
    "pr": OwnCommand("Runs", "Show, sync or open the pull request of a run.", "garrison.cli.pull_request:pr"),
    # claude
    "takeover": OwnCommand("Runs", "Take over a Claude agent's session; the agent waits.",
                           "garrison.cli.takeover:takeover"),
    "login": OwnCommand("This installation", "Log in the home's Claude agents.", "garrison.cli.login:login"),
    # plans
    "plan": OwnCommand("Runs", "Have a goal divided into tasks; run them once you approve.",
                       "garrison.cli.plan:plan"),
    # lessons
    "lessons": OwnCommand("Runs", "Keep or drop lessons that repeated refusals propose.",
                          "garrison.cli.lessons:lessons"),
    # conversations
    "ask": OwnCommand("Page and chat", "Ask the butler a question about the runs, or for an action.",
                      "garrison.cli.chat:ask"),
    "chat": OwnCommand("Page and chat", "Chat with the butler.", "garrison.cli.chat:chat"),
    "session": OwnCommand("Page and chat", "Talk to a session whose flow is a graph.", "garrison.cli.sessions:session"),
    "workflow": OwnCommand("Page and chat", "Run tools in dependency order.", "garrison.cli.workflows:workflow"),
    # preview
    "preview": OwnCommand("Runs", "Show in a browser what a server of a node serves.",
                          "garrison.cli.preview:preview"),
    # hosts
    "host": OwnCommand("Other machines", "Add, list, drain, remove other machines that work on nodes.",
                       "garrison.cli.host:host"),
    # acp
    "acp": OwnCommand("Page and chat", "Serve an editor's panel over ACP.", "garrison.cli.acp:acp"),
    # mcp
    "mcp": OwnCommand("Page and chat", "Serve runs to another agent over MCP.", "garrison.cli.mcp:mcp"),
    # notify
    "notify": OwnCommand("Page and chat", "Send a test to all that `[notify]` and paired phones name.",
                         "garrison.cli.notify:notify"),
    # web
    "serve": OwnCommand("Page and chat", "Serve the web page: watch runs live, act on them; pair a phone.",
                        "garrison.cli.serve:serve"),
    "metrics": OwnCommand("Page and chat", "Print metrics in Prometheus format.", "garrison.cli.metrics:metrics"),
    # testing
    "verify": OwnCommand("Runs", "Check that a run kept its promises, by git and its gate runs.",
                         "garrison.cli.verify:verify"),
}
OWN: Mapping[PluginGroup, Mapping[str, str]] = {
    PluginGroup.COMMANDS: {name: command.value for name, command in OWN_COMMANDS.items()},
    PluginGroup.PARTS: {
        "agent.acp": "garrison.agents.acp.profile:AcpProfile",
        "agent.claude": "garrison.agents.claude.profile:ClaudeProfile",
        "agent.command": "garrison.agents.command:CommandAgent",
        "agent.session": "garrison.agents.session_agent:SessionAgent",
        "claude.log_in": "garrison.agents.claude.log_in:OutsideLogIn",
        "drawing.svg": "garrison.pipeline.svg_drawing:to_svg",
        "hosts.access": "garrison.hosts.access:HostAccess",
        "hosts.check": "garrison.hosts.access:check_hosts",
        "hosts.give_up": "garrison.hosts.attempts:give_up",
        "hosts.is_kept": "garrison.hosts.keeper:is_running",
        "hosts.orchestrator": "garrison.hosts.orchestrator:RemoteOrchestrator",
        "hosts.state": "garrison.hosts.keeper:read_state",
        "plan.make": "garrison.cli.plan:make_plan",
        "land.pr.check": "garrison.pull_request.access:check_forge",
        "land.pr.follower": "garrison.pull_request.worker:ForgeClient",
        "land.pr.variables": "garrison.pull_request.access:forge_variables",
        "session.check_tier": "garrison.session.state:check_working_tier",
        "session.nodes": "garrison.session.adapters:NODES",
        "session.to_graph": "garrison.session.graph_reader:to_session_graph",
        "session.translated_types": "garrison.session.graph_reader:TRANSLATED_TYPES",
    },
}
"""Registrations of garrison's extras: group → name → module and object."""


class PluginInfo(Value):
    """Extension offered by a package."""

    group: PluginGroup
    name: str
    value: str
    """Module and object."""
    package: str
    problem: str = ""
    """Why it is unusable; '' if it can be loaded."""


@cache
def installed() -> EntryPoints:
    """Return all entry points of installed packages, reading their files once."""
    from importlib.metadata import entry_points  # 15 ms, needed by few processes

    return cast("EntryPoints", entry_points())  # Python 3.11 has another class for all groups, with this `select`


@cache
def _some_package_has_any() -> bool:
    """Return whether an installed package may offer something: to read the files costs a tenth of `importlib.metadata`.
    """
    for folder in map(Path, sys.path):
        if not folder.is_dir():
            if folder.exists():  # an archive, which only the library reads
                return True
            continue
        for pattern in ("*.dist-info", "*.egg-info"):
            for path in folder.glob(f"{pattern}/entry_points.txt"):
                with suppress(OSError):
                    if b"[garrison." in path.read_bytes():
                        return True
    return False


def points_of(group: PluginGroup) -> Iterable[EntryPoint]:
    """Return the entry points of installed packages in a group; two may have the same name."""
    return installed().select(group=group) if _some_package_has_any() else ()


@cache
def offered(group: PluginGroup) -> Mapping[str, EntryPoint]:
    """Return the entry points of installed packages in a group, by name, without importing them."""
    by_name: dict[str, EntryPoint] = {}
    for point in sorted(points_of(group), key=lambda point: (point.name, package_of(point))):
        by_name.setdefault(point.name, point)
    return by_name


@cache
def load(group: PluginGroup, name: str) -> Any:
    """Import the object of a name in a group; one-line UsageError if a package's cannot be imported."""
    if name in OWN.get(group, ()):
        module, _, attribute = OWN[group][name].partition(":")
        return getattr(import_module(module), attribute)
    point = offered(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # its module may raise anything
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UsageError(f"the {WORDS[group]} {name} ({point.value}) of the package {package_of(point)} cannot be "
                         f"loaded: {problem}; repair or uninstall the package") from error


def list_plugins() -> Iterator[PluginInfo]:
    """Import and yield all extensions of installed packages, with their problems."""
    for group in PluginGroup:
        for name, point in offered(group).items():
            problem = ""
            try:
                if not callable(load(group, name)):
                    problem = f"{point.value} cannot be called"
            except UsageError as error:
                problem = str(error)
            yield PluginInfo(group, name, point.value, package_of(point), problem)


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that offers an entry point."""
    return point.dist.name if point.dist is not None else "unknown"
