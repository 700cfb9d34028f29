"""Request of a launch, and its defaults from garrison.toml and config.toml.

An option of the command line counts first, then the graph, garrison.toml, config.toml, and last what the queue has
recorded of earlier launches.
"""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from garrison.config import GATES, PROJECT_FILE, PROJECT_TABLES, GuardConfig, LaunchConfig, read_config
from garrison.merge.gates_by_path import read_rules
from garrison.system import untrusted
from garrison.tables import Table
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from garrison.merge.config import QueueConfig
    from garrison.pipeline.plan import RunPlan

_TITLES = {"guard": "[guard]", GATES: f"[[{GATES}]]"}
COMMAND = "command"
"""Default agent of nodes that name none."""


class LaunchRequest(Value):
    """Options of a launch as the user gave them; None: not given."""

    pipeline: Path
    target: Path
    run: str | None = None
    pipeline_id: str | None = None
    base: str | None = None
    setup: str | None = None
    setup_key: list[str] = msgspec.field(default_factory=list)
    gate: str | None = None
    no_gate: bool = False
    env: list[str] = msgspec.field(default_factory=list)
    agent: str | None = None
    max_agents: int | None = None
    max_respawn: int = 10
    max_rework: int = 2
    terminal: str = "auto"
    new: bool = False
    auto_approve: bool = False
    max_steps: int | None = None
    budget_run: str | None = None
    """US dollars that the whole run may cost; None or `none`: by its agents' profiles."""
    allow_foreign_imports: bool = False
    land: str | None = None
    tick: str = ""
    """File with the list of tasks in which the run ticks what has landed, or ''."""
    on_failure: list[str] = msgspec.field(default_factory=list)
    """Words of garrison's command that the run's launcher runs if it fails, and the variables that it needs."""
    launcher_env: list[str] = msgspec.field(default_factory=list)
    issue: int = 0
    issue_label: str = ""
    issue_text: str = ""
    """Issue that the run is taken from (`garrison take`), 0 for none."""
    approve: bool = False
    gate_from_target: list[str] = msgspec.field(default_factory=list)
    with_hooks: bool = False
    fresh_setup: bool = False
    """Ignore the kept output of an earlier set-up."""
    trust_git_config: bool = False
    failover: str | None = None
    hosts: str | None = None
    """Where nodes are done that do not specify it (`records.placement`); None: on this machine."""
    text: str | None = None
    """Graph of a run without a file; then `pipeline` is its name."""


def find_subfolder(target: Path, repo: Path) -> str:
    """Return the folder of a repository that a launch names or was called in, '' for its top."""
    here, top = target.resolve(), repo.resolve()
    return "" if here == top or not here.is_relative_to(top) else str(here.relative_to(top))


def read_defaults(home: Path, repo: Path, subfolder: str = "") -> LaunchConfig:
    """Return the defaults of launches on a repository, called in a folder of it; UsageError for a malformed file."""
    read_guard(home, repo)  # refused here if it is malformed, and not when an attempt ends
    return read_project(repo, subfolder).over(read_config(home).launch())


def read_project(repo: Path, subfolder: str = "") -> LaunchConfig:
    """Read the garrison.toml of a repository, and of each folder down to `subfolder`, where the nearest wins.

    Each may be absent. Agents can change them: no link is followed, and they grant no rights. UsageError if one has
    other tables than allowed: below the top, only `[launch]`.
    """
    config = LaunchConfig.of(read_project_file(repo).below("launch"))
    for folder, file in read_nested_files(repo, subfolder):
        config = _begin_below(folder, LaunchConfig.of(file.below("launch"))).over(config)
    return config


def read_nested_files(repo: Path, subfolder: str) -> Iterator[tuple[str, Table]]:
    """Yield each folder below the top, down to `subfolder`, with its garrison.toml; UsageError as
    `read_project`."""
    for folder in reversed(list(map(str, (PurePosixPath(subfolder) / "x").parents))[:-1]):
        file = read_project_file(repo, folder)
        for key in PROJECT_TABLES[1:]:
            if key in file.values:
                raise file.error(f"{_TITLES.get(key, key)} counts in the garrison.toml at the top of the repository "
                                 "alone", key)
        yield folder, file


def _begin_below(folder: str, config: LaunchConfig) -> LaunchConfig:
    """Return the settings of a garrison.toml below the top, as paths from the top: its commands run in its folder."""
    sources, gate_path = dict(config.sources), config.gate_path
    if config.gate is not None or gate_path is not None:
        gate_path = f"{folder}/{gate_path}" if gate_path else folder
        sources.setdefault("gate_path", sources.get("gate", ""))
    return replace(config, sources=sources, gate_path=gate_path, setup=begin_in(folder, config.setup),
                   setup_key=tuple(f"{folder}/{name}" for name in config.setup_key),
                   gate_from_target=tuple(f"{folder}/{name}" if "/" in name else name
                                          for name in config.gate_from_target))


def read_guard(home: Path, repo: Path) -> GuardConfig:
    """Return the limits of what garrison commits for an agent; UsageError if a file is malformed."""
    return read_config(home).guard().with_project(read_project_file(repo).below("guard"))


def read_project_file(repo: Path, folder: str = "") -> Table:
    """Read a garrison.toml of a repository, empty without one; UsageError if it has other tables than allowed."""
    name = f"{folder}/{PROJECT_FILE}" if folder else PROJECT_FILE
    return parse_project_file(repo / name, untrusted.read(repo, name) or b"")


def parse_project_file(path: Path | str, data: bytes) -> Table:
    """Parse a garrison.toml; UsageError names `path`."""
    file = Table.parse(path, data)
    read_rules(file)  # refused here, and not when something is to land
    if unknown := [table for table in file.values if table not in PROJECT_TABLES and not table.startswith("x_")]:
        raise file.error(f"{unknown[0]} has no effect there, since agents can change that file; it may have the tables "
                         "[launch], [guard] and [[gates]]; everything else belongs in config.toml of the home "
                         "(`garrison home`)", unknown[0])
    return file


def complete(request: LaunchRequest, plan: RunPlan, defaults: LaunchConfig) -> LaunchRequest:
    """Return the request, completed with the defaults where neither it nor the graph sets a value. Pure."""
    return replace(
        request, agent=request.agent or defaults.agent or COMMAND,
        gate=begin_in(defaults.gate_path if plan.gate_path is None else plan.gate_path,
                      request.gate or plan.gate or (None if request.no_gate else defaults.gate)),
        setup=request.setup if request.setup is not None else plan.setup or defaults.setup,
        setup_key=request.setup_key or list(plan.setup_key or defaults.setup_key),
        gate_from_target=request.gate_from_target or list(defaults.gate_from_target),
        land=request.land or plan.land or defaults.land,
        base=request.base if request.base is not None else plan.base or defaults.base,
        max_agents=request.max_agents or defaults.max_agents,
        failover=next((stated for stated in (request.failover, plan.failover, defaults.failover) if stated is not None),
                      None))


def begin_in(folder: str | None, command: str | None) -> str | None:
    """Return a shell line that runs a command in a folder of the tree; verdicts and messages name the whole line.

    The command may consist of several, so `cd ... &&` would guard only the first.
    """
    return f"cd {shlex.quote(folder)} || exit 1; {command}" if folder and command else command


def report_land(plan: RunPlan, land: str, defaults: LaunchConfig, report: Callable[[str], None]) -> None:
    """Report how the run lands if a file sets it: an agent may have changed that file."""
    if plan.land is None and land == defaults.land:
        report(f"land: {land} ({defaults.sources['land']})")


def report_sources(request: LaunchRequest, gate: str | None, setup: str | None, defaults: LaunchConfig,
                   recorded: QueueConfig | None, report: Callable[[str], None]) -> None:
    """Report, in one line, gate, set-up and agent that were not typed, each with its source.

    An agent may have changed the file that sets it; a queue keeps the gate and set-up of its last launch.
    """
    queue = f"as at the last launch; --gate and --setup change {'them' if gate and setup else 'it'}"
    by_origin: dict[str, list[str]] = {}
    for name, value, stated, key in (("gate", gate, request.gate, "gate"), ("set-up", setup, request.setup, "setup"),
                                     ("agent", request.agent, request.agent, "agent")):
        origin = queue if stated is None else defaults.sources.get(key, "") if stated == getattr(defaults, key) else ""
        if value and origin:
            by_origin.setdefault(origin, []).append(f"{name}: {value}")
    before = recorded.gate if recorded is not None and gate == defaults.gate else None
    until_now = f"; until now the gate was: {before}" if gate and before not in (None, gate) else ""
    if by_origin:
        report("; ".join(f"{', '.join(values)} ({origin})" for origin, values in by_origin.items()) + until_now)
