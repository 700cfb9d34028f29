"""`garrison init`: examine a repository, propose and try gate and set-up, write garrison.toml and a pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from garrison.agents.registry import check_variables, describe_program_inside, find_profile, installed_agents
from garrison.cli.commands import Command
from garrison.cli.options import output_options
from garrison.cli.output import dumps, interruptible, print_message
from garrison.cli.sandbox import sandbox_option, settle_mode
from garrison.config import PROJECT_FILE, LaunchConfig, config_path
from garrison.directories import find_home, trees_root
from garrison.errors import Refused, UsageError
from garrison.extras import install_line
from garrison.merge.gate_files import command_words
from garrison.merge.queue import MergeQueue
from garrison.processes.runtime import Runtime
from garrison.project import node_project, python_project
from garrison.project.ecosystems import NODE, PYTHON, CommandPair, join
from garrison.project.files import ProjectFiles, is_manifest, is_python_test
from garrison.project.python_project import Version
from garrison.project.survey import CONFLICT_MARKERS, Project, Survey, propose_gate, setup_key, survey
from garrison.project.templates import TEMPLATES, fill, quoted
from garrison.project.trial import (
    GATE,
    SETUP,
    Attempt,
    TrialMeans,
    TrialResult,
    find_passing,
    try_gate,
    whole_registries,
)
from garrison.records.run import Launch
from garrison.run.request import read_project
from garrison.sandbox import container
from garrison.sandbox.devcontainer import prepare_launch, with_devcontainer
from garrison.sandbox.place import Mode, Role
from garrison.sandbox.probe import NAMES, summarize_sandbox
from garrison.sandbox.proxy.allowed_hosts import HostRights
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.command import run
from garrison.system.git import Git, validate_repository
from garrison.system.git.repository import check_version, explain_detached_head
from garrison.values import Value, asdict, replace

MAX_PATHS, MAX_MANIFESTS, MAX_TEXTS = 50_000, 300, 60
TEXT_LIMIT = 1 << 18
MAX_OTHERS = 4
NEWER_PYTHONS = range(9, 20)
# -I: ignore PYTHON variables and modules in the current folder
_VERSION = ("-I", "-c", "import sys; print(*sys.version_info[:2])")
TOTAL = 2
"""Time limit of all trials, as a multiple of the limit of one part."""
_BUILTINS = frozenset({"cd", "echo", "test", "true", "false", "exit", ":", "[", "set", "export", "printf"})
FIRST = "first.dot"
"""The pipeline that `init` writes."""
UNTIL_GREEN, REVIEW = "fix-until-green", "review-and-fix"
"""Its templates: for a failing gate, and for a passing one."""


class Programs(Value):
    """Places of the programs of set-up and gate: a PATH, or the image of their container."""

    path: str
    engine: container.ContainerEngine | None = None

    def find_missing(self, names: Sequence[str]) -> list[str]:
        """Return the programs that are missing."""
        if self.engine is None:
            return [name for name in names if shutil.which(name, path=self.path) is None]
        return container.ask(self.engine, 'for name; do command -v -- "$name" >/dev/null || echo "$name"; done',
                             *names).out.split() if names else []

    def python_versions(self) -> tuple[Version, ...]:
        """Return the version of `python3` (else garrison's own Python), and of each `python3.N`."""
        if self.engine is None:
            python = shutil.which("python3", path=self.path) or "/usr/bin/python3"
            done = run([python, *_VERSION], 10.0, env={"PATH": self.path})
        else:
            done = container.ask(self.engine, 'exec python3 "$@"', *_VERSION)
        first = sys.version_info[:2]
        with contextlib.suppress(ValueError):
            major, minor = map(int, done.out.split())
            first = (major, minor)
        names = [f"python3.{minor}" for minor in NEWER_PYTHONS]
        missing = self.find_missing(names)
        return first, *((3, minor) for minor, name in zip(NEWER_PYTHONS, names, strict=True) if name not in missing)


class Choice(Value):
    """Content of the garrison.toml that `init` writes."""

    gate: str | None
    setup: str | None
    setup_key: Sequence[str]
    agent: str | None
    why: tuple[str, ...] = ()
    """Why this gate and set-up were chosen, one reason per line."""
    base: str | None = None
    """Branch on which work lands, if given."""


@click.command(cls=Command, examples=(
    ("garrison init", "examine, propose, try, write; then print the next command"),
    ('garrison init --gate "make check" --agent codex', "with your own gate and agent"),
))
@click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
              help="Repository to examine (default: the one you are in).")
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree, in place of the proposed one.")
@click.option("--setup", metavar="CMD", help="Command that prepares a worktree, in place of the proposed one.")
@click.option("--agent", metavar="NAME", help="Agent of the nodes that name none (default: the first one installed).")
@click.option("--base", metavar="BRANCH", help="Branch on which work lands (default: the one checked out when a run "
              "is launched).")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, metavar="SECONDS",
              help=f"Time limit of a trial's set-up and of its gate; no trial starts after {TOTAL} times that.")
@click.option("--no-try", is_flag=True, help="Do not try gate and set-up.")
@click.option("--force", is_flag=True, help=f"Replace {PROJECT_FILE}, and {FIRST} unless you changed it; by default, "
              "init tries the configured gate and changes neither.")
@sandbox_option
@output_options
def init(target_dir: Path | None, gate: str | None, setup: str | None, agent: str | None, base: str | None,
         timeout: float, home: str | None, *, no_try: bool, force: bool, as_json: bool) -> None:
    """Prepare the repository you are in: find out how it is built and tested, and try that.

    Tries the project's own tools first, then simpler ways, until set-up and gate pass on the tip of your branch, and
    writes garrison.toml and a first pipeline into the top directory without committing them. Exit code 1 if no trial
    passed. An existing garrison.toml is tried and not changed.
    """
    runtime = Runtime.real(find_home(home))
    check_version()
    repo = validate_repository(target_dir or Path.cwd())
    kept = read_project(repo) if (repo / PROJECT_FILE).exists() and not force else None
    if kept is not None and (gate or setup or agent or base):
        raise Refused(f"{repo / PROJECT_FILE} exists; change it there, or rewrite it with --force")
    if agent is not None:
        find_profile(agent, runtime.home)
        check_variables(agent, runtime.home, runtime.environ)
    path = runtime.environ.get("PATH", os.defpath)
    git = Git(repo, home=runtime.home)
    tested = _branch(git, base or (kept.base if kept is not None else None))
    files = read_files(repo, git)
    programs = _programs(runtime, git, tested, path)
    agents = [name for name in installed_agents(runtime.home, path) if _is_inside(name, runtime, git)]
    found = survey(files, programs.python_versions())
    for line in describe(found if kept is None else None):
        print_message(line)
    plan = override(found, gate, setup) if kept is None else Survey((_as_it_is(kept),), ())
    trials = None if no_try else _Trials(runtime, repo, tested, files, timeout, programs)
    way, told, result = _choose(plan, programs, trials)
    key = setup_key(files, way.setup) if kept is None else list(kept.setup_key)
    choice = Choice(way.gate or None, way.setup or None, key,
                    kept.agent if kept is not None else agent or next(iter(agents), None), (way.why, *told), base)
    for line in [*describe_choice(choice, agents), *(describe_others(choice, found, programs) if kept is None else [])]:
        print_message(line)
    written = _write(repo, git, choice, found, result, is_kept=kept is not None, force=force)
    if as_json:
        click.echo(dumps({"repository": str(repo), **asdict(choice), **_to_data(found), "agents": agents,
                          "trial": _trial_data(result), "files": written}))
    else:
        settings = HostRights(config_path(runtime.home),
                              read_rights(runtime.home, Role.SETUP, "", runtime.environ).hosts)
        for line in [*([f"wrote {' and '.join(written)}"] if written else []),
                     *next_steps(choice, result, FIRST if (repo / FIRST).exists() else None, settings)]:
            click.echo(line)
    if result is not None and not result.passed:
        raise click.exceptions.Exit(1)


def _branch(git: Git, base: str | None) -> str:
    """Return the branch whose tip is tried; Refused if it does not exist, or if none is given or checked out."""
    if base is None and (base := git.current_branch()) is None:
        raise Refused(explain_detached_head(git.root))
    if not git.branch_exists(base):
        raise Refused(f"{git.root} has no branch {base}; create it, or name another with --base")
    return base


def _programs(runtime: Runtime, git: Git, base: str, path: str) -> Programs:
    """Return the places of the gate's programs; builds the image of a devcontainer.json if necessary."""
    rights = [read_rights(runtime.home, role, "", runtime.environ) for role in NAMES]
    prepare_launch(git, git.branch_tip(base) or "HEAD", rights, git.root, print_message)
    gate = with_devcontainer(read_rights(runtime.home, Role.GATE, "", runtime.environ), git)
    return Programs(path, container.at_launch(gate.image) if gate.mode is Mode.CONTAINER else None)


def _is_inside(agent: str, runtime: Runtime, git: Git) -> bool:
    """Return whether an agent of this machine has its program in its place of work."""
    rights = with_devcontainer(read_rights(runtime.home, Role.AGENT, agent, runtime.environ), git)
    with contextlib.suppress(Refused):
        return rights.mode is not Mode.CONTAINER or bool(describe_program_inside(agent, runtime.home, rights))
    return False


def _as_it_is(kept: LaunchConfig) -> Project:
    return Project("", (CommandPair("", PROJECT_FILE, kept.gate or "", kept.setup or ""),))


def _choose(plan: Survey, programs: Programs,
            trials: _Trials | None) -> tuple[CommandPair, list[str], TrialResult | None]:
    """Return the chosen way, why others were rejected, and the result of its trial; nothing is tried without a gate."""
    if trials is None or not plan.tested[0].candidates[0].gate:
        return untried(plan, programs), [] if trials is not None else ["it was not tried"], None
    way, result = trials.run(plan)
    return way, trials.told, result


def _write(repo: Path, git: Git, choice: Choice, found: Survey, result: TrialResult | None, *, is_kept: bool,
           force: bool) -> list[str]:
    """Write garrison.toml, unless kept, and the first pipeline; return the names of written files."""
    written = [] if is_kept else [PROJECT_FILE]
    if not is_kept:
        for name in _makes(found, choice):
            if not _is_ignored(git, name):
                print_message(f"note: git does not ignore {name}, which set-up or gate created; add it to .gitignore, "
                              "or agents may commit it")
        former = _former_gate(repo) if force else None
        write_project(repo, choice)
        if former is not None:
            _replace_first(repo, former, choice)
    pipeline = _write_first(repo, choice, result)
    return [*written, pipeline] if pipeline else written


def read_files(repo: Path, git: Git) -> ProjectFiles:
    """Return the tracked files, with the texts that tell how to test them; the content is untrusted."""
    # only tracked files: a worktree contains no others
    paths = [path for path in git.run("ls-files", "-z").out.split("\0") if path][:MAX_PATHS]
    paths.sort(key=lambda path: (path.count("/"), path))
    named = [path for path in paths if is_manifest(path)][:MAX_MANIFESTS]
    named += [path for path in paths if is_python_test(path)][:MAX_TEXTS]
    return ProjectFiles(frozenset(paths), {path: untrusted.read_text(repo, path, TEXT_LIMIT) for path in named})


def _is_ignored(git: Git, folder: str) -> bool:
    return git.run("check-ignore", "-q", "--", f"{folder}/x", check=False).code == 0


def override(found: Survey, gate: str | None, setup: str | None) -> Survey:
    """Return what to try: the found way, with the user's gate or set-up replacing its own. Pure."""
    if gate is None and setup is None:
        return found if found.tested else Survey((Project("", (CONFLICT_MARKERS,)),), found.others)
    if gate is not None and setup is not None:
        return Survey((Project("", (CommandPair("", "--gate and --setup", gate, setup),)),), found.others)
    proposed = propose_gate(found)
    if gate is not None:
        ways = [replace(each, gate=gate, why=f"--gate, {each.why}", is_test=False) for project in found.tested[:1]
                for each in project.candidates if each.setup and not project.folder]
        if found.tested and found.tested[0].folder and proposed is not None:
            ways = [replace(proposed, gate=gate, why="--gate", is_test=False)]
        ways.append(CommandPair("", "--gate without a set-up", gate))
        unique = {each.setup: each for each in reversed(ways)}
        return Survey((Project("", tuple(reversed(unique.values()))),), found.others)
    chosen = replace(proposed or CONFLICT_MARKERS, setup=setup or "", why="--setup", install="")
    return Survey((Project("", (chosen,)),), found.others)


def describe(found: Survey | None) -> list[str]:
    """Describe the found way in lines; `found` is None if garrison.toml defines it. Pure."""
    if found is None:
        return [f"trying the existing {PROJECT_FILE}; --force replaces it"]
    if not found.tested:
        return ["found no build system that garrison knows; --gate CMD sets the test command"]
    lines = [f"found: {project.title}" + ("" if project.is_tested else ", without known tests")
             for project in found.tested]
    others = [f"{project.title} (`{project.candidates[0].in_folder(project.folder).gate}`)" for project in found.others
              if project.is_tested]
    if others:
        lines.append(f"also found: {', '.join(others)}")
    return lines


def describe_others(choice: Choice, found: Survey, programs: Programs) -> list[str]:
    """Return how the gate could also test the projects in folders, which it leaves out."""
    others = [project for project in found.others if project.is_tested and project.folder][:MAX_OTHERS]
    if not others or choice.gate is None:
        return []
    way = join([CommandPair("", "", choice.gate, choice.setup or ""), untried(Survey(tuple(others), ()), programs)])
    setup = f" --setup {shlex.quote(way.setup)}" if way.setup else ""
    return [f"to test {' and '.join(project.folder for project in others)} too: garrison init --force --gate "
            f"{shlex.quote(way.gate)}{setup}"]


def describe_choice(choice: Choice, agents: Sequence[str]) -> list[str]:
    """Describe the choice in lines. Pure."""
    lines = [f"{what}: {value}" for what, value in (("set-up", choice.setup), ("gate", choice.gate)) if value]
    lines.append(f"agents installed: {', '.join(agents)}" if agents else
                 f"agents installed: none that garrison knows; `{install_line('claude')}` brings Claude, "
                 "`garrison agents presets` lists others")
    return lines


_DEFAULTS = HostRights()


def next_steps(choice: Choice, result: TrialResult | None, pipeline: str | None,
               settings: HostRights = _DEFAULTS) -> list[str]:
    """Return the user's next steps in lines; the last one is the next command. Pure."""
    if choice.gate is None:
        return [f"next: set gate in {PROJECT_FILE} to the command that tests this project, then: garrison init"]
    agent = "" if choice.agent else " --agent NAME"
    if result is not None and result.absent:
        return [f"next: install {' and '.join(result.absent)}, then: garrison init --force"]
    refused = whole_registries(result.refused_hosts if result is not None else ())
    if refused:
        return [f"if you trust {' and '.join(refused)}, write this below [sandbox] in {settings.path}:",
                f"    {settings.line_with(f'private {host}' for host in refused)}",
                "next: garrison init --force"]
    if result is not None and result.is_lost:
        return [f"the trial gave no verdict: {result.summary}", "next: garrison init --force"]
    if result is not None and result.failed == SETUP:
        return [f"next: correct setup in {PROJECT_FILE}, then try it: garrison init"]
    if result is not None and not result.passed:
        repair = [f"or let an agent work until it is green: garrison launch {pipeline} --no-gate{agent}"] if pipeline \
            else []
        return ["a launch is refused until the gate passes", *repair,
                f"next: correct the tests, or gate in {PROJECT_FILE}, then try it: garrison init"]
    first = [f"{pipeline} is a first pipeline: set the goal in it, then: garrison launch {pipeline}{agent}"] if \
        pipeline else []
    return [*first, f'next: garrison run "describe here what to do"{agent}']


def _makes(found: Survey, choice: Choice) -> list[str]:
    return list(dict.fromkeys(
        name for project in found.tested for way in project.candidates if way.in_folder(project.folder).gate in (
            choice.gate or "") for name in way.in_folder(project.folder).makes))


def _trial_data(result: TrialResult | None) -> dict[str, object] | None:
    return {"passed": result.passed, "summary": result.summary, "tail": result.tail, "failed": result.failed,
            "failing": result.failing} if result else None


def _to_data(found: Survey) -> dict[str, object]:
    projects = (*found.tested, *found.others)
    return {"projects": [{"folder": each.folder, "ecosystem": each.ecosystem} for each in projects],
            "ecosystems": list(dict.fromkeys(each.ecosystem for each in projects))}


def untried(plan: Survey, programs: Programs) -> CommandPair:
    projects = plan.tested if plan.tested[0].folder else plan.tested[:1]
    return join([next((way for way in project.candidates if not missing_programs(way, programs)), project.candidates[0])
                 .in_folder(project.folder) for project in projects])


class _Trials:
    """Trials of a repository's projects on the tip of a branch, in their later sandbox."""

    def __init__(self, runtime: Runtime, repo: Path, base: str, files: ProjectFiles, limit: float,
                 programs: Programs) -> None:
        self.runtime, self.repo, self.files, self.limit, self.programs = runtime, repo, files, limit, programs
        settle_mode(runtime.home)
        self.trees = trees_root(runtime.environ)
        git = Git(repo, home=runtime.home)
        launch = Launch("", "init", str(repo), base, runtime.clock.utc(), str(self.trees), path=programs.path,
                        sandbox=summarize_sandbox(runtime.home, set(), runtime.environ, git=git).line)
        self.environment = runtime.environment(launch, {})
        self.queue = MergeQueue(runtime.home, repo, base, clock=runtime.clock)
        self.end = time.monotonic() + TOTAL * limit
        self.told: list[str] = []

    def run(self, plan: Survey) -> tuple[CommandPair, TrialResult]:
        """Return the chosen way, and the result of its trial."""
        if sum(len(project.candidates) for project in plan.tested) > 1:
            print_message(f"trial: one way after the other until one passes, for at most {TOTAL * self.limit / 60:.0f} "
                          "minutes in all")
        chosen: list[CommandPair] = []
        with interruptible():
            for project in plan.tested:
                attempt = self._search(project)
                result = attempt.result
                # several ecosystems at the top are one project, of which the first must pass; in folders each must pass
                if not result.passed and chosen and not project.folder:
                    self._tell(f"{project.title} is left out of the gate: {result.summary}")
                    continue
                chosen.append(attempt.candidate.in_folder(project.folder))
                if not result.passed:
                    return self._end_failed(plan, project, chosen, result)
            way = join(chosen)
            if len(chosen) > 1:
                result = self._try(way, self.limit)
        print_message(f"trial: {result.summary}")
        return way, result

    def _end_failed(self, plan: Survey, failed: Project, chosen: Sequence[CommandPair],
                    result: TrialResult) -> tuple[CommandPair, TrialResult]:
        """Report why the trial failed, and how to leave out one project of several."""
        # already printed with the failed way, unless no way could be tried
        if not any(result.summary in line for line in self.told):
            print_message(f"trial: {result.summary}")
        for line in result.tail:
            print_message(f"    {line}")
        if not failed.folder:
            return join(chosen), result
        others = propose_gate(Survey(tuple(each for each in plan.tested if each != failed), ()))
        if others is not None:
            print_message(f"{failed.title} fails; without it: garrison init --force --gate {shlex.quote(others.gate)} "
                          f"--setup {shlex.quote(others.setup)}")
        rest = plan.tested[len(chosen):]
        return join([*chosen, *(each.candidates[0].in_folder(each.folder) for each in rest)]), result

    def _search(self, project: Project) -> Attempt:
        files = self.files.below(project.folder)

        def extend(way: CommandPair, log: str) -> CommandPair | None:
            rooms = {PYTHON: python_project.extend_python, NODE: node_project.extend_node}
            return rooms[way.ecosystem](files, way, log) if way.ecosystem in rooms else None

        return find_passing(project.candidates, TrialMeans(
            lambda way, limit: self._try(way.in_folder(project.folder), limit),
            lambda way: missing_programs(way, self.programs), extend, time.monotonic, self._tell),
            limit=self.limit, end=self.end)

    def _try(self, way: CommandPair, limit: float) -> TrialResult:
        print_message(f"trial: {way.why}: {f'{way.setup}, then ' if way.setup else ''}{way.gate}")
        return try_gate(self.queue, gate=way.gate, setup=way.setup or None, setup_key=setup_key(self.files, way.setup),
                        trees=self.trees, environment=self.environment, limit=limit, progress=print_message)

    def _tell(self, line: str) -> None:
        self.told.append(line)
        print_message(line)


def missing_programs(way: CommandPair, programs: Programs) -> list[str]:
    """Return the missing programs of a set-up and a gate."""
    words = dict.fromkeys(word for line in (way.setup, way.gate) if line for word in command_words(line))
    return programs.find_missing([word for word in words if "/" not in word and word not in _BUILTINS])


def write_project(repo: Path, choice: Choice) -> None:
    """Write garrison.toml."""
    settings = [(key, value) for key in ("gate", "setup", "setup_key", "agent", "base")
                if (value := getattr(choice, key))]
    why = [f"# {'chosen' if not number else 'before'}: {' '.join(line.split())}" for number, line in
           enumerate(choice.why)]
    lines = ["# How garrison tests this repository and who works on it; commit it to share it.", *why,
             "[launch]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings)]
    if choice.gate is None:
        lines.append('# gate = "the command that tests this project"')
    # remove it instead of writing to it: an agent may have landed it as a link to a file of the user
    (repo / PROJECT_FILE).unlink(missing_ok=True)
    write_new(repo / PROJECT_FILE, "\n".join([*lines, ""]))


def write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet, without following an agent's link."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _former_gate(repo: Path) -> str | None:
    """Return the gate of the garrison.toml to be replaced; None if there is none, or it is unreadable."""
    try:
        return read_project(repo).gate if (repo / PROJECT_FILE).exists() else None
    except UsageError:
        return None


def _replace_first(repo: Path, former: str, choice: Choice) -> None:
    """Remove the first pipeline if it is unchanged; if the user changed it, report that it has the old gate."""
    text = untrusted.read_text(repo, FIRST, TEXT_LIMIT)
    if text in {fill(template, gate=former) for template in TEMPLATES if template.name in (UNTIL_GREEN, REVIEW)}:
        (repo / FIRST).unlink()
    elif former != choice.gate and quoted(former) in text:
        print_message(f"note: {FIRST} has your changes, so it is kept and still runs the old gate ({former}); change "
                      "that there")


def _write_first(repo: Path, choice: Choice, result: TrialResult | None) -> str | None:
    """Write the first pipeline, unless it exists or there is no gate; return its name."""
    if choice.gate is None or (repo / FIRST).exists():
        return None
    name = UNTIL_GREEN if result is not None and result.failed == GATE else REVIEW
    template = next(template for template in TEMPLATES if template.name == name)
    write_new(repo / FIRST, fill(template, gate=choice.gate))
    return FIRST
