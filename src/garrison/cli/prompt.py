"""`garrison prompt`: print the prompts of a node's agent, or a section for an agent that acts as a layer.

garrison's runners and guardians are code and need no prompt. The section contains the commands with which an agent in
their place keeps the records correct.
"""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from string import Template

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import output_options, run_option
from garrison.cli.output import print_json
from garrison.cli.service import find_program
from garrison.directories import checkout, find_home, trees_root
from garrison.errors import UsageError
from garrison.records.names import check_name

ROLES = ("runner", "guardian")
_PROCESS_NEXT = """\
python3 -c "
import sys; sys.path.insert(0, '{scripts}')
from merge_queue import process_next
result = process_next('{repo}')
print(result)
sys.exit(0 if result['success'] else 1)
"\
"""
"""Code that prompts of the original's guardians run in a checkout."""


@click.command(cls=Command, examples=(
    ("garrison prompt add_tests", "all prompts of its latest attempt, or those that it would get now"),
    ("garrison prompt add_tests --attempt 1", "the same of its first attempt"),
    ("garrison prompt runner impl_auth --branch feature/auth", "for an agent that supervises one node"),
    ("garrison prompt guardian crew", "for an agent that leads a pipeline"),
))
@click.argument("node", metavar="NODE|ROLE", shell_complete=completion.nodes)
@click.argument("name", required=False)
@run_option
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Attempt of the node, by default the latest.")
@click.option("--validator", is_flag=True, help="Show the prompts of the attempt's validator.")
@click.option("--branch", metavar="BRANCH", help="Branch that a runner's node lands (default: the node's name).")
@click.option("--pipeline", metavar="NAME",
              help="Name of the guardian to which a runner sends signals (default: the registered one).")
@click.option("--repo-root", type=click.Path(path_type=Path), default=Path(), metavar="DIR",
              help="Repository (default: the current directory).")
@output_options
def prompt(node: str, name: str | None, run: str | None, attempt: int | None, branch: str | None,
           pipeline: str | None, repo_root: Path, home: str | None, *, validator: bool, as_json: bool) -> None:
    """Print the prompts of NODE's agent, message by message; if it has not started, those that it would get now.

    Sizes in tokens are estimated from the length. With ROLE (runner or guardian) and the NAME of a node or pipeline:
    print the hook and merge-queue section of a prompt for an agent that acts as one.
    """
    if name is not None:
        if node not in ROLES:
            raise UsageError(f"{node} is neither runner nor guardian; pass one of them with a name, or a node alone")
        click.echo(_section(node, name, branch, pipeline, repo_root, home), nl=False)
        return
    from garrison.processes.runtime import Runtime
    from garrison.system.terminal_text import clean_lines
    from garrison.views.prompts import read_prompts

    runtime = Runtime.real(find_home(home))
    found = read_prompts(runtime, resolve.run_of_node(runtime.store, node, run), node, attempt,
                         validator=validator)
    if as_json:
        print_json(found)
        return
    how = "was told" if found.sent else "has not started, and would get"
    who = "the validator of " if validator else ""
    click.echo(f"{who}attempt {found.attempt} of {node} in run {found.run} {how}:")
    for part in found.parts:
        click.echo(f"\n── {part.what} (about {part.tokens} tokens, by its length)\n")
        for line in clean_lines(part.text):
            click.echo(line)


def _section(role: str, name: str, branch: str | None, pipeline: str | None, repo_root: Path,
             home: str | None) -> str:
    from garrison.system.git import validate_repository

    text = resources.files("garrison.agents").joinpath(f"prompts/by_hand_{role}.md").read_text()
    repo = validate_repository(repo_root)
    commands = _script_commands(shlex.quote(str(repo)))
    guardian = f"guardian-{check_name(pipeline)}" if pipeline else "guardian"
    own = {"gate": _describe_gate(repo, commands["garrison"], home)} if role == "guardian" else \
        _describe_work(repo, branch or check_name(name), name)
    return Template(text).substitute(commands, name=check_name(name), repo=shlex.quote(str(repo)), guardian=guardian,
                                     **own)


def _describe_work(repo: Path, branch: str, name: str) -> dict[str, str]:
    """Return a runner's section on the branch: where it is checked out, or how to create a worktree for it."""
    from garrison.system.git import Git

    git, quoted = Git(repo), shlex.quote(branch)
    said = {"branch": quoted, "message": shlex.quote(f"Work on {name}")}
    place = next((each.path for each in git.worktrees() if each.branch == branch), None)
    if place is not None:
        return {**said, "worktree": shlex.quote(str(place)), "cleanup": "",
                "work": f"The branch {branch} is checked out in {place}; the orchestrator works there."}
    worktree, within = shlex.quote(str(trees_root() / "by-hand" / repo.name / name)), f"git -C {shlex.quote(str(repo))}"
    made = f"{worktree} {quoted}" if git.rev(f"refs/heads/{branch}") else f"-b {quoted} {worktree}"
    return {**said, "worktree": worktree, "cleanup": f"\n{within} worktree remove {worktree}",
            "work": f"The orchestrator works in its own worktree, on the branch {branch}:\n\n"
                    f"```bash\n{within} worktree add {made}\n```"}


def _describe_gate(repo: Path, garrison: str, home: str | None) -> str:
    """Return a guardian's section on the queue's gate: the recorded one, or how to record one."""
    from garrison.run.request import read_project

    queue = resolve.open_queue(repo, None, home)
    if queue.state.config is not None:
        return f"The queue of {queue.target} tests each merged tree: {queue.state.config.describe()}."
    project = read_project(repo)
    options = f"--gate {shlex.quote(project.gate)}" if project.gate else "--no-gate"
    if project.gate and project.setup:
        options += f" --setup {shlex.quote(project.setup)}"
    say = f"Record how the queue of {queue.target} tests each merged tree" + (
        ", as garrison.toml says" if project.gate else
        "; with `--gate 'COMMAND'` in place of `--no-gate` it does not land untested")
    return f"{say}:\n\n```bash\n{garrison} merge-queue config {options} --repo-root {shlex.quote(str(repo))}\n```"


def _script_commands(repo: str) -> dict[str, str]:
    """Return the commands of the section: scripts of the checkout, or equivalent commands of an installed garrison."""
    source = checkout()
    if source is None:
        program = shlex.quote(str(find_program()))
        return {"garrison": program, "identity_registry": f"{program} identity-registry",
                "hook_manager": f"{program} hook-manager", "signal_protocol": f"{program} signal-protocol",
                "process_next": f"{program} merge-queue process --repo-root {repo}"}
    scripts = shlex.quote(str(source / "scripts"))
    return {"garrison": f"python3 {scripts}/cli.py", "identity_registry": f"python3 {scripts}/identity_registry.py",
            "hook_manager": f"python3 {scripts}/hook_manager.py",
            "signal_protocol": f"python3 {scripts}/signal_protocol.py",
            "process_next": _PROCESS_NEXT.format(scripts=scripts, repo=repo)}
