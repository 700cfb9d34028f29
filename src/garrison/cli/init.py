"""`garrison init`: look at a repository, propose gate and set-up, try them once, write garrison.toml and a pipeline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import click

from garrison.agents.claude.extra import INSTALL
from garrison.agents.registry import check_variables, find_profile, installed_agents
from garrison.cli.commands import Command
from garrison.cli.interrupt import interruptible
from garrison.cli.options import home_option, json_option
from garrison.cli.output import dumps, print_message
from garrison.config import PROJECT_FILE, find_home, trees_root
from garrison.errors import Refused, UsageError
from garrison.frozen import frozen
from garrison.merge.preflight import command_words
from garrison.merge.queue import MergeQueue
from garrison.processes.launch_request import read_project
from garrison.processes.runtime import Runtime
from garrison.project.ecosystems import ProjectFiles, Row, detect, patterns_read, setup_key
from garrison.project.templates import TEMPLATES, fill, quoted
from garrison.project.trial import GATE, SETUP, TrialResult, try_gate
from garrison.records.run import Launch
from garrison.sandbox.summary import summarize_sandbox
from garrison.system import untrusted
from garrison.system.git import Git, validate_repository
from garrison.system.git.repository import explain_detached_head

MAX_PATHS, MAX_TEXTS = 50_000, 60
TEXT_LIMIT = 1 << 18
FIRST = "first.dot"
"""The pipeline that `init` writes."""
UNTIL_GREEN, REVIEW = "fix-until-green", "review-and-fix"
"""Templates of it: for a gate that fails, and for one that passes."""


@frozen
class Choice:
    """What `init` writes into garrison.toml."""

    gate: str | None
    setup: str | None
    setup_key: Sequence[str]
    agent: str | None


@click.command(cls=Command, examples=(
    ("garrison init", "look, propose, try, write; then print the next command"),
    ('garrison init --gate "make check" --agent codex', "with your own gate and agent"),
))
@click.option("--target-dir", metavar="DIR", type=click.Path(path_type=Path),
              help="Repository to look at (default: the one you are in).")
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree, in place of the proposed one.")
@click.option("--setup", metavar="CMD", help="Command that prepares a worktree, in place of the proposed one.")
@click.option("--agent", metavar="NAME", help="Agent of the nodes that name none (default: the first one installed).")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, metavar="SECONDS",
              help="Time that set-up and gate may take in the trial, each.")
@click.option("--no-try", is_flag=True, help="Do not try gate and set-up.")
@click.option("--force", is_flag=True, help=f"Replace {PROJECT_FILE}, and {FIRST} unless you "
              "changed it; without it, init tries the configured gate and changes neither.")
@json_option
@home_option
def init(target_dir: Path | None, gate: str | None, setup: str | None, agent: str | None, timeout: float,
         home: str | None, *, no_try: bool, force: bool, as_json: bool) -> None:
    """Prepare the repository you are in: find out how it is built and tested, and try that once.

    Writes garrison.toml and a first pipeline into its top directory, and commits nothing. If garrison.toml exists
    already, init tries what it says and leaves it as it is.
    """
    runtime = Runtime.real(find_home(home))
    repo = validate_repository(target_dir or Path.cwd())
    kept = read_project(repo) if (repo / PROJECT_FILE).exists() and not force else None
    if kept is not None and (gate or setup or agent):
        raise Refused(f"{repo / PROJECT_FILE} exists; change it there, or write it anew with --force")
    git = Git(repo, home=runtime.home)
    files = read_files(repo, git)
    rows = detect(files)
    agents = installed_agents(runtime.home, runtime.environ.get("PATH", os.defpath))
    if agent is not None:
        find_profile(agent, runtime.home)
        check_variables(agent, runtime.home, runtime.environ)
    choice = choose(rows, files, gate, setup, agent or next(iter(agents), None)) if kept is None else Choice(
        kept.gate, kept.setup, list(kept.setup_key), kept.agent)
    for line in describe(rows if kept is None else None, choice, agents):
        print_message(line)
    for name in (path for row in rows[:1] for path in row.makes if not _is_ignored(git, path)):
        print_message(f"note: git does not ignore {name}, which set-up or gate make; add it to .gitignore, or agents "
                      "may commit it")
    result = None if no_try or choice.gate is None else _try(runtime, repo, git, choice, timeout)
    written = [PROJECT_FILE] if kept is None else []
    former = _former_gate(repo) if force else None
    if kept is None:
        write_project(repo, choice)
    if former is not None:
        _replace_first(repo, former, choice)
    pipeline = _write_first(repo, choice, result)
    written += [pipeline] if pipeline else []
    if as_json:
        click.echo(dumps({"repository": str(repo), **asdict(choice), "ecosystems": [row.ecosystem for row in rows],
                          "agents": agents, "trial": asdict(result) if result else None,
                          "files": written}))
        return
    if written:
        click.echo(f"wrote {' and '.join(written)}")
    for line in next_steps(choice, result, FIRST if (repo / FIRST).exists() else None):
        click.echo(line)


def read_files(repo: Path, git: Git) -> ProjectFiles:
    """Return the tracked files, and the texts that marks look into; agents may have written them."""
    paths = [path for path in git.run("ls-files", "-z").out.split("\0") if path][:MAX_PATHS]
    wanted = patterns_read()
    named = [path for path in paths if any(fnmatchcase(path, pattern) for pattern in wanted)]
    named.sort(key=lambda path: path.count("/"))
    texts = {path: untrusted.read_text(repo, path, TEXT_LIMIT) for path in named[:MAX_TEXTS]}
    return ProjectFiles(frozenset(paths), texts)


def _is_ignored(git: Git, folder: str) -> bool:
    return git.run("check-ignore", "-q", "--", f"{folder}/x", check=False).code == 0


def choose(rows: Sequence[Row], files: ProjectFiles, gate: str | None, setup: str | None,
           agent: str | None) -> Choice:
    """Return what to write: what a person stated, else what the first row proposes. Pure."""
    row = rows[0] if rows else None
    if setup is None and row is not None and gate is None:
        setup = row.setup or None
    key = setup_key(row, files) if row is not None and setup == row.setup else []
    return Choice(gate or (row.gate if row is not None else None), setup, key, agent)


def describe(rows: Sequence[Row] | None, choice: Choice, agents: Sequence[str]) -> list[str]:
    """Return what was found, in lines; `rows` is None if garrison.toml states it. Pure."""
    lines = [f"{PROJECT_FILE} exists and is tried as it is; --force replaces it"] if rows is None else []
    if rows is None:
        rows = []
    elif not rows:
        lines.append("found no build system that garrison knows" + ("" if choice.gate else
                     "; state how it is tested with --gate CMD"))
    for row in rows[:1]:
        lines.append(f"found: {row.ecosystem}" + ("" if row.is_test else ", without tests that garrison knows"))
    if rows[1:]:
        lines.append("also found: " + ", ".join(f"{row.ecosystem} (`{row.gate}`)" for row in rows[1:])
                     + "; join gates with && if they count too")
    lines += [f"{what}: {value}" for what, value in (("set-up", choice.setup), ("gate", choice.gate)) if value]
    lines.append(f"agents installed: {', '.join(agents)}" if agents else
                 f"agents installed: none that garrison knows; `{INSTALL}` brings Claude, `garrison agents presets` "
                 "lists others")
    return lines


def next_steps(choice: Choice, result: TrialResult | None, pipeline: str | None) -> list[str]:
    """Return what the user types next, in lines. Pure."""
    if choice.gate is None:
        return ["next: set gate in garrison.toml to the command that tests this project"]
    agent = "" if choice.agent else " --agent NAME"
    if result is not None and result.failed == SETUP:
        return [f"next: correct setup in {PROJECT_FILE}, then try it: garrison init"]
    if result is not None and not result.passed:
        repair = f"garrison launch {pipeline} --no-gate{agent}" if pipeline else "mend that"
        return [f"a launch is refused until the gate passes: correct {PROJECT_FILE} or the tests, then: garrison init",
                f"or let an agent work until it is green: {repair}"]
    return [f'next: garrison run "say here what to do"{agent}',
            *([f"or:   set the goal in {pipeline}, then garrison launch {pipeline}{agent}"] if pipeline else [])]


def _try(runtime: Runtime, repo: Path, git: Git, choice: Choice, limit: float) -> TrialResult:
    """Try set-up and gate on the tip of the current branch, in the sandbox in which they will run."""
    base = git.current_branch()
    if base is None:
        raise Refused(explain_detached_head(repo))
    trees = trees_root(runtime.environ)
    path = runtime.environ.get("PATH", os.defpath)
    launch = Launch("", "init", str(repo), base, runtime.clock.utc(), str(trees), path=path,
                    sandbox=summarize_sandbox(runtime.home, set(), runtime.environ))
    for line in _missing_programs(repo, choice, path):
        print_message(line)
    with interruptible():
        result = try_gate(MergeQueue(runtime.home, repo, base, clock=runtime.clock), gate=choice.gate,
                          setup=choice.setup, setup_key=choice.setup_key, trees=trees,
                          environment=runtime.environment(launch, {}), limit=limit, progress=print_message)
    print_message(f"trial: {result.summary}")
    for line in result.tail:
        print_message(f"    {line}")
    return result


def _missing_programs(repo: Path, choice: Choice, path: str) -> list[str]:
    """Return a note for each program that set-up and gate call and that is not there before the set-up."""
    words = dict.fromkeys(word for line in (choice.setup, choice.gate) if line for word in command_words(line))
    return [f"note: {word} is not on the PATH" for word in words
            if "/" not in word and word not in ("cd", "echo", "test") and shutil.which(word, path=path) is None]


def write_project(repo: Path, choice: Choice) -> None:
    """Write garrison.toml."""
    settings = [(key, value) for key, value in asdict(choice).items() if value]
    lines = ["# How garrison tests this repository and who works on it; commit it, so that others have it too.",
             "[launch]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings)]
    if choice.gate is None:
        lines.append('# gate = "the command that tests this project"')
    (repo / PROJECT_FILE).unlink(missing_ok=True)
    write_new(repo / PROJECT_FILE, "\n".join([*lines, ""]))


def write_new(path: Path, text: str) -> None:
    """Write a file that must not be there yet: a link that an agent left is not followed."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _former_gate(repo: Path) -> str | None:
    """Return the gate of the garrison.toml that is about to be replaced; None if there is none that can be read."""
    try:
        return read_project(repo).gate if (repo / PROJECT_FILE).exists() else None
    except UsageError:
        return None


def _replace_first(repo: Path, former: str, choice: Choice) -> None:
    """Remove the first pipeline if it is as `init` wrote it; if a person changed it, say that it has the old gate."""
    text = untrusted.read_text(repo, FIRST, TEXT_LIMIT)
    if text in {fill(template, gate=former) for template in TEMPLATES if template.name in (UNTIL_GREEN, REVIEW)}:
        (repo / FIRST).unlink()
    elif former != choice.gate and quoted(former) in text:
        print_message(f"note: {FIRST} is kept as you changed it and still runs the former gate ({former}); change that "
                      "there")


def _write_first(repo: Path, choice: Choice, result: TrialResult | None) -> str | None:
    """Write the first pipeline, unless there is one or no gate; return its name."""
    if choice.gate is None or (repo / FIRST).exists():
        return None
    name = UNTIL_GREEN if result is not None and result.failed == GATE else REVIEW
    template = next(template for template in TEMPLATES if template.name == name)
    write_new(repo / FIRST, fill(template, gate=choice.gate))
    return FIRST
