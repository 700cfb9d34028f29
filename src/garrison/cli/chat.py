"""`garrison ask` and `garrison chat`: talk to the butler, who delegates to specialists that use garrison's commands.

The answer goes to stdout; the names of the specialists at work go to stderr.
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
from garrison.directories import find_home

if TYPE_CHECKING:
    from garrison.delegation.butler import AgentOrchestrator
    from garrison.delegation.models import ChatEvent

conversation_option = click.option("--conversation", "-c", metavar="ID", default="default", show_default=True,
                                   help="Conversation to continue; a new ID starts a new one.")
repo_option = click.option("--repo-root", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
                           help="Repository to search (default: the current directory's).")


@click.command(cls=Command, examples=(
    ('garrison ask "What needs me?"', "one question, one answer; the conversation is kept"),
    ('garrison ask --json "What died since yesterday?"', "every event as a line of JSON"),
    ('garrison ask --yes "Stop demo-1"', "agree in advance to changes of runs"),
))
@click.argument("message")
@conversation_option
@repo_option
@click.option("--json", "as_json", is_flag=True, help="Print every event as one JSON object per line.")
@click.option("--yes", is_flag=True, help="Agree at once to its proposals (without this: `garrison ask yes`).")
@home_option
def ask(message: str, conversation: str, repo_root: Path | None, as_json: bool, yes: bool, home: str | None) -> None:
    """Ask the butler a question about this garrison; exit code 1 if there is no answer.

    Changes of runs are only proposed, and done once you answer `yes`. `garrison cost` shows the cost of answers as
    @chat; `[chat]` in config.toml limits it.
    """
    from garrison.delegation.chat_service import open_chat

    place = find_home(home)

    async def ask_once() -> bool:
        async with open_chat(place, conversation, repo_root) as service:
            answered = await _print_answer(service, message, as_json=as_json)
            if answered and yes and service.proposals:
                return await _print_answer(service, "yes", as_json=as_json)
            return answered

    if not asyncio.run(ask_once()):
        sys.exit(1)


@click.command(cls=Command, examples=(
    ("garrison chat", "until Ctrl-D or `exit`"),
    ("garrison chat -c monday", "a separate conversation"),
))
@conversation_option
@repo_option
@home_option
def chat(conversation: str, repo_root: Path | None, home: str | None) -> None:
    """Chat with the butler, continuing the conversation."""
    from garrison.delegation.chat_service import open_chat

    place = find_home(home)

    async def chat_until_end() -> None:
        async with open_chat(place, conversation, repo_root) as service:
            turns = len(service.get_conversation_history()) // 2
            print_message(f"conversation {conversation}, {turns} turns so far; Ctrl-D ends it")
            while (line := await asyncio.to_thread(_read_line)) is not None:
                if line.strip() in ("exit", "quit"):
                    return
                if line.strip():
                    await _print_answer(service, line)

    asyncio.run(chat_until_end())


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


async def _print_answer(service: AgentOrchestrator, message: str, *, as_json: bool = False) -> bool:
    """Print a message's events; return whether the butler answered."""
    success = True
    async for event in service.stream(message):
        if event.type == "agent_complete" and event.agent == "butler":
            success = bool(event.success)
        if as_json:
            print(event.model_dump_json(by_alias=True, exclude_none=True), flush=True)
        else:
            _print_event(event)
    return success


def _print_event(event: ChatEvent) -> None:
    from garrison.system.terminal_text import clean_lines

    if event.type == "agent_delegate":
        print_message(f"→ {event.to}")
    elif event.type == "agent_complete" and event.agent != "butler":
        print_message(f"← {event.agent}{'' if event.success else ' failed'}")
    elif event.type == "text" and event.agent == "butler":
        print("\n".join(clean_lines(event.content or "")), end="", flush=True)
    elif event.type == "done":
        print(flush=True)
