"""`garrison takeover`: work in the session of a node's agent; the agent waits."""

from __future__ import annotations

import shlex
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import click

from garrison.agents import registry
from garrison.agents.acp.profile import AcpProfile
from garrison.agents.acp.settings import SESSION, AcpSettings
from garrison.agents.base import Assignment
from garrison.agents.claude import cli_process
from garrison.agents.claude import takeover as session
from garrison.agents.claude.profile import ClaudeProfile
from garrison.agents.claude.settings import ClaudeSettings
from garrison.agents.command import CommandAgent
from garrison.agents.command_profile import CommandProfile
from garrison.agents.conversation import holder, policy, questions
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.variables import expand
from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.options import node_options
from garrison.cli.output import print_message
from garrison.directories import find_home
from garrison.ends import End, EndKind
from garrison.errors import NotFound, Refused
from garrison.node.places import git_variables, node_place, open_network
from garrison.node.worktree import lend_worktree
from garrison.processes.runtime import Runtime
from garrison.processes.spawn import worktree_environment
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.failover import present_agent, read_failovers
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, Task
from garrison.sandbox.place import Role
from garrison.system.git import Git
from garrison.system.processes import MARKER
from garrison.values import replace


@click.command(cls=Command, examples=(
    ("garrison takeover add_tests", "its session is yours; when you leave (/exit), the agent continues"),
))
@click.argument("node", shell_complete=completion.nodes)
@node_options
def takeover(node: str, run: str | None, home: str | None) -> int:
    """Take over the session of NODE's agent, with the interactive CLI of Claude in the node's worktree, or with the
    program named in the profile of an ACP agent.

    The agent's turn is interrupted, and it is suspended while you are there. When you leave, it continues in the
    session and is informed that you took over. You have the CLI's own tools, without report_result.

    For a node that works as a session (`session=true`), your CLI gets its conversation as text. The agent does not see
    what you say there, but your changes stay in its worktree. It repeats the interrupted step.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"takeover needs a terminal; `garrison answer {node} TEXT` answers the agent's question")
    runtime = Runtime.real(find_home(home))
    key = Key("orchestrator", node, resolve.run_of_node(runtime.store, node, run))
    task, worktree = _task_and_worktree(runtime, key)
    if task.hosts:
        refuse_on_host(runtime, key, task)
    failovers = read_failovers(runtime.files(key.run).attempt(node, task.attempt))
    task = replace(task, agent=present_agent(task.agent, failovers))
    if isinstance(acp := registry.find_profile(task.agent, runtime.home), AcpProfile):
        return _take_over_acp(runtime, key, task, worktree, acp.settings, len(failovers))
    settings, beside = _claude_settings(runtime, task)
    files = AttemptFiles(runtime.files(key.run).attempt(node, task.attempt))
    (holder.conversation_of if beside else holder.session_of)(node, files)
    lock = files.garrison_session / "session.lock" if beside else files.lock
    launch = runtime.launch(key.run)
    lent = lend_worktree(Git(Path(launch.repo), home=runtime.home), worktree, key.run, node, task.attempt)
    with _terminal_restored(), holder.taken_over(node, files, runtime.clock.utc(),
                                                  lambda: _print_pause(runtime, key), lock), lent:
        environment = _environment(runtime, launch, task, worktree, settings)
        begins = worktree / task.subfolder
        if beside:
            code = session.run_beside(node, files, settings, environment, begins)
        else:
            config = cli_process.config_folder(runtime.home)
            code = session.resume_cli(node, files, config, settings, environment, begins)
    return _print_end(runtime, key, code)


def _take_over_acp(runtime: Runtime, key: Key, task: Task, worktree: Path, settings: AcpSettings, turn: int) -> int:
    """Run the program of an ACP agent's profile in the agent's place, on its session; `turn` is the agent's index."""
    node, launch = key.name, runtime.launch(key.run)
    opener_of(node, task.agent, settings)
    files = AttemptFiles(runtime.files(key.run).attempt(node, task.attempt))
    holder.session_of(node, files)
    home_of = task.attempt - 1 if (record := files.read_session()) and record.mends else 0
    git = Git(Path(launch.repo), home=runtime.home)
    with _terminal_restored(), holder.taken_over(node, files, runtime.clock.utc(),
                                                  lambda: _print_pause(runtime, key), files.lock):
        folder = atomic.make_directory(files.attempt / "takeover")
        outside = {**worktree_environment(runtime, launch, task, worktree, ""), **git.author(worktree),
                   **git_variables(runtime, git, worktree, task.agent)}
        environment = {name: value for name, value in outside.items() if name != MARKER}
        assignment = Assignment(task, worktree, folder, environment)
        atomic.make_directory(assignment.exchange)
        place = node_place(runtime, launch, task, worktree, Role.AGENT, agent=task.agent, turn=turn,
                           mounts=assignment.mounts(), home_of=home_of)
        with closing(open_network(runtime, task, Role.AGENT, folder, environment, agent=task.agent,
                                  place=place)) as network:
            assignment = replace(assignment, environment=network.apply(environment),
                                 network_variables=network.names, place=network.open_in(place))
            code = run_program(node, task.agent, files, settings, assignment, network.keep)
    return _print_end(runtime, key, code)


def _print_end(runtime: Runtime, key: Key, code: int) -> int:
    when = "" if resolve.is_living(runtime.store, key) else f" when its run does: `garrison resume {key.run}`"
    print_message(f"{key.name} continues{when}" + (f"; the CLI ended with exit code {code}" if code else ""))
    return 1 if code else 0


def _task_and_worktree(runtime: Runtime, key: Key) -> tuple[Task, Path]:
    identity = runtime.store.read(Identity, key)
    if identity is None or not identity.worktree:
        raise NotFound(f"{key.name} of run {key.run} has not started; `garrison status {key.run}` shows what it does")
    task = run_records.load(Task, runtime.files(key.run).attempt(key.name, identity.attempt) / "task.json")
    worktree = Path(identity.worktree)
    if task is None or not worktree.is_dir():
        raise Refused(f"{key.name} of run {key.run} no longer has a worktree; there is nothing to take over")
    return task, worktree


def _claude_settings(runtime: Runtime, task: Task) -> tuple[ClaudeSettings, bool]:
    """Return the settings of the node's Claude, and whether it works in a garrison session."""
    beside = registry.session_options(task.agent, task.node, task.attributes, runtime.home) is not None
    profile = registry.model_profile(task.agent, runtime.home)
    if not isinstance(profile, ClaudeProfile):
        raise Refused(f"the agent of {task.node} is {task.agent}, which has no session to take over; "
                      f"`garrison attach {task.node} --write` types into its terminal")
    return profile.settings.for_node(task.node, task.attributes), beside


def _environment(runtime: Runtime, launch: Launch, task: Task, worktree: Path,
                 settings: ClaudeSettings) -> Mapping[str, str]:
    """Return the agent's environment without the marker of its incarnation, with which processes are killed."""
    agents = {**worktree_environment(runtime, launch, task, worktree, ""),
              **Git(Path(launch.repo), home=runtime.home).author(worktree),
              **cli_process.cli_environment(settings, runtime.home)}
    return {name: value for name, value in agents.items() if name != "GARRISON_LIFE"}


def _print_pause(runtime: Runtime, key: Key) -> None:
    if resolve.is_living(runtime.store, key):
        print_message(f"{key.name} is paused; it waits while you are in its session")


def refuse_on_host(runtime: Runtime, key: Key, task: Task) -> None:
    """Refuse to take over a session on a host, naming the command to run there."""
    from garrison.views.remote import on_host  # few nodes are on a host

    found = on_host(runtime.home, runtime.files(key.run).attempt(key.name, task.attempt), key.name)
    if found is None:
        raise Refused(f"{key.name} waits for a host; `garrison status {key.run}` shows it")
    access, command, state = found
    words = shlex.join([*command, "takeover", key.name, "--run", state.host_run])
    where = f"ssh -t {access.ssh} {shlex.quote(words)}" if access.ssh else words
    raise Refused(f"{key.name} is on {state.host}; take it over there: {where}")


@contextmanager
def _terminal_restored() -> Iterator[None]:
    """Leave Ctrl-C to the CLI while it runs, and restore the terminal's mode, which a killed CLI does not."""
    mode = termios.tcgetattr(sys.stdin)
    # a handler instead of SIG_IGN: the CLI would inherit an ignored signal
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)


# ---- program takeover ------------------------------------------------------------------------------------------------

# Takeover of an ACP agent's session by the user: the program in its profile opens the session in the agent's sandbox,
# since only there the agent's session data exists, which is not trusted outside.
#
# The program has its own terminal in the sandbox (`system.pseudo_terminal`); this process forwards the keys.


_POLL = 0.1
"""Seconds between two polls of the program."""


def opener_of(node: str, agent: str, settings: AcpSettings) -> tuple[str, ...]:
    """Return the command that opens a session of an agent; Refused if its profile has none."""
    if not settings.takeover:
        raise Refused(f"agent {agent} of {node} has no program that opens its session: [agents.{agent}] has no "
                      f"takeover; `garrison tell {node} TEXT` sends the session a message")
    return settings.takeover


def run_program(node: str, agent: str, files: AttemptFiles, settings: AcpSettings, assignment: Assignment,
                keep: Callable[[], object]) -> int:
    """Run the program on the suspended session to its end; return its exit code.

    Args:
        assignment: place and environment of the agent's program, with a separate folder.
        keep: called regularly while it runs, to serve its network.
    """
    session_id = holder.session_of(node, files)  # it may have reported while it was being suspended
    holder.end_orphan(files)
    words = fill_session(settings.takeover, session_id, assignment.environment, f"[agents.{agent}]: takeover")
    profile = CommandProfile(agent, words, set=settings.set, tty=True)
    files.add_ending(ConnectionEnd(policy.PERSON, time.time(), "the user took the session over"))
    work = CommandAgent(profile).run(replace(assignment, lends_terminal=True), time.monotonic())
    holder.record_process(files, (work.process() or (0, 0))[0], 0)
    try:
        while (outcome := work.poll(time.monotonic())) is None:
            keep()
            time.sleep(_POLL)
    finally:
        questions.settle(files, "The user took over the session; their messages are above.")
    if End(outcome.exit_code).kind is EndKind.NOT_RUN:
        raise Refused(f"{words[0]} cannot be run in the sandbox of agent {agent}: it is missing or not visible there; "
                      f"correct takeover or read of [agents.{agent}]")
    return outcome.exit_code or 0


def fill_session(words: tuple[str, ...], session: str, env: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the command of a takeover with session id and variables filled in. Pure."""
    return tuple(expand(word, env, where).replace(SESSION, session) for word in words)
