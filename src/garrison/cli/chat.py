"""`garrison ask` and `garrison chat`: speak with the butler, who lets specialists work with garrison's own commands.

The rule of this room: what is answered goes to stdout, who works at it to stderr; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_message
from garrison.config import find_home

if TYPE_CHECKING:
    from garrison.delegation.events import Event
    from garrison.delegation.orchestrator import AgentOrchestrator

conversation_option = click.option("--conversation", "-c", metavar="ID", default="default", show_default=True,
                                   help="Which conversation goes on; another ID begins another.")
repo_option = click.option("--repo-root", type=click.Path(exists=True, file_okay=False, path_type=Path),
                           help="The repository to search (default: that of the current directory).")


@click.command(cls=Command, examples=(
    ('garrison ask "What needs me?"', "one question, one answer; the conversation is kept"),
    ('garrison ask --json "What died since yesterday?"', "every event as a line of JSON"),
))
@click.argument("message")
@conversation_option
@repo_option
@click.option("--json", "as_json", is_flag=True, help="Every event as one JSON object a line.")
@home_option
def ask(message: str, conversation: str, repo_root: Path | None, as_json: bool, home: str | None) -> None:
    """Ask the butler something about this garrison; exit 1 if the answer failed."""
    from garrison.delegation.desk import desk_of

    place = find_home(home)

    async def once() -> bool:
        async with desk_of(place, conversation, repo_root) as desk:
            return await _answered(desk, message, as_json=as_json)

    if not asyncio.run(once()):
        sys.exit(1)


@click.command(cls=Command, examples=(
    ("garrison chat", "speak until Ctrl-D or an empty `exit`"),
    ("garrison chat -c monday", "a conversation of its own"),
))
@conversation_option
@repo_option
@home_option
def chat(conversation: str, repo_root: Path | None, home: str | None) -> None:
    """Speak with the butler; the conversation goes on where it was."""
    from garrison.delegation.desk import desk_of

    place = find_home(home)

    async def talk() -> None:
        async with desk_of(place, conversation, repo_root) as desk:
            kept = len(desk.get_conversation_history()) // 2
            print_message(f"conversation {conversation}, {kept} turns so far; Ctrl-D ends it")
            while (line := await asyncio.to_thread(_read)) is not None:
                if line.strip() in ("exit", "quit"):
                    return
                if line.strip():
                    await _answered(desk, line)

    asyncio.run(talk())


def _read() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


async def _answered(desk: AgentOrchestrator, message: str, *, as_json: bool = False) -> bool:
    """Show a message's events; whether the butler could answer."""
    good = True
    async for event in desk.stream(message):
        if event.type == "agent_complete" and event.agent == "butler":
            good = bool(event.success)
        if as_json:
            print(event.model_dump_json(by_alias=True, exclude_none=True), flush=True)
        else:
            _show(event)
    return good


def _show(event: Event) -> None:
    from garrison.system.terminal_text import clean_lines

    if event.type == "agent_delegate":
        print_message(f"→ {event.to}")
    elif event.type == "agent_complete" and event.agent != "butler":
        print_message(f"← {event.agent}{'' if event.success else ' failed'}")
    elif event.type == "text" and event.agent == "butler":
        print("\n".join(clean_lines(event.content or "")), end="", flush=True)
    elif event.type == "done":
        print(flush=True)
