"""`garrison session`: speak with a session whose flow is a graph, and look at what it keeps.

The rule of this room: answers go to stdout, everything else to stderr; nothing is decided here.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.config import find_home
from garrison.errors import Refused
from garrison.records.names import check_run

if TYPE_CHECKING:
    from garrison.session.session import Session

turn_option = click.option("--turn-graph", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                           help="Another graph for turns (default: the shipped turn.dot).")
tree_option = click.option("--tree", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
                           help="Where its tools work, as far as its tier allows any (default: the current directory).")
heartbeat_option = click.option("--heartbeat-graph", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                                help="Another graph for heartbeats (default: the shipped heartbeat.dot).")


def folder_of(home: Path, session: str) -> Path:
    """Where a session is kept; UsageError for what cannot name one."""
    return home / "sessions" / check_run(session)


@click.group()
def session() -> None:
    """Sessions whose flow is a graph: one for a message, one for their own initiative."""


@session.command(cls=Command, examples=(
    ("garrison session start helper --tier trusted", "begin a session; `send` speaks with it"),
))
@click.argument("name")
@click.option("--agent-id", help="Whose session it is (default: its name).")
@click.option("--tier", default="established", show_default=True, help="The trust tier (session/trust.toml).")
@home_option
def start(name: str, agent_id: str | None, tier: str, home: str | None) -> None:
    """Begin the session NAME."""
    from garrison.records import atomic
    from garrison.session.session import write_state
    from garrison.session.state import SessionState
    from garrison.session.trust import read_tiers, tier_of

    folder = folder_of(find_home(home), name)
    tier_of(tier, read_tiers())
    if (folder / "session.json").exists():
        raise Refused(f"session {name} is there already; `garrison session send {name} TEXT` speaks with it")
    atomic.make_directory(folder)
    write_state(folder, SessionState(name, agent_id or name, tier))
    print_message(f"session {name} is begun; `garrison session send {name} TEXT` speaks with it")


@session.command(cls=Command, examples=(
    ('garrison session send helper "What is left to do?"', "one turn; the session remembers it"),
))
@click.argument("name")
@click.argument("text")
@turn_option
@tree_option
@json_option
@home_option
def send(name: str, text: str, turn_graph: Path | None, tree: Path, as_json: bool, home: str | None) -> None:
    """Say TEXT to the session NAME and print its answer."""
    async def once() -> Any:
        async with AsyncExitStack() as stack:
            found = await _opened(stack, find_home(home), name, turn=turn_graph, tree=tree)
            return await found.send(text)

    result = asyncio.run(once())
    if as_json:
        print_json({"response": result.response, "tool_calls_made": result.tool_calls_made, "steps": result.steps,
                   "thinking": list(result.thinking)})
    else:
        click.echo(result.response)


@session.command()
@click.argument("name")
@click.option("--initiative", is_flag=True, help="Let it ask its model; without, a heartbeat asks nobody.")
@heartbeat_option
@json_option
@home_option
def heartbeat(name: str, initiative: bool, heartbeat_graph: Path | None, as_json: bool, home: str | None) -> None:
    """Let the session NAME have one heartbeat."""
    from garrison.session.session import Initiative

    async def once() -> Any:
        async with AsyncExitStack() as stack:
            own = Initiative(interval=0) if initiative else None
            found = await _opened(stack, find_home(home), name, heartbeat=heartbeat_graph, initiative=own)
            return await found.heartbeat()

    result = asyncio.run(once())
    told = {"cognitive_mode": result.cognitive_mode, "actions": list(result.actions),
            "model_calls": result.model_calls}
    if as_json:
        print_json(told)
    else:
        print_message(f"{result.cognitive_mode}, {len(result.actions)} actions, {result.model_calls} model calls")


@session.command()
@click.argument("name")
@json_option
@home_option
def show(name: str, as_json: bool, home: str | None) -> None:
    """Show what the session NAME keeps."""
    from garrison.session.session import read_state

    state = read_state(folder_of(find_home(home), name))
    if as_json:
        print_json(state.to_data())
        return
    print_table(("FIELD", "VALUE"), [
        ("agent", state.agent_id), ("tier", state.trust_tier), ("turns", state.turn_count),
        ("heartbeats", state.heartbeat_count), ("mode", state.cognitive_mode), ("goals", len(state.goals)),
        ("messages", len(state.messages))])
    for message in state.messages[-6:]:
        print_message(f"{message['role']}: {str(message['content'])[:200]}")


@session.command("list")
@json_option
@home_option
def list_command(as_json: bool, home: str | None) -> None:
    """List the sessions of this home."""
    from garrison.session.session import read_state

    rows = []
    for path in sorted((find_home(home) / "sessions").glob("*/session.json")):
        state = read_state(path.parent)
        rows.append({"session": path.parent.name, "agent": state.agent_id, "tier": state.trust_tier,
                     "turns": state.turn_count, "heartbeats": state.heartbeat_count,
                     "under_way": (path.parent / "under_way.json").exists()})
    if as_json:
        print_json(rows)
    else:
        print_table(("SESSION", "AGENT", "TIER", "TURNS", "HEARTBEATS", "UNFINISHED"), [
            (*[row[key] for key in ("session", "agent", "tier", "turns", "heartbeats")],
             "yes" if row["under_way"] else "") for row in rows], "no session is kept here")


@session.command()
@click.argument("name")
@tree_option
@home_option
def restore(name: str, tree: Path, home: str | None) -> None:
    """Finish the run that was under way when the session's process died; `send` does so too."""
    async def once() -> int:
        async with AsyncExitStack() as stack:
            return (await _opened(stack, find_home(home), name, tree=tree)).state.turn_count

    print_message(f"session {name} is whole, after {asyncio.run(once())} turns")


async def _opened(stack: AsyncExitStack, home: Path, name: str, *, turn: Path | None = None,
                  heartbeat: Path | None = None, initiative: Any = None, tree: Path | None = None) -> Session:
    """The session with the profile `claude`: the home's Claude as its model, memory in its own state.

    Its tools work in `tree`, as far as its trust tier has any.
    """
    from garrison.delegation.desk import claude_node
    from garrison.processes.orchestrator.session_attempt import tools_of
    from garrison.session.claude import claude_adapters
    from garrison.session.session import Session, read_state
    from garrison.session.trust import read_tiers, tier_of

    tier = tier_of(read_state(folder_of(home, name)).trust_tier, read_tiers())
    model, metadata = claude_node(home)
    tools = tools_of(tree, tier) if tree is not None else {}
    adapters = await stack.enter_async_context(claude_adapters(model, metadata, tools))
    found = Session.restore(folder_of(home, name), adapters, initiative=initiative, on_event=_told,
                            turn_graph=turn.read_text() if turn else None,
                            heartbeat_graph=heartbeat.read_text() if heartbeat else None)
    return await stack.enter_async_context(found)


def _told(name: str, data: Any) -> None:
    """Say which tools the model had called."""
    if name == "tool_dispatched":
        print_message(f"→ {data['tool']}{'' if data['allowed'] else ' (not allowed)'}")
