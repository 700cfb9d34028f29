"""Demonstration with Claude sessions: four sessions change a small project; two are killed in the middle of a tool.

The real CLI works, and a script plays the model. No network is reachable: the demonstration runs itself again inside
`garrison.testing.isolation`, like the server that plays the model. With `live`, a real model answers instead; only then
is an API key looked for, and it is never read. A death counts only when the session was seen to continue: resumed by
its id, under a later incarnation of its orchestrator.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from garrison.agents.conversation.files import AttemptFiles
from garrison.cli.output import INTERRUPTED, print_table
from garrison.directories import checkout, find_home
from garrison.errors import Refused
from garrison.records.json_io import read_json, read_lines
from garrison.records.names import Key
from garrison_demo.report import (
    OWN_PROJECT,
    Rework,
    format_seconds,
    list_failed_nodes,
    list_rework,
    print_history,
    print_nodes,
)
from garrison_demo.sandbox import (
    DEMO,
    GARRISON,
    RUN,
    Interrupts,
    Sandbox,
    counted_interrupts,
    create_sandbox,
    demo_command,
    garrison_command,
    new_folder,
    remove_or_report,
    shell_path,
)

ISOLATION = (sys.executable, "-P", "-m", "garrison.testing.isolation")
MODEL_SERVER = (sys.executable, "-P", "-m", "garrison.testing.model_server")
FOLDER_VARIABLE = "GARRISON_DEMO_FOLDER"
"""Passes the folder to the demonstration inside the isolation."""
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
TIMEOUT = {False: 240.0, True: 1800.0}
"""Seconds after which the demonstration fails, by whether a real model answers."""
POLL = 0.02
VICTIMS = {"payees": "CLI", "account_tree": "orchestrator"}
"""Node → which of its processes is killed."""
KILL_DELAY = 0.5
"""Seconds that a tool has been running when its process is killed."""
REFUSED = "the validator claude refused it"
"""Start of the reason of an attempt whose work another session did not accept."""
ANSWER = "only noted: `check` says how many"
"""Answer to the question about dates that go back."""
OTHER_ANSWER = "Settle it as you think best, and say in your report how."
_SCRIPTED = """\
{repo} is a copy of examples/demo/ledger; four sessions of the Claude CLI work on it.
The CLI and its tools are real. The model is not: a script, examples/demo/claude_model.yaml, plays it, so the costs
below are made up too. No network is reachable, no key is used."""
_LIVE = """\
{repo} is a copy of examples/demo/ledger; four sessions of the Claude CLI work on it.
A real model answers; you pay for it, at most $5."""

# ----------------------------------------------------------------------------------------------------------- beginning


def run_claude_demo(*, live: bool, chaos: bool, keep: bool, terminal: str) -> int:
    """Run the demonstration; returns the exit code. Refused where nothing can be isolated, or a key is missing."""
    if live:
        return _run_live(chaos=chaos, keep=keep, terminal=terminal)
    if FOLDER_VARIABLE not in os.environ:
        return _run_isolated(chaos=chaos, keep=keep, terminal=terminal)
    with counted_interrupts() as interrupts:
        folder = Path(os.environ.pop(FOLDER_VARIABLE))
        with model_server(DEMO / "claude_model.yaml", folder / "requests.jsonl") as url:
            sandbox = create_sandbox(folder, interrupts, {"ANTHROPIC_BASE_URL": url})
            write_config(sandbox.runtime.home, {"set": {"CLAUDE_CODE_MAX_RETRIES": "1"}})
            return play(ClaudeSessions(sandbox, live=False), chaos=chaos, terminal=terminal, keep=keep)


def _run_isolated(*, chaos: bool, keep: bool, terminal: str) -> int:
    """Run this demonstration again in a network namespace with only the loopback device."""
    probe = subprocess.run([*ISOLATION, "--", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        raise Refused(f"the demonstration with the Claude CLI runs only without a network: {probe.stderr.strip()}")
    options = [*([] if chaos else ["--no-chaos"]), *(["--keep"] if keep else []), "--terminal", terminal]
    with counted_interrupts() as interrupts:
        folder, code = new_folder(), 1
        try:
            code = _wait(subprocess.Popen([
                *ISOLATION, "--folder", str(folder / "isolated"), "--env", f"{FOLDER_VARIABLE}={folder}", "--",
                *GARRISON, "demo", "--claude", *options], start_new_session=True), interrupts)
        finally:
            remove_or_report(folder, keep=keep or (code not in (0, INTERRUPTED) and not interrupts.count))
    return code


def _wait(child: subprocess.Popen[bytes], interrupts: Interrupts) -> int:
    """Wait for the child; in a session of its own, it gets each interrupt once, from here."""
    forwarded = 0
    while child.poll() is None:
        if interrupts.count > forwarded:
            forwarded += 1
            child.terminate()
        time.sleep(POLL)
    return child.returncode


def _run_live(*, chaos: bool, keep: bool, terminal: str) -> int:
    """Run with the user's own key, or the log-in in their garrison's home."""
    home = find_home()
    if not has_key(os.environ, home):
        raise Refused("--live asks a real model: set ANTHROPIC_API_KEY, or log in with `garrison login`")
    with counted_interrupts() as interrupts:
        folder, code = new_folder(), 1
        try:
            sandbox = create_sandbox(folder, interrupts)
            login = {} if os.environ.get("ANTHROPIC_API_KEY") else {"set": {"CLAUDE_CONFIG_DIR": str(home / "claude")}}
            write_config(sandbox.runtime.home, {"budget_run": 5.0, **login})
            code = play(ClaudeSessions(sandbox, live=True), chaos=chaos, terminal=terminal, keep=keep)
        finally:
            remove_or_report(folder, keep=keep or (code not in (0, INTERRUPTED) and not interrupts.count))
    return code


def has_key(environ: Mapping[str, str], home: Path) -> bool:
    """Return whether a real model could be asked: a key is set, or the home is logged in."""
    return any(environ.get(name) for name in KEYS) or (home / "claude" / ".credentials.json").exists()


def write_config(home: Path, settings: Mapping[str, Any]) -> None:
    """Write config.toml with settings of the claude agent; a mapping among them becomes a table."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    plain = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if not isinstance(value, dict)]
    tables = [line for name, table in settings.items() if isinstance(table, dict)
              for line in (f"[agents.claude.{name}]", *(f"{key} = {json.dumps(table[key])}" for key in table))]
    (home / "config.toml").write_text("\n".join(["[agents.claude]", *plain, *tables, ""]))


@contextmanager
def model_server(script: Path, log: Path) -> Iterator[str]:
    """Run the server that plays the model; yields its URL."""
    server = subprocess.Popen([*MODEL_SERVER, str(script), "--log", str(log)], stdout=subprocess.PIPE, text=True,
                              start_new_session=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        if not url:
            raise Refused(f"the server that plays the model did not start (exit code {server.wait()})")
        yield url
    finally:
        server.terminate()
        server.wait()


# ------------------------------------------------------------------------------------------------------------- the run


@dataclass
class ClaudeSessions:
    """Sessions of the sandbox's nodes, and the answers they got."""

    sandbox: Sandbox
    live: bool
    answered: dict[str, str] = field(default_factory=dict)
    """Question id → node."""

    def files(self, node: str) -> AttemptFiles:
        """Return the files of the node's sessions in its current attempt."""
        return AttemptFiles(self.sandbox.runtime.files(RUN).attempt(node, self.sandbox.state.nodes[node].attempt))

    def events(self, node: str) -> list[dict[str, Any]]:
        """Return the events of the node's sessions in its current attempt."""
        return read_lines(self.files(node).stream) if node in self.sandbox.state.nodes else []

    def answer_questions(self) -> None:
        """Answer open questions with the command that a user would use."""
        for node, question in list(self.sandbox.state.questions.items()):
            if question.id in self.answered:
                continue
            self.answered[question.id] = node
            text = ANSWER if node == "date_order" else OTHER_ANSWER
            click.secho(f'          garrison answer {node} "{text}"', fg="green")
            self.sandbox.command("answer", node, text)


@dataclass
class SessionKill:
    """One kill: the node, which process, when, under which incarnation, and the seconds until the session continued."""

    node: str
    process: str
    at: float
    incarnation: int
    back_after: float | None = None


@dataclass
class SessionKills:
    """Kills in the middle of a tool: carried out, and still missing."""

    sessions: ClaudeSessions
    enabled: bool
    kills: list[SessionKill] = field(default_factory=list)
    _running_since: dict[str, float] = field(default_factory=dict)
    """Id of a tool's use → when it was first seen running."""

    def missing(self) -> list[str]:
        """Return the nodes whose session was not yet killed and seen to continue."""
        continued = {kill.node for kill in self.kills if kill.back_after is not None}
        return [node for node in VICTIMS if self.enabled and node not in continued]

    def step(self) -> None:
        """Kill where a tool is running; notice sessions that continue."""
        now = time.monotonic()
        for node in self.missing():
            kill = next((kill for kill in self.kills if kill.node == node), None)
            events = self.sessions.events(node)
            if kill is not None:
                if is_resumed(events, kill.incarnation):
                    kill.back_after = now - kill.at
                    click.secho(f"          the session of {node} continues, resumed by its id, "
                                f"after {kill.back_after:.2f} s", fg="green")
            elif (tool := running_tool(events)) and now - self._running_since.setdefault(tool["id"], now) > KILL_DELAY:
                self._kill(node, str(tool["input"].get("command", "")), now)

    def _kill(self, node: str, command: str, now: float) -> None:
        found = self.sessions.sandbox.identity(Key("orchestrator", node, RUN))
        cli = read_json(self.sessions.files(node).process)
        if found is None or cli is None or found[0].pid is None or found[0].start_ticks is None:
            return
        identity, process = found[0], VICTIMS[node]
        pid, ticks = (cli["pid"], cli["ticks"]) if process == "CLI" else (found[0].pid, found[0].start_ticks)
        if self.sessions.sandbox.runtime.processes.send(pid, ticks, signal.SIGKILL):
            self.kills.append(SessionKill(node, process, now, identity.incarnation))
            click.secho(f"          kill -9 {pid}, the {process} of {node}, while a tool runs: {command}", fg="red")


def running_tool(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the Bash tool that is running according to a session's events, None if there is none."""
    finished = {event["id"] for event in events if event["kind"] == "tool_result"}
    last = next((event for event in reversed(events) if event["kind"] == "tool"), None)
    return last if last is not None and last["name"] == "Bash" and last["id"] not in finished else None


def is_resumed(events: Sequence[dict[str, Any]], incarnation: int) -> bool:
    """Return whether an incarnation after this one resumed the session."""
    return any(event["kind"] == "begin" and event["resumed"] and event["life"] > incarnation for event in events)


def play(sessions: ClaudeSessions, *, chaos: bool, terminal: str, keep: bool) -> int:
    """Launch the run, watch it to its end and report; returns 0 only if everything promised happened."""
    sandbox, kills = sessions.sandbox, SessionKills(sessions, enabled=chaos)
    click.echo((_LIVE if sessions.live else _SCRIPTED).format(repo=sandbox.repo))
    try:
        sandbox.launch(str(DEMO / "demo_claude.dot"), "--target-dir", str(sandbox.repo), "--run", RUN,
                       "--max-agents", "3", "--terminal", terminal)
        code = watch(sessions, kills)
    finally:
        for process in sandbox.close():
            click.echo(f"had to be killed: {process}", err=True)
    sandbox.refresh()
    print_report(sessions, kills)
    shortfalls = [] if code == INTERRUPTED else list_shortfalls(sessions, kills)
    for line in shortfalls:
        click.secho(f"NOT SHOWN: {line}", fg="red")
    code = code or int(bool(shortfalls))
    click.echo("\nWhat to try next")
    for command in next_steps(sessions, kept=keep or code not in (0, INTERRUPTED)):
        click.echo(f"  {command}")
    click.echo(OWN_PROJECT.format(garrison=garrison_command(elsewhere=True)))
    return code


def watch(sessions: ClaudeSessions, kills: SessionKills) -> int:
    """Kill and answer when it is time, until the launcher ends; returns its exit code."""
    sandbox = sessions.sandbox
    deadline = time.monotonic() + TIMEOUT[sessions.live]
    while time.monotonic() < deadline:
        if sandbox.interrupts.count:
            click.echo("stopping gracefully; Ctrl-C again to hurry", err=True)
            return INTERRUPTED
        sandbox.refresh()
        kills.step()
        sessions.answer_questions()
        code = sandbox.launcher.poll() if sandbox.launcher else 0
        if code is not None:
            return code
        time.sleep(POLL)
    click.echo(f"the demonstration did not end within {TIMEOUT[sessions.live]:.0f} s", err=True)
    return 1


# ---------------------------------------------------------------------------------------------------------- the report


def print_report(sessions: ClaudeSessions, kills: SessionKills) -> None:
    """Print what happened."""
    print_nodes(sessions.sandbox, list_rework(sessions.sandbox))
    if kills.kills:
        click.echo("\nKilled with -9, each while a tool ran")
        print_table(("node", "process", "resumed after"),
                    [(kill.node, kill.process, format_seconds(kill.back_after)) for kill in kills.kills])
    print_history(sessions.sandbox)
    click.echo(f"\nCosts (garrison cost {RUN})" + ("" if sessions.live else ", by the script's made-up tokens"))
    click.echo(sessions.sandbox.command("cost", RUN))


def list_shortfalls(sessions: ClaudeSessions, kills: SessionKills) -> list[str]:
    """Return a line for each promise that was not kept; a real model need not ask or err."""
    state = sessions.sandbox.state
    lines = list_failed_nodes(state)
    if sessions.live or not state.nodes:
        return lines
    return [*lines, *list_unseen(list_rework(sessions.sandbox), list(sessions.answered.values()), kills.missing())]


def list_unseen(rework: list[Rework], answered: list[str], missing: list[str]) -> list[str]:
    """Return a line for each thing that the script was to show and did not."""
    lines = [f"no session of {node} was killed and resumed" for node in missing]
    if not answered:
        lines.append("no agent asked a question")
    if not any(each.reason.startswith(REFUSED) for each in rework):
        lines.append("the validator refused nothing")
    return lines


def next_steps(sessions: ClaudeSessions, *, kept: bool) -> list[str]:
    """Return commands to try, each of which works as printed."""
    garrison = garrison_command()
    if not kept:
        source = checkout()
        steps = [f"{demo_command()} --claude --keep",
                 f"{garrison} pipeline show {shell_path(DEMO / 'demo_claude.dot')}"]
        return [*steps, shell_path(source / "examples/scripted_model/try")] if source else steps
    sandbox, folder = sessions.sandbox, shlex.quote(str(sessions.sandbox.folder))
    in_home = f"GARRISON_HOME={shlex.quote(str(sandbox.runtime.home))} {garrison}"
    if not sandbox.state.nodes:
        return [f"{demo_command()} --help", f"rm -r {folder}"]
    attempt = shlex.quote(str(sandbox.runtime.files(RUN).attempt("payees", 1) / "claude"))
    return [f"{in_home} status {RUN}", f"{in_home} logs payees", f"{in_home} cost {RUN} --by model",
            f"ls {attempt}", f"git -C {shlex.quote(str(sandbox.repo))} log --graph --oneline", f"rm -r {folder}"]
