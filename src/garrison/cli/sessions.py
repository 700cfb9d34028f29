"""`garrison session`: talk to a session whose flow is a graph, and inspect its state.

Answers go to stdout, everything else to stderr.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from garrison.cli.commands import Group
from garrison.cli.options import home_option, output_options
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.sandbox import sandbox_option
from garrison.directories import find_home
from garrison.errors import Refused
from garrison.records.budget import Allowance, Purse
from garrison.records.names import check_run
from garrison.values import asdict

if TYPE_CHECKING:
    from garrison.session.session import Initiative, Session

T = TypeVar("T")
turn_option = click.option("--turn-graph", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                           metavar="FILE", help="Graph for turns (default: the shipped turn.dot).")
workdir_option = click.option("--workdir", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
                              metavar="DIR", help="Directory in which its tools work, if its tier allows any "
                                                  "(default: the current one).")
heartbeat_option = click.option("--heartbeat-graph", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                                metavar="FILE", help="Graph for heartbeats (default: the shipped heartbeat.dot).")
_RENAMED = {"--tree": "--workdir"}
CHECKED_RUNS = 10
"""Latest runs that a heartbeat checks."""


def session_folder(home: Path, session: str) -> Path:
    """Return the folder of a session; UsageError for an invalid name."""
    return home / "sessions" / check_run(session)


@click.group(cls=Group)
def session() -> None:
    """Talk to sessions whose flow is a graph: one for messages, one for heartbeats."""


@session.command(examples=(
    ("garrison session start helper --tier trusted", "create a session; `send` talks to it"),
))
@click.argument("name")
@click.option("--agent-id", metavar="ID", help="Agent of the session (default: its name).")
@click.option("--tier", default="established", show_default=True, metavar="TIER",
              help="Trust tier (see session/trust.toml).")
@click.option("--goal", "goals", multiple=True, metavar="TEXT", help="Initial goal (repeatable).")
@home_option
def start(name: str, agent_id: str | None, tier: str, goals: tuple[str, ...], home: str | None) -> None:
    """Create the session NAME."""
    from garrison.records import atomic
    from garrison.session.state import SessionState, find_tier, read_tiers
    from garrison.session.store import write_state

    folder = session_folder(find_home(home), name)
    find_tier(tier, read_tiers())
    if (folder / "session.json").exists():
        raise Refused(f"session {name} exists already; `garrison session send {name} TEXT` talks to it")
    atomic.make_directory(folder)
    write_state(folder, SessionState(name, agent_id or name, tier, goals=[
        {"id": f"goal-{number}", "description": goal} for number, goal in enumerate(goals, 1)]))
    print_message(f"session {name} created; `garrison session send {name} TEXT` talks to it")


@session.command(renamed=_RENAMED, examples=(
    ('garrison session send helper "What is left to do?"', "one turn; the session remembers it"),
))
@click.argument("name")
@click.argument("text")
@turn_option
@workdir_option
@sandbox_option
@output_options
def send(name: str, text: str, turn_graph: Path | None, workdir: Path, as_json: bool, home: str | None) -> None:
    """Send TEXT to the session NAME and print its answer."""
    result = _use(find_home(home), name, lambda opened: opened.send(text), turn_graph=turn_graph, workdir=workdir)
    if as_json:
        print_json({"response": result.response, "tool_calls_made": result.tool_calls_made, "steps": result.steps,
                    "thinking": list(result.thinking)})
    else:
        click.echo(result.response)


@session.command()
@click.argument("name")
@click.option("--initiative", is_flag=True, help="Let it call its model; by default a heartbeat makes no model call.")
@heartbeat_option
@output_options
def heartbeat(name: str, initiative: bool, heartbeat_graph: Path | None, as_json: bool, home: str | None) -> None:
    """Run one heartbeat of the session NAME."""
    from garrison.session.session import Initiative

    result = _use(find_home(home), name, lambda opened: opened.heartbeat(), heartbeat_graph=heartbeat_graph,
                  initiative=Initiative(interval=0) if initiative else None)
    assert result is not None  # nothing else of this process works in it
    if as_json:
        print_json({"cognitive_mode": result.cognitive_mode, "actions": list(result.actions),
                    "model_calls": result.model_calls})
    else:
        print_message(f"{result.cognitive_mode}, {len(result.actions)} actions, {result.model_calls} model calls")


@session.command()
@click.argument("name")
@output_options
def show(name: str, as_json: bool, home: str | None) -> None:
    """Show the state of the session NAME."""
    from garrison.session.store import read_state

    state = read_state(session_folder(find_home(home), name))
    if as_json:
        print_json(asdict(state))
        return
    print_table(("FIELD", "VALUE"), [
        ("agent", state.agent_id), ("tier", state.trust_tier), ("turns", state.turn_count),
        ("heartbeats", state.heartbeat_count), ("mode", state.cognitive_mode), ("goals", len(state.goals)),
        ("messages", len(state.messages))])
    for message in state.messages[-6:]:
        print_message(f"{message['role']}: {str(message['content'])[:200]}")


@session.command("list")
@output_options
def list_command(as_json: bool, home: str | None) -> None:
    """List the sessions of this home."""
    from garrison.session import store

    rows = []
    for path in sorted((find_home(home) / "sessions").glob("*/session.json")):
        state, under_way = store.read(path.parent)
        rows.append({"session": path.parent.name, "agent": state.agent_id, "tier": state.trust_tier,
                     "turns": state.turn_count, "heartbeats": state.heartbeat_count,
                     "under_way": bool(under_way or store.read_earlier_run(path.parent))})
    if as_json:
        print_json(rows)
    else:
        print_table(("SESSION", "AGENT", "TIER", "TURNS", "HEARTBEATS", "UNFINISHED"), [
            (*[row[key] for key in ("session", "agent", "tier", "turns", "heartbeats")],
             "yes" if row["under_way"] else "") for row in rows], "no sessions")


@session.command(renamed=_RENAMED)
@click.argument("name")
@workdir_option
@sandbox_option
@home_option
def restore(name: str, workdir: Path, home: str | None) -> None:
    """Finish the turn in which the session's process died, as `send` also does."""
    async def count_turns(opened: Session) -> int:
        return opened.state.turn_count

    print_message(f"session {name} restored, {_use(find_home(home), name, count_turns, workdir=workdir)} turns")


def _use(home: Path, name: str, work: Callable[[Session], Coroutine[object, None, T]], *,
         turn_graph: Path | None = None, heartbeat_graph: Path | None = None, initiative: Initiative | None = None,
         workdir: Path | None = None) -> T:
    async def use() -> T:
        async with AsyncExitStack() as stack:
            return await work(await _open(stack, home, name, turn_graph, heartbeat_graph, initiative, workdir))

    return asyncio.run(use())


async def _open(stack: AsyncExitStack, home: Path, name: str, turn_graph: Path | None, heartbeat_graph: Path | None,
                initiative: Initiative | None, workdir: Path | None) -> Session:
    """Open a session with the home's Claude as its model, and tools in `workdir` as allowed by its trust tier."""
    from garrison.agents.graph.graph import claude, graph_settings
    from garrison.cli.pipeline_worktree import confined_commands
    from garrison.node.session_attempt import tools_of
    from garrison.session.adapters import Memory
    from garrison.session.claude import claude_adapters
    from garrison.session.session import Session
    from garrison.session.state import find_tier, read_tiers
    from garrison.session.store import read_state

    folder = session_folder(home, name)
    tier = find_tier(read_state(folder).trust_tier, read_tiers())
    settings, metadata = graph_settings(home)
    purse = Purse(home, "session", name, Allowance(task=settings.budget, home_day=settings.budget_day))
    commands = None
    if workdir is not None and any(tier.allows(tool) for tool in ("run", "log")):
        commands = stack.enter_context(confined_commands(workdir, home, folder))
    tools = tools_of(workdir, tier, commands) if workdir is not None else {}
    adapters = await stack.enter_async_context(claude_adapters(
        settings.model, metadata, tools, memory=Memory(folder / "memory.jsonl"),
        checks=lambda _: check_runs(home), connect=partial(claude, purse=purse)))
    purse.begin()
    opened = Session.restore(folder, adapters, initiative=initiative, on_event=_print_tool_call,
                             turn_graph=turn_graph.read_text() if turn_graph else None,
                             heartbeat_graph=heartbeat_graph.read_text() if heartbeat_graph else None)
    return await stack.enter_async_context(opened)


def check_runs(home: Path) -> dict[str, str]:
    """Return the activities and waits of the latest runs, for a session's heartbeats."""
    from garrison.views.run_view import RunReader

    reader = RunReader(home)
    views = reader.read_each(reader.runs()[-CHECKED_RUNS:])
    return {f"run {view.run_id}": "; ".join([
        str(view.status), *([view.reason] if view.reason else []),
        *([f"waits for your answer: {', '.join(view.questions)}"] if view.questions else [])]) for view in views}


def _print_tool_call(name: str, data: Mapping[str, object]) -> None:
    if name == "tool_dispatched":
        print_message(f"→ {data['tool']}{'' if data['allowed'] else ' (not allowed)'}")
