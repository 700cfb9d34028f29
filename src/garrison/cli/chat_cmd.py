"""`garrison ask` and `garrison chat`: speak with the butler, who lets specialists work with garrison's own commands.

The rule of this room: what is answered goes to stdout, who works at it to stderr; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.helping import Explained
from garrison.cli.home_cmd import home_option
from garrison.cli.output import say
from garrison.errors import Refused, UsageError
from garrison.settings import find_home

if TYPE_CHECKING:
    from garrison.delegation.events import Event
    from garrison.delegation.orchestrator import AgentOrchestrator

COMMAND_SECONDS = 120.0
"""Seconds that a tool's command may take."""
conversation_option = click.option("--conversation", "-c", metavar="ID", default="default", show_default=True,
                                   help="Which conversation goes on; another ID begins another.")
repo_option = click.option("--repo-root", type=click.Path(exists=True, file_okay=False, path_type=Path),
                           help="The repository to search (default: that of the current directory).")


@click.command(cls=Explained, examples=(
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
    place = find_home(home)

    async def once() -> bool:
        async with _desk(place, conversation, repo_root) as desk:
            return await _answered(desk, message, as_json=as_json)

    if not asyncio.run(once()):
        sys.exit(1)


@click.command(cls=Explained, examples=(
    ("garrison chat", "speak until Ctrl-D or an empty `exit`"),
    ("garrison chat -c monday", "a conversation of its own"),
))
@conversation_option
@repo_option
@home_option
def chat(conversation: str, repo_root: Path | None, home: str | None) -> None:
    """Speak with the butler; the conversation goes on where it was."""
    place = find_home(home)

    async def talk() -> None:
        async with _desk(place, conversation, repo_root) as desk:
            kept = len(desk.get_conversation_history()) // 2
            say(f"conversation {conversation}, {kept} turns so far; Ctrl-D ends it")
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
    from garrison.system.screen import clean_lines

    if event.type == "agent_delegate":
        say(f"→ {event.to}")
    elif event.type == "agent_complete" and event.agent != "butler":
        say(f"← {event.agent}{'' if event.success else ' failed'}")
    elif event.type == "text" and event.agent == "butler":
        print("\n".join(clean_lines(event.content or "")), end="", flush=True)
    elif event.type == "done":
        print(flush=True)


def _desk(home: Path, conversation: str, repo_root: Path | None) -> AgentOrchestrator:
    """The desk of a home: its crew, its tools, what its person prefers."""
    from garrison.delegation.crew import read_crew
    from garrison.delegation.history import Conversation
    from garrison.delegation.orchestrator import AgentOrchestrator
    from garrison.delegation.tools import Desk

    model, metadata = claude_node(home)
    crew = read_crew(home)
    desk = Desk(home, _runner(home, repo_root))
    for one in crew.specialists.values():
        desk.of(one)  # a crew that wants what nobody has is refused before anybody is asked
    return AgentOrchestrator(crew, Conversation(home / "conversations", conversation), tools=desk.of,
                             preferences=desk.preferences.all, known=lambda: _names(home), metadata=metadata,
                             model=model)


def claude_node(home: Path) -> tuple[str | None, dict[str, Any]]:
    """(model, metadata) of a Claude node of an agent graph with the home's settings and log-in."""
    from garrison.agents.claude import program
    from garrison.agents.registry import ClaudeProfile, known
    from garrison.records import atomic

    profile = known("claude", home)
    if not isinstance(profile, ClaudeProfile):
        raise UsageError("the agent `claude` of config.toml is no Claude agent, and this needs one")
    atomic.make_directory(program.config_folder(home))
    metadata: dict[str, Any] = {"env": program.environment(home, profile.settings), "cwd": str(home)}
    if profile.settings.cli:
        metadata["cli"] = profile.settings.cli
    return profile.settings.model, metadata


def _names(home: Path) -> list[str]:
    """The names a message may mean: runs and their nodes."""
    from garrison.records.run import runs

    found = runs(home)
    return [*found, *(node.name for run in found for node in (home / "runs" / run / "nodes").glob("*"))]


def _runner(home: Path, repo_root: Path | None) -> Any:
    """Runs a tool's command: garrison's on this home, or git in the repository."""
    async def run(argv: Sequence[str]) -> str:
        if argv[0] == "git":
            words = ["git", "-C", str(_repository(repo_root)), *argv[1:]]
        else:
            words = [sys.executable, "-P", "-m", "garrison.cli.main", "--home", str(home), *argv]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Refused(f"`{argv[0]}` took longer than {COMMAND_SECONDS:.0f} s") from None
        if process.returncode and not (argv[0] == "git" and process.returncode == 1):
            raise Refused(err.decode(errors="replace").strip() or f"`{argv[0]}` ended with {process.returncode}")
        return (out.decode(errors="replace") + err.decode(errors="replace")).strip() or "(nothing)"
    return run


def _repository(given: Path | None) -> Path:
    from garrison.system.git.repository import top_of

    return top_of(given or Path.cwd())
