"""Authority: which commands an agent's processes may run on the home of its run.

`COMMANDS` classifies them; unlisted commands are control commands. Inside an agent, a control command is refused with
one line and exit code 2: an agent has the socket of `agent_requests` and a read-only view of its run. Set-up,
acceptance and gate run the agents' code, so they also count as inside. Commands on another home are not restricted:
garrison may be developed and tested in a node.

Whether a process is inside is determined from kernel data, not from its current environment: the initial environments
of the process and its ancestors (`/proc/PID/environ`) contain the life marker of the orchestrator, runner or gate that
started them. `env -i` does not change those of ancestors, and a daemon's new parent is the orchestrator or its reaper,
which are subreapers. Windows of the home's tmux server count as inside. The launcher and the guardian do not count: a
`[notify]` command is the user's.

This prevents mistakes, and models that follow injected text; it is not a security boundary. Outside a sandbox an agent
has the user's rights: a determined one can start a process elsewhere (cron, systemd, another tmux server), write
records and refs itself, or edit garrison. In a sandbox the home is absent, so there is nothing to command.

A runner or guardian played by hand (`garrison prompt`) works in the user's terminal, outside any agent. An ad-hoc run
(`spawn_runner.py`, `spawn_orchestrator.py`) has no guardian, so the agent may do the work of the supervising layers:
keep hooks and identities, send signals, and enqueue branches.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from garrison.directories import find_home
from garrison.errors import GarrisonError, UsageError
from garrison.records.names import parse_marker
from garrison.system.processes import ancestors, is_tmux, life_marker, probe
from garrison.values import Value

P = ParamSpec("P")
R = TypeVar("R")


class Authority(Enum):
    """Owner of a command."""

    OWN = auto()
    """Private to the caller: it affects no run of the home."""
    VIEW = auto()
    """Shows a run without changing it."""
    LAYER = auto()
    """Writes records of the layers: allowed for the agent's own record, and in ad-hoc runs."""
    CONTROL = auto()
    """Commands runs, queues or the home: the user's."""


COMMANDS: Mapping[str, Authority] = {
    **dict.fromkeys((
        "report", "note", "phase", "ask-person", "new", "home", "completion", "prompt", "demo", "help", "version",
        "agents presets", "mcp install", "acp install",
        "pipeline validate", "pipeline parse", "pipeline show", "pipeline handlers", "pipeline render", "pipeline run",
        "resume",  # requires more itself if the name belongs to a launched run
        "pipeline resume", "pipeline fork", "workflow run", "workflow resume", "workflow list", "workflow show",
        "workflow validate", "workflow tools", "workflow plan", "session start", "session send", "session heartbeat",
        "session show", "session list", "session restore"), Authority.OWN),
    **dict.fromkeys((
        "status", "config show", "why", "events", "metrics", "logs", "attach", "cost", "top", "review", "doctor",
        "find-stale", "timeline", "verify", "pipeline status", "pr show", "setup show",
        "rescue list", "rescue show", "agents list", "agents show", "agents graph", "signals list", "merge-queue list",
        "merge-queue show", "merge-queue log", "merge-queue conflicts", "merge-queue config", "hook-manager read",
        "hook-manager wisdom", "identity-registry list", "identity-registry show", "identity-registry find-stale",
        "signal-protocol read", "wait", "schedule list", "schedule history"), Authority.VIEW),
    **dict.fromkeys((
        "hook-manager create", "hook-manager update-phase", "hook-manager update-resumption",
        "identity-registry create", "identity-registry update-liveness", "identity-registry mark-crashed",
        "identity-registry mark-terminated", "signals send", "signal-protocol write",
        "signal-protocol wait", "merge-queue enqueue"), Authority.LAYER),
}
"""Command, without `garrison` → authority; other commands are control commands."""
CONTROL_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "attach": ("write",), "review": ("approve", "reject"), "doctor": ("fix",),
    "find-stale": ("respawn",), "identity-registry find-stale": ("respawn",),
    "identity-registry mark-crashed": ("kill",),
    "identity-registry mark-terminated": ("kill",),
    "merge-queue config": ("gate", "no_gate", "setup", "lock_files", "timeout", "strategy", "clean", "keep",
                           "gate_cores", "guard", "gate_from_target", "with_hooks", "batch_history", "max_batch",
                           "beliefs"),
}
"""Command → parameters that turn a view into a control command."""
_OUTSIDE = frozenset({"launch", "guardian"})
"""Roles whose processes do not start agents' code."""


_TERMINAL = "terminal"


class NotPermitted(UsageError):
    """Command that an agent must not run."""


class Caller(Value):
    """Agent, job or gate in which a command runs."""

    home: str
    run: str
    stem: str
    """Role and name of the starting process."""

    def describe(self) -> str:
        """Return where the command runs, for a message."""
        role, _, name = self.stem.partition("-")
        what = {"orchestrator": f"the agent of {name}", "runner": f"a job of {name}", "gate": "a gate",
                _TERMINAL: "the agents' terminal"}
        return what.get(role, self.stem) + (f" (run {self.run})" if self.run else "")


def authority_of(command: str, given: Mapping[str, object]) -> Authority:
    """Return the authority of a command; `given` are its parameters by name."""
    # click passes every parameter; omitted ones have one of these values
    if any(given.get(name) not in (None, False, (), "") for name in CONTROL_OPTIONS.get(command, ())):
        return Authority.CONTROL
    return COMMANDS.get(command, Authority.CONTROL)


def find_caller() -> Caller | None:
    """Return the agent, job or gate in which this process runs; None outside."""
    for each in (os.getpid(), *ancestors(os.getpid())):
        parsed = parse_marker(life_marker(each) or "")
        if parsed is not None and parsed[2].partition("-")[0] not in _OUTSIDE:
            return Caller(*parsed[:3])
        # the tmux server has an empty environment, so the ancestors of a window have no marker
        if home := _terminal_home(each):
            return Caller(home, "", _TERMINAL)
    return None


def _terminal_home(pid: int) -> str:
    """Return the home whose tmux server this process is, '' if none."""
    process = probe(pid)
    if process is None or not is_tmux(process.comm):
        return ""
    from garrison.system.tmux_server import home_of  # imported late: not needed by most commands

    return str(home_of(pid) or "")


def require(command: str, given: Mapping[str, object], home: str | os.PathLike[str] | None = None) -> None:
    """Raise NotPermitted unless the calling process may run this command on this home."""
    authority = authority_of(command, given)
    if authority is Authority.OWN:
        return
    caller = find_caller()
    chosen = find_home(home)
    if caller is None or os.path.realpath(caller.home) != os.path.realpath(chosen):
        return
    if authority is Authority.CONTROL or (authority is Authority.LAYER and not _may_write(caller, given)):
        raise NotPermitted(f"`{command}` is refused in {caller.describe()}, which may only read (status, why) and use "
                           "report, note, phase and ask-person; the user may run it in their own terminal")
    if not (chosen / "identities").is_dir():
        raise NotPermitted(f"`{command}` is refused in {caller.describe()}: the home {chosen} is not in its sandbox; "
                           "report, note, phase and ask-person work here")


def require_of(context: click.Context) -> None:
    """Raise NotPermitted unless the calling process may run the command of `context`."""
    names, homes = list[str](), list[str]()
    level: click.Context | None = context
    while level is not None:
        names.insert(0, level.command.name or "")
        homes += [str(home)] if (home := level.params.get("home")) else []
        level = level.parent
    require(" ".join(names).removeprefix("garrison "), context.params, homes[0] if homes else None)


def guarded(command: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function that agents' prompts import instead of running a command."""
    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            given = signature.bind(*arguments, **options).arguments
            require(command, given, given.get("home"))
            return function(*arguments, **options)

        return call
    return wrap


def _may_write(caller: Caller, given: Mapping[str, object]) -> bool:
    """Return whether an agent may write records of the layers: its own, or any in an ad-hoc run."""
    is_own = f"{given.get('role')}-{given.get('name')}" == caller.stem and given.get("run") in (None, caller.run)
    return is_own or _is_adhoc(Path(caller.home), caller.run)


def _is_adhoc(home: Path, run: str) -> bool:
    from garrison.records.run import Launch, RunFiles, load

    try:
        launch = load(Launch, RunFiles(home, run).launch)
    except GarrisonError:
        return False
    return launch is not None and launch.adhoc
