"""Preflight: check graph, repository, agents and gate before a run starts or continues; the gate runs on the target.

A launch that could not land anything is refused with one line before it costs anything. Nothing is written except the
queue's settings, once the gate has passed. Every refusal names the thing, the problem, and what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.command_profile import SHELL
from garrison.agents.config_check import check_configuration
from garrison.agents.failover import parse_failover
from garrison.agents.limits import describe_candidates, describe_limits, small_budgets
from garrison.config import GuardHooks
from garrison.directories import trees_root
from garrison.errors import GarrisonError, NotFound, RecordError, Refused, UsageError
from garrison.merge import landing
from garrison.merge.checkouts import find_checkouts
from garrison.merge.config import QueueConfig, explain_gate_mismatch, read_signer
from garrison.merge.preflight import identify, preflight
from garrison.merge.target import describe_moved
from garrison.node.commit_hooks import describe_hooks, find_hooks
from garrison.node.places import network_notes, read_hooks_mode
from garrison.pipeline.dot_writer import graph_digest
from garrison.pipeline.graph import DialectError, position
from garrison.pipeline.lint import ERROR, installed_rules, lint
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import (
    TASK_HANDLERS,
    PlannedTask,
    RunPlan,
    plan_run,
    with_installed_transforms,
)
from garrison.pipeline.subpipelines import load_from_source
from garrison.pipeline.transforms import apply_installed
from garrison.plugins import PluginGroup, load, offered
from garrison.processes.loop import log_line
from garrison.records import run as run_records
from garrison.records.identity import ALIVE, Identity
from garrison.records.journal import read_all
from garrison.records.life_lock import is_held
from garrison.records.names import INTEGRATION, TESTED, Key, check_name, check_run, launcher_key, quote, to_name
from garrison.records.run import LAND_NODE, LAND_NONE, LAND_PR, LAND_RUN, LANDS, Launch, RunSandbox
from garrison.run import branch as run_branch
from garrison.run import git_record
from garrison.run.follower import find_base
from garrison.run.plan import placement_of, read_plan, replay_with_plan, stronger_agent
from garrison.run.request import (
    COMMAND,
    LaunchRequest,
    complete,
    find_subfolder,
    read_defaults,
    report_land,
    report_sources,
)
from garrison.run.state import EXIT, LANDED, NO_CHANGE, NOT_LANDED
from garrison.run.status import FINAL, check_journal_present, read_run_state
from garrison.sandbox import devcontainer, private_files, services, setups
from garrison.sandbox.place import MODE_VARIABLE, Mode, Role
from garrison.sandbox.probe import NAMES, missing_path_notes, summarize_sandbox
from garrison.sandbox.rights import read_rights
from garrison.system import machine
from garrison.system.environment import list_withheld
from garrison.system.git import Git, validate_repository
from garrison.system.git.repository import check_version, explain_detached_head, operation_in_progress, split
from garrison.system.terminal_choice import choose_terminal
from garrison.system.tmux_server import TmuxServer
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from garrison.config import LaunchConfig
    from garrison.launch.claim import LaunchClaim
    from garrison.pipeline.graph import Graph
    from garrison.processes.runtime import Runtime
    from garrison.run.state import RunState

RECENT_PREFLIGHT = 3600.0
"""Seconds for which a launch relies on an earlier green pre-flight of the same tree, for example by `garrison init`."""
REPORTED_RULES = frozenset({"attribute_unknown", "conditions_not_exhaustive", "single_option"})
"""Lint rules whose warnings a launch prints: settings without effect, and mistakes that would fail the run late."""
LOCALE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_COLLATE", "LC_TIME", "LC_NUMERIC")


class PreparedLaunch(Value):
    """A checked launch: its record, its graph's text and its plan."""

    launch: Launch
    text: str
    plan: RunPlan
    budget_run: str | None = None
    """US dollars that the whole run may cost; None or `none`: as in its agents' profiles."""


def _report_findings(graph: Graph, report: Callable[[str], None]) -> None:
    """Print lint warnings of a launch; Refused for an error of an installed package's rule."""
    for finding in lint(graph, rules=REPORTED_RULES, own=installed_rules()):
        message = graph.message_at(finding.line, finding.column, str(finding))
        if finding.severity == ERROR:
            raise Refused(f"{message} ({finding.rule})")
        report(f"note: {message}")


@private_files.walk_again()
def prepare_launch(runtime: Runtime, request: LaunchRequest, report: Callable[[str], None],
                   claim: LaunchClaim | None = None) -> PreparedLaunch:
    """Check everything and run the gate once; return what `create_run` writes. Refused or UsageError otherwise.

    `claim` reserves the run before the gate starts; a launch that only checks needs none.
    """
    check_version()
    text = _read(request.pipeline) if request.text is None else request.text
    check_configuration(runtime.home, report)
    graph, text = apply_installed(parse(text, str(request.pipeline)), text)
    plan = plan_launch(graph, request.max_steps)
    _report_findings(graph, report)
    repo = validate_repository(request.target)
    defaults = read_defaults(runtime.home, repo, find_subfolder(request.target, repo))
    request = complete(request, plan, defaults)
    agent = request.agent or COMMAND
    if request.run is not None:
        check_run(request.run)
    here, slots = _part_of_this_machine(runtime, request, plan, report)
    pipeline_id = _pipeline_id(request, plan)
    git = Git(repo, home=runtime.home)
    git_record.trust_present(runtime.home, git, report, accept=request.trust_git_config)
    git.check_branch_space()
    if what := operation_in_progress(git.git_dir(repo)):
        report(f"note: {what} is in progress in {repo}; if the target is checked out there, landings wait for its end")
    land = _land(request, plan, report)
    if request.tick and land not in (LAND_NODE, LAND_RUN):
        raise UsageError(f"--tick is for work that lands here, and this run's does not (--land {land}); leave out "
                         "--tick, or pass --land node")
    report_land(plan, land, defaults, report)
    base, remote, base_oid = _base(runtime, request, git, land, report)
    committer, signer = ("", None) if land == LAND_NONE else identify(git, runtime.environ, report)
    launch = Launch(
        run_id=request.run or "", pipeline_id=pipeline_id, repo=str(repo), base=base, created_at=runtime.clock.utc(),
        trees=str(trees_root(runtime.environ)), base_oid=base_oid,
        setup=request.setup, lock_files=request.setup_key,
        no_gate=request.no_gate, env=_environment_names(runtime, request, here),
        held_back=list_withheld(runtime.environ, request.env), agent=agent,
        max_agents=request.max_agents or _default_max_agents(report) + slots, max_respawn=request.max_respawn,
        max_rework=request.max_rework,
        subfolder=_subfolder(git, request.target, base, base_oid, report),
        terminal=request.terminal, path=runtime.environ.get("PATH", os.defpath),
        locale={name: runtime.environ[name] for name in LOCALE if name in runtime.environ},
        graph_source=str(request.pipeline.resolve()) if request.text is None else "", prd_ref=plan.prd_ref or "",
        auto_approve=request.auto_approve, max_steps=request.max_steps, land=land, remote=remote,
        issue=request.issue, issue_label=request.issue_label, issue_text=request.issue_text, tick=request.tick,
        on_failure=request.on_failure if land == LAND_NODE else [], launcher_env=request.launcher_env,
        node_gate=plan.node_gate, approve=request.approve,
        failover=_stated_failover(request.failover, plan), hosts=_stated_hosts(request),
        committer=committer, signer=asdict(signer) if signer is not None else {})
    check_by_packages(launch, plan)
    if request.terminal != "auto":
        choose_terminal(request.terminal, runtime.home)  # refused here if missing
    agents = used_agents(here, agent, runtime.home, launch.failover)
    for note in network_notes(runtime, agents):
        report(f"note: {note}")
    services.check(runtime.home, read_rights(runtime.home, Role.AGENT, agent, runtime.environ).mode)
    if claim is not None:
        claim.take(pipeline_id, launch.repo, launch.run_id, new=request.new)
    _refuse_unfinished(runtime, launch, request)  # after the claim: a faster launch has created its run by now
    if request.run and claim is not None and (ref := git.find_refs_of_runs().get(request.run)):
        raise run_is_foreign(runtime, git, request.run, ref)
    words = {word for task in here.tasks.values() for word in registry.find_profile(
        task.agent or (COMMAND if task.command else agent), runtime.home).programs(task.command)}
    words |= {word for name in agents for word in registry.find_profile(name, runtime.home).programs(None)}
    path = runtime.environ.get("PATH", os.defpath)
    launch = replace(launch, programs=[word for word in sorted(words) if shutil.which(word, path=path)])
    launch = _with_places(runtime, launch, git, agents, report)
    report(launch.sandbox)
    launch = replace(launch, terminal=_terminal_beside_landlock(runtime, launch, git))
    working = [(name, task.agent or agent, task.attrs) for name, task in here.tasks.items()
               if task.command is None and task.best_of is None]
    for line in (*describe_limits(working, runtime.home), *describe_candidates(here.tasks, agent, runtime.home),
                 *small_budgets(working, runtime.home), *_own_limit(request)):
        report(line)
    for note in missing_path_notes(runtime.home, agents, runtime.environ):
        report(f"note: {note}")
    launch = _with_gate(runtime, launch, git, request, defaults, report)
    return PreparedLaunch(launch, text, plan, request.budget_run)


def _own_limit(request: LaunchRequest) -> list[str]:
    """Return a line on the budget of the whole run."""
    if request.budget_run in (None, "none"):
        return []
    return [f"the run may cost ${request.budget_run}; then its agents wait for you"]


def _with_places(runtime: Runtime, launch: Launch, git: Git, agents: Iterable[str],
                 report: Callable[[str], None]) -> Launch:
    """Return the launch with its sandbox settings and the set-up of a devcontainer.json."""
    rights = [*(read_rights(runtime.home, Role.AGENT, name, runtime.environ) for name in sorted(agents)),
              *(read_rights(runtime.home, role, "", runtime.environ) for role in NAMES)]
    described = devcontainer.prepare_launch(git, launch.base_oid, rights, git.root, report)
    if described is not None and launch.setup is None and described.setup:
        report(f"set-up of {described.file}: {described.setup}")
        launch = replace(launch, setup=described.setup)
    held = summarize_sandbox(runtime.home, agents, runtime.environ, git=git)
    for name in sorted(agents):
        inside = devcontainer.with_devcontainer(read_rights(runtime.home, Role.AGENT, name, runtime.environ), git)
        if inside.mode is Mode.CONTAINER and (line := registry.describe_program_inside(name, runtime.home, inside)):
            report(line)
    return replace(launch, sandbox=held.line, sandbox_modes=held.modes, sandbox_gaps=held.gaps,
                   sandbox_mode=runtime.environ.get(MODE_VARIABLE, ""))


def _subfolder(git: Git, target: Path, base: str, base_oid: str, report: Callable[[str], None]) -> str:
    """Return the folder of the repository that the launch names or was started in, '' for the top."""
    folder = find_subfolder(target, git.root)
    if not folder:
        return ""
    if git.run("cat-file", "-t", f"{base_oid}:{folder}", check=False).out.strip() == "tree":
        report(f"agents and acceptance start in {folder}; to start at the top: "
               f"--target-dir {shlex.quote(str(git.root))}")
        return folder
    report(f"note: agents start at the top of the repository, since {base} has no folder {folder}")
    return ""


def check_by_packages(launch: Launch, plan: RunPlan) -> None:
    """Run the launch checks of installed packages; Refused in one line if one raises."""
    for name in offered(PluginGroup.LAUNCH_CHECKS):
        check: Callable[[Launch, RunPlan], None] = load(PluginGroup.LAUNCH_CHECKS, name)
        try:
            check(launch, plan)
        except GarrisonError:
            raise
        except Exception as error:  # a package's code may raise anything
            text = " ".join((str(error) if isinstance(error, ValueError) else repr(error)).split())[:300]
            raise Refused(f"launch check {name}: {text}") from error


def _stated_hosts(request: LaunchRequest) -> list[str]:
    if not request.hosts:
        return []
    from garrison.records.placement import parse_placement

    return list(parse_placement("--hosts", request.hosts))


def _part_of_this_machine(runtime: Runtime, request: LaunchRequest, plan: RunPlan,
                          report: Callable[[str], None]) -> tuple[RunPlan, int]:
    """Return the plan with only the nodes of this machine, and the slots of the hosts for the others."""
    if not request.hosts and not any({"hosts", "host"} & set(task.attrs) for task in plan.tasks.values()):
        return plan, 0
    stated = _stated_hosts(request)
    check: Callable[[Path, RunPlan, Sequence[str], Callable[[str], None]], int] = load(PluginGroup.PARTS, "hosts.check")
    return tasks_here(plan, stated), check(runtime.home, plan, stated, report)


def tasks_here(plan: RunPlan, hosts: Sequence[str]) -> RunPlan:
    """Return a plan with only the nodes done on this machine: agents of others may exist only on hosts. Pure.

    Args:
        hosts: default hosts of nodes.
    """
    return replace(plan, tasks={name: task for name, task in plan.tasks.items() if not placement_of(task, hosts)})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read pipeline {path}: {error.strerror}; pass a DOT file, or /dev/stdin") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"pipeline {path} is not UTF-8 text; save it as UTF-8") from error


def _pipeline_id(request: LaunchRequest, plan: RunPlan) -> str:
    pipeline_id = request.pipeline_id
    return check_name(pipeline_id) if pipeline_id is not None else to_name(plan.id or request.pipeline.stem)


def _default_max_agents(report: Callable[[str], None]) -> int:
    """Return the default of --max-agents; report it if memory, not the number of cores, limits it."""
    cores, memory = machine.cores(), machine.available_memory()
    number = machine.default_agents(cores, memory)
    if number < machine.default_agents(cores, None) and memory is not None:
        report(f"note: {number} agents at once, since {memory >> 20} MiB of memory are free; --max-agents sets another "
               "number")
    return number


def _base(runtime: Runtime, request: LaunchRequest, git: Git, land: str, report: Callable[[str], None],
          ) -> tuple[str, str, str]:
    """Return base, remote ('' for a branch of this repository) and the base's commit; Refused if there is none."""
    if (found := find_base(land, runtime, git, request.base)) is not None:
        return found
    base = request.base
    if base is not None and ":" in base:
        raise Refused(f"--base {quote(base)}: only a run with a pull request (land=pr) is based on a remote's branch")
    if base is None and (base := git.current_branch()) is None:
        raise Refused(explain_detached_head(git.root))
    if not git.branch_exists(base):  # `main~1` names a commit, not a branch
        shown = base if re.fullmatch(r"[\w./-]{1,60}", base) else quote(base)
        raise Refused(f"{git.root} has no branch {shown}; create it, or name another with --base")
    if (lost := find_checkouts(git, base)[1]) is not None and lost.path == git.common:
        raise Refused(lost.why)
    if behind := git.behind_upstream(base):
        upstream, count = behind
        report(f"note: {base} lacks {count} commit{'s' * (count != 1)} of {upstream} (as of the last fetch), which the "
               f"work will lack; `git pull` in {git.root} first brings {'it' if count == 1 else 'them'}")
    return base, "", git.branch_tip(base) or ""


def choose_land(plan: RunPlan, option: str | None = None) -> str:
    """Return what lands on the target, and when: from the option, else the graph, else its flow."""
    land = option or plan.land or (LAND_NODE if plan.flow == "dag" else LAND_RUN)
    if land not in LANDS:
        raise Refused(f"land={land} is not known; use one of {', '.join(LANDS)}")
    own = {LAND_NODE: (), LAND_PR: (INTEGRATION, TESTED)}.get(land, (INTEGRATION,))
    if taken := next((name for name in plan.tasks if name.lower() in own), None):
        raise Refused(f"node {taken} has the name of the run's own branch; rename it, or use --land node")
    return land


def _land(request: LaunchRequest, plan: RunPlan, report: Callable[[str], None]) -> str:
    """Return what lands on the target, and when; report a changed default."""
    land = choose_land(plan, request.land)
    if request.land is None and plan.land is None and land == LAND_RUN:
        report("note: this run lands once, at its exit (land=run), the new default for graphs without flow=dag; "
               "land=node lands each node when it is done, as before")
    return land


def plan_launch(graph: Graph, max_steps: int | None = None) -> RunPlan:
    """Return the plan of a new run of a graph, after its transforms; Refused if it cannot be launched."""
    return plan_run(graph, max_steps=max_steps, load=with_installed_transforms(load_from_source))


def used_agents(plan: RunPlan, default: str | None, home: Path, failover: Sequence[str] | None) -> set[str]:
    """Return the agents and validators of a plan, including failover agents.

    Args:
        default: agent of nodes that name none.
        failover: default failover agents.
    """
    agents = _agents_by_node(plan, default)
    followers = {each for name, task in plan.tasks.items() for each in _followers(task, agents[name], home, failover)}
    stronger = {each for task in plan.tasks.values() if (each := stronger_agent(task))}
    judges = {each for task in plan.tasks.values() for each in _validators_of(task, home, failover)}
    return {agent for agent in agents.values() if agent is not None} | followers | stronger | judges


def _validators_of(task: PlannedTask, home: Path, failover: Sequence[str] | None) -> tuple[str, ...]:
    """Return the validator of a node, and the failover agents that can replace it."""
    if not (first := registry.validator_agent(task.attrs)):
        return ()
    stated = failover if task.failover is None else parse_failover(f"node {task.node}", task.failover)
    followers = registry.followers_of(first, home, stated)
    return (first, *(each for each in followers if registry.can_validate(each, home)))


def _followers(task: PlannedTask, agent: str | None, home: Path, failover: Sequence[str] | None) -> tuple[str, ...]:
    """Return the failover agents of a node; Refused if it runs a command."""
    stated = failover if task.failover is None else parse_failover(f"node {task.node}", task.failover)
    if agent is None or agent == "command":
        if agent and task.failover is not None and stated:
            raise Refused(f"node {task.node} has failover=, but runs a command; give it an agent= and a "
                          "prompt=, or leave failover= out")
        return registry.followers_of("", home, stated) if stated and agent is None else ()
    return registry.followers_of(agent, home, stated)


def _stated_failover(option: str | None, plan: RunPlan) -> list[str] | None:
    """Return the failover of a run: from --failover, else from its graph; None if neither has one."""
    if option is not None:
        return list(parse_failover("--failover", option))
    return None if plan.failover is None else list(parse_failover("the graph", plan.failover))


def _agents_by_node(plan: RunPlan, default: str | None) -> dict[str, str | None]:
    return {name: task.agent or ("command" if task.command else default) for name, task in plan.tasks.items()}


def _validators(plan: RunPlan) -> set[str]:
    return {validator for task in plan.tasks.values() if (validator := registry.validator_agent(task.attrs))}


def check_agents(plan: RunPlan, home: Path, default: str | None, environ: Mapping[str, str],
                 failover: str | None = None, passed: Iterable[str] | None = None) -> list[str]:
    """Return the environment variables that the agents of a plan need; refuse an agent that cannot do its node.

    Args:
        default: agent of nodes that name none; None if not known yet, so that these nodes are not checked.
        environ: environment with the PATH of the agents.
        failover: value of --failover.
        passed: variables that all agents get; None if not known yet.
    """
    agents = _agents_by_node(plan, default)
    validators = _validators(plan)
    for task in plan.tasks.values():
        _check_names(task, home)
    stated = _stated_failover(failover, plan)
    registry.followers_of("", home, stated or ())
    used = used_agents(plan, default, home, stated)
    required = registry.required_variables(used, home)
    for name in sorted(validators):
        registry.check_validator(name, home)
    for name, task in plan.tasks.items():
        agent = agents[name]
        if agent is None:
            continue
        if agent == "command" and not task.command:
            raise Refused(f"node {name} has no command=, and no agent is set: pass --agent NAME "
                          "(`garrison agents presets` lists them), or give it agent= or command=")
        registry.check_node(agent, name, task.attrs, home)
        _check_stronger(task, agent, home)
        for follower in _followers(task, agent, home, stated):
            registry.check_node(follower, name, registry.follower_attributes(task.attrs), home)
        if session := registry.session_options(agent, name, task.attrs, home):
            load(PluginGroup.PARTS, "session.check_tier")(session.tier)
    for agent in sorted(used):
        registry.check_program(agent, home, environ, None if passed is None else [*passed, *required])
    for kind in sorted({task.kind for task in plan.tasks.values()} - set(TASK_HANDLERS)):
        from garrison.pipeline.handlers.registry import load_offered  # a package's must exist

        load_offered(kind)
    return required


def _check_stronger(task: PlannedTask, agent: str, home: Path) -> None:
    """Refuse an `escalate` agent that cannot do the node."""
    if agent == "command" and task.attrs.get("escalate", "none") != "none":
        raise Refused(f"node {task.node} has escalate=, but runs a command; give it an agent= and a prompt=, "
                      "or leave escalate= out")
    if stronger := stronger_agent(task):
        registry.check_node(stronger, task.node, registry.follower_attributes(task.attrs), home)


def _check_names(task: PlannedTask, home: Path) -> None:
    """Refuse a missing agent or validator of a node, at its place in the pipeline."""
    for name, written in ((task.agent, "agent"), (registry.validator_agent(task.attrs), "validator"),
                          (stronger_agent(task), "escalate")):
        try:
            if name and registry.find_profile(name, home) is SHELL and written == "escalate":
                raise UsageError(f"escalate: {name} runs a node's own command; name an agent that does its task")
        except UsageError as error:
            line, column = position(task.attrs.get(written, ""))
            place = f"{task.source}:{line}:{column}: " if line else ""
            raise UsageError(f"{place}node {task.node}: {error}") from error


def _environment_names(runtime: Runtime, request: LaunchRequest, plan: RunPlan) -> list[str]:
    """Return the variables that agents get, from --env and their profiles. Refused for an unusable agent."""
    required = check_agents(plan, runtime.home, request.agent, runtime.environ, request.failover, request.env)
    if unset := unset_variables(runtime, request.env):
        raise Refused(f"--env {unset[0]}: the variable is not set here, so agents and gate would not see it; export "
                      "it, or leave out that --env")
    return sorted({*request.env, *(name for name in required if name in runtime.environ)})


def unset_variables(runtime: Runtime, names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in runtime.environ]


def run_exists(run: str) -> Refused:
    return Refused(f"run {run} exists already; continue it with `garrison resume {run}`, or choose another id with "
                   "--run")


def run_is_foreign(runtime: Runtime, git: Git, run: str, ref: str) -> Refused:
    """Return the refusal of a run id whose ref `ref` in the repository belongs to another home's run, or to a removed
    run: its work would land with this one's."""
    stem, taken = re.sub(r"-[0-9]+\Z", "", run), git.find_refs_of_runs()
    free = next(name for number in count(2) if (name := f"{stem}-{number}") not in taken
                and not (runtime.home / "runs" / name).exists())
    return Refused(f"{git.root} has {ref} of an earlier run {run}, or of another home's, whose work would land with "
                   f"this one; choose another id: `--run {free}` is free")


def _is_unfinished(runtime: Runtime, run: str, state: RunState) -> Refused:
    """Return the refusal of a second run of the same work, with advice on the first."""
    is_at_work = any(is_held(runtime.store.life_path(key)) for key in (
        launcher_key(run), Key("guardian", runtime.launch(run).pipeline_id, run)))
    then = f"`garrison status {run} --watch` shows it" if is_at_work else f"continue it with `garrison resume {run}`"
    return Refused(f"run {run} of this pipeline and repository is {'at work' if is_at_work else 'unfinished'} "
                   f"({state.landed} of {len(state.nodes)} nodes landed); {then}, or start another with --new")


def _refuse_unfinished(runtime: Runtime, launch: Launch, request: LaunchRequest) -> None:
    """Refuse a second run of a pipeline and repository while an unfinished one exists."""
    if request.run is not None and (runtime.home / "runs" / check_run(request.run)).exists():
        raise run_exists(request.run)
    if request.new:
        return
    for run in run_records.list_runs(runtime.home):
        try:
            other = runtime.launch(run)
            if (other.pipeline_id, other.repo) != (launch.pipeline_id, launch.repo) or other.adhoc:
                continue
            state = read_run_state(runtime, run)
        except RecordError as error:
            log_line(f"run {run} is skipped: {error}")
            continue
        if state.status not in FINAL:
            raise _is_unfinished(runtime, run, state)


def _with_gate(runtime: Runtime, launch: Launch, git: Git, request: LaunchRequest, defaults: LaunchConfig,
               report: Callable[[str], None]) -> Launch:
    """Return the launch with the queue's gate, after the gate passed on the target."""
    launch = _with_hooks(runtime, launch, git, report)
    if launch.land == LAND_NONE:
        launch = replace(launch, gate=request.gate, setup=launch.setup or None)
        _check_node_gate(runtime, launch, git, request, report)
        return launch
    queue = run_branch.target_queue(runtime, launch, "launch", git)
    recorded = queue.state.config
    gate = None if request.no_gate else request.gate or (recorded.gate if recorded else None)
    setup = launch.setup
    if setup is None and recorded is not None and gate == recorded.gate:
        setup = recorded.setup
    report_sources(request, gate, setup, defaults, recorded, report)
    setup = setup or None  # `--setup ""` means none, even if the last launch had one
    lock_files = launch.lock_files or (list(recorded.lock_files) if recorded else [])
    if gate is None and not request.no_gate:
        raise Refused("no gate: pass --gate 'COMMAND' to test each merged tree (`garrison init` proposes one and "
                      "keeps it), or --no-gate to land untested")
    fixed = request.gate_from_target or (list(recorded.gate_from_target) if recorded else [])
    asked = landing.record(git) if request.with_hooks else recorded.hooks if recorded else ""
    config = QueueConfig(gate, setup, request.no_gate, runtime.timing.gate_timeout, tuple(lock_files), hooks=asked,
                         gate_from_target=tuple(fixed), committer=launch.committer, signer=read_signer(launch.signer),
                         commit_hook=launch.base_ref if launch.commit_hook else "")
    why = explain_gate_mismatch(recorded, config, unfinished=len(queue.state.unfinished()),
                                processor=queue.is_processor_running())
    if why:
        raise Refused(why)
    launch = replace(launch, gate=gate, setup=setup, lock_files=lock_files, gate_from_target=fixed, hooks=asked)
    if request.fresh_setup:
        setups.make_anew(setups.store_of(Path(launch.trees) / git.key))
    try:
        preflight(queue, config, trees=Path(launch.trees), environment=runtime.environment(launch, {}),
                  run=launch.run_id, held_back=launch.held_back, base=launch.base_ref,
                  allow_foreign_imports=request.allow_foreign_imports,
                  recent=0.0 if request.fresh_setup else RECENT_PREFLIGHT, progress=report)
    # also on Ctrl-C: no launcher follows that would remove the slot of this gate
    except BaseException:
        queue.remove_idle_slots(Path(launch.trees))
        raise
    queue.configure(config)
    _check_node_gate(runtime, launch, git, request, report)
    return launch


def _with_hooks(runtime: Runtime, launch: Launch, git: Git, report: Callable[[str], None]) -> Launch:
    """Return the launch with the commit hooks that `[guard]` selects; report whether they run."""
    names, mode = find_hooks(git), read_hooks_mode(runtime.home)
    has_gate = not launch.no_gate and launch.land != LAND_NONE
    if line := describe_hooks(names, mode, has_gate=has_gate):
        report(line)
    return replace(launch, commit_hook=mode is GuardHooks.GATE and "pre-commit" in names and has_gate)


def _check_node_gate(runtime: Runtime, launch: Launch, git: Git, request: LaunchRequest,
                     report: Callable[[str], None]) -> None:
    """Refuse a gate for the run's own branch that does not pass at the start of the branch."""
    if launch.land == LAND_NODE or launch.node_gate in (None, launch.gate):
        return
    queue = run_branch.target_queue(runtime, launch, "launch", git)
    config = QueueConfig(launch.node_gate, launch.setup, timeout=runtime.timing.gate_timeout,
                         lock_files=tuple(launch.lock_files))
    try:
        preflight(queue, config, trees=Path(launch.trees), environment=runtime.environment(launch, {}),
                  run=launch.run_id, held_back=launch.held_back, base=launch.base_ref,
                  allow_foreign_imports=request.allow_foreign_imports, progress=report)
    finally:
        queue.remove_idle_slots(Path(launch.trees))


# ---- resuming --------------------------------------------------------------------------------------------------------


class RunOver(Refused):
    """Refusal to resume an ended run. The command exits with the run's exit code, so that a service manager that
    restarts launchers does not mistake a success for a failure."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def check_resume(runtime: Runtime, run: str, *, accept_rewritten_target: bool = False,
                 retry_failed: bool = False, retry_nodes: Sequence[str] = ()) -> Launch:
    """Return the launch of a run to resume; RunOver if it has ended, Refused if its target was rewritten.

    An ended run whose launcher died before reporting that may be resumed: the new launcher reports it.
    """
    from garrison.run.repair import repair_run  # loads the guardian's code

    for note in repair_run(runtime, check_run(run)):
        log_line(note)
    launch = launch_to_resume(runtime, run)
    state = read_run_state(runtime, run)
    check_journal_present(runtime.store, launch, state, runtime.files(run).journal)
    last = runtime.store.read(Identity, launcher_key(run))
    if retry_failed:
        _check_retry(runtime, launch, state, retry_nodes)
    elif state.over:
        if last is not None and last.status in ALIVE:
            return launch
        retry = "pass --retry-failed to try the failed nodes again, or " if state.status == "failed" else ""
        raise RunOver(f"run {run} is {state.status}" + (f" ({state.reason})" if state.reason else "")
                      + f"; {retry}start another with `garrison run` or `garrison launch`", EXIT[state.status])
    if not Path(launch.repo).is_dir():
        raise Refused(f"run {run} cannot continue: {describe_moved(launch.repo, run)}")
    git = Git(validate_repository(Path(launch.repo)), home=runtime.home)
    tip = git.rev(launch.base_ref) if launch.remote else git.branch_tip(launch.base)
    if tip is None:
        raise Refused(f"{launch.repo} no longer has the branch {launch.base}; restore it, then `garrison resume {run}`")
    needs_branch = launch.onto != launch.base and state.status != "new" and not state.over
    if needs_branch and state.landing.status not in (LANDED, NO_CHANGE) and not git.branch_exists(launch.onto):
        raise Refused(f"{launch.repo} no longer has the branch {launch.onto} with the work of run {run}; restore it "
                      f"(`git branch {launch.onto} {_last_of_branch(runtime, launch)}`), then `garrison resume {run}`")
    if not accept_rewritten_target and not git.is_ancestor(launch.base_oid, tip):
        raise Refused(f"{launch.base} was rewritten since run {run} started ({launch.base_oid[:10]} is not in it); "
                      "pass --accept-rewritten-target to continue on it")
    _restore_gate(runtime, launch, git)
    if unset := unset_variables(runtime, launch.env):
        log_line(f"run {run} was launched with variables that are not set here: {', '.join(unset)}; its agents and its "
                 "gate continue without them, unless you stop it, export them and resume again")
    return _with_sandbox(runtime, launch)


def launch_to_resume(runtime: Runtime, run: str) -> Launch:
    """Return the launch of a run; Refused for a run of another home that this machine does as a host."""
    launch = runtime.launch(run)
    if launch.claimed_for:
        raise Refused(f"run {run} does {launch.claimed_for}, as a host, and is controlled from there")
    return launch


def _terminal_beside_landlock(runtime: Runtime, launch: Launch, git: Git) -> str:
    """Return the terminal of a launch, so that no agent under Landlock can reach a tmux; Refused if one could, or for a
    repository with submodules.

    A process that connects to tmux's socket can run anything as the user, and Landlock does not restrict sockets.
    """
    if not launch.is_held_by_landlock:
        held = next((other.run_id for other in _living_launches(
            runtime, launch, lambda other: other.is_held_by_landlock)), None)
        if held is not None and launch.terminal == "tmux":
            raise Refused(f"run {held} is confined by Landlock, which cannot block tmux's socket, through which its "
                          "agents could run anything as you; use --terminal process, or wait until that run has ended")
        return "process" if held is not None and launch.terminal == "auto" else launch.terminal
    _refuse_submodules(git, launch.base_oid)
    if launch.terminal == "tmux":
        raise Refused("Landlock cannot block tmux's socket, through which agents could run anything as you; use "
                      "--terminal process")
    if TmuxServer(runtime.home / "run").processes():
        _refuse_beside_tmux(runtime, launch, "; wait until that has ended, or use another home with --home")
    return "process" if launch.terminal == "auto" else launch.terminal


def _refuse_submodules(git: Git, commit: str) -> None:
    """Refuse Landlock for a repository with submodules, in which an agent cannot get its own git directory."""
    listing = git.run("ls-tree", "-r", "-z", commit, exact=True, check=False).out \
        if git.run("cat-file", "-e", f"{commit}:.gitmodules", check=False).code == 0 else ""
    if name := next((line.partition("\t")[2] for line in split(listing) if line.startswith("160000 ")), ""):
        raise Refused(f"{git.root} has submodules ({name}), in which agents under Landlock cannot commit; use "
                      "bubblewrap (`garrison doctor` lists what it needs)")


def _refuse_beside_tmux(runtime: Runtime, launch: Launch, advice: str) -> None:
    users = ", ".join(other.run_id for other in _living_launches(runtime, launch, _may_use_tmux))
    raise Refused(f"{f'run {users} works' if users else 'a session works'} in tmux in this home, and Landlock cannot "
                  f"block its socket, through which other agents could run anything as you{advice}")


def _may_use_tmux(launch: Launch) -> bool:
    return launch.terminal != "process"


def _living_launches(runtime: Runtime, launch: Launch, wanted: Callable[[Launch], bool]) -> Iterator[Launch]:
    """Yield the wanted launches of other runs with a living guardian."""
    for run in run_records.list_runs(runtime.home):
        if run == launch.run_id:
            continue
        with suppress(RecordError, NotFound):
            other = runtime.launch(run)
            if not wanted(other):
                continue
            guardian = runtime.store.read(Identity, Key("guardian", other.pipeline_id, run))
            if guardian is not None and runtime.observer.judge(guardian).living:
                yield other


def _with_sandbox(runtime: Runtime, launch: Launch) -> Launch:
    """Return the launch with the sandbox for its next processes, and record it; Refused if this machine cannot provide
    it.

    A living guardian keeps its original sandbox.
    """
    guardian = runtime.store.read(Identity, Key("guardian", launch.pipeline_id, launch.run_id))
    if guardian is not None and runtime.observer.judge(guardian).living:
        return launch
    try:
        plan = read_plan(runtime.files(launch.run_id), launch)
    except GarrisonError:  # its guardian reports a lost or damaged graph, with advice
        return launch
    environ = runtime.environment(launch, {})
    agents = used_agents(tasks_here(plan, launch.hosts), launch.agent, runtime.home, launch.failover)
    held = summarize_sandbox(runtime.home, agents, {**runtime.environ, **environ},
                             git=Git(Path(launch.repo), home=runtime.home))
    line = held.line
    if launch.is_held_by_landlock and read_rights(runtime.home, Role.AGENT, "", runtime.environ).mode is Mode.AUTO:
        line += "; an earlier version chose it, and this run keeps it; for a new run you have to choose it"
    changed = replace(launch, sandbox=line, sandbox_mode=environ.get(MODE_VARIABLE, ""), sandbox_modes=held.modes,
                      sandbox_gaps=held.gaps)
    if changed != launch:
        run_records.save(runtime.files(launch.run_id).sandbox, RunSandbox(
            changed.sandbox, changed.sandbox_mode, changed.sandbox_modes, changed.sandbox_gaps))
    if changed.is_held_by_landlock and any(_living_launches(runtime, launch, _may_use_tmux)):
        _refuse_beside_tmux(runtime, launch, f"; wait until that has ended, then `garrison resume {launch.run_id}`")
    return runtime.launch(launch.run_id)


def _last_of_branch(runtime: Runtime, launch: Launch) -> str:
    return run_branch.node_queue(runtime, launch, "launch").state.tip or launch.base_oid


def _check_retry(runtime: Runtime, launch: Launch, state: RunState, nodes: Sequence[str] = ()) -> None:
    """Refuse to retry the failed nodes of a run that did not fail at a node."""
    run, files = launch.run_id, runtime.files(launch.run_id)
    if state.status != "failed":
        raise Refused(f"run {run} is {state.status}; --retry-failed is for failed runs")
    replayed = replay_with_plan(files, launch, read_all(files.journal))[1]
    if replayed.landing.status == NOT_LANDED:
        return
    flow = replayed.flow
    if flow is not None and flow.over and flow.state.resumable != "again":
        raise Refused(f"run {run} cannot be retried: {flow.why or 'it did not fail at a node'}; start another with "
                      "--new")
    # a pipeline that follows one edge at a time failed at one place, and returns there
    failed = flow.retriable() if flow is not None and flow.program.flow == "dag" else {
        name for name, node in replayed.nodes.items() if node.status == "failed"}
    if wrong := [name for name in nodes if name not in failed]:
        raise Refused(f"{', '.join(wrong)} of run {run} cannot be retried; failed: {', '.join(sorted(failed))}")


def check_graph_unchanged(runtime: Runtime, launch: Launch) -> None:
    """Refuse to continue a run whose graph file differs from the graph it was launched with."""
    path, files = Path(launch.graph_source), runtime.files(launch.run_id)
    if not launch.graph_source or not path.is_file() or not files.launched_graph.is_file():
        return
    original = graph_digest(parse(_read(files.launched_graph), str(files.launched_graph)))
    try:
        is_same = graph_digest(apply_installed(parse(_read(path), str(path)), "")[0]) == original
    except DialectError:
        is_same = False
    if not is_same:
        raise Refused(f"{path} was changed since run {launch.run_id} began; pass --original-graph to continue "
                      "with the graph as launched, or start another run with --new")


def _restore_gate(runtime: Runtime, launch: Launch, git: Git) -> None:
    """Configure a queue whose damaged journal was moved away, with the options of the run's launch."""
    queues = run_branch.node_queue(runtime, launch, "launch", git), run_branch.landing_queue(
        runtime, launch, "launch", git)
    for queue in filter(None, queues):
        run_branch.restore_gate(queue, launch, runtime.timing.gate_timeout)
