"""Terminal session of a node's agent: its place, and whether it accepts input."""

from __future__ import annotations

from garrison.agents import registry
from garrison.errors import NotFound, RecordError, Refused
from garrison.records import run as run_records
from garrison.records.failover import present_agent, read_failovers
from garrison.records.identity import KEYBOARD, Identity
from garrison.records.names import Key
from garrison.records.record import from_data
from garrison.records.run import Launch, RunFiles, Task
from garrison.records.store import Store
from garrison.supervise.observer import Observer
from garrison.system.clock import SystemClock
from garrison.system.process_control import RealProcesses
from garrison.system.terminal import Terminal, TerminalSession
from garrison.system.terminal_choice import choose_terminal
from garrison.values import Value


class AgentSession(Value):
    """Living session of an orchestrator."""

    key: Key
    attempt: int
    incarnation: int
    terminal: Terminal
    session: TerminalSession
    read_only: str
    """Why it ignores the keyboard; '' if its program reads it."""

    @property
    def title(self) -> str:
        return f"run {self.key.run} · {self.key.name} · attempt {self.attempt} · incarnation {self.incarnation}"


def open_session(store: Store, key: Key) -> AgentSession:
    """Return the session of an orchestrator.

    Raises:
        NotFound: there is no session yet.
        Refused: the session has ended, or the agent is a plain process; the message names its log.
    """
    identity = store.read(Identity, key)
    logs_hint = f"`garrison logs {key.name} --run {key.run}` shows its output"
    if identity is None or not identity.tmux:
        raise NotFound(f"{key.full} has no session yet; {logs_hint}")
    session = from_data(TerminalSession, identity.tmux)
    launch = run_records.load(Launch, RunFiles(store.home, key.run).launch)
    terminal, _ = choose_terminal(session.kind or (launch.terminal if launch else "auto"), store.home)
    if not _is_living(store, identity) or not terminal.is_alive(session):
        raise Refused(f"{key.full} is {identity.status}, its session has ended; {logs_hint}")
    if terminal.kind == "process":
        raise Refused(f"{key.full} is a plain process and has no session to watch; "
                      f"`garrison logs {key.name} --run {key.run} -f` follows its output")
    read_only = "" if identity.metadata.get(KEYBOARD) else (
        why_no_keyboard(store, identity) or "its program has not started yet")
    return AgentSession(key, identity.attempt, identity.incarnation, terminal, session,
                        read_only)


def why_no_keyboard(store: Store, identity: Identity) -> str:
    """Return why an agent ignores the keyboard, '' if its profile gives it a terminal."""
    attempt = identity.attempt
    folder = RunFiles(store.home, identity.run_id).attempt(identity.name, attempt)
    task = run_records.load(Task, folder / "task.json")
    failovers = read_failovers(folder)
    agent = present_agent(task.agent if task is not None else "command", failovers)
    return registry.model_profile(agent, store.home).why_no_keyboard(agent, identity.name)


def _is_living(store: Store, identity: Identity) -> bool:
    try:
        return Observer(store, RealProcesses(), SystemClock()).judge(identity).living
    except RecordError:
        return False
