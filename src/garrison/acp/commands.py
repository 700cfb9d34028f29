"""Slash commands of a panel: their list for an editor, and the parser of typed ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.errors import UsageError
from garrison.spelling import nearest
from garrison.values import Value

RUN_OPTIONS = ("agent", "budget", "gate", "acceptance")
"""Options that may precede the task of `/run`."""


class SlashCommand(Value):
    """A command in an editor's list."""

    about: str
    hint: str = ""
    """Text that follows the command; '' if it takes none."""


COMMANDS: Mapping[str, SlashCommand] = {
    "run": SlashCommand("Start a run of a task.", "[--agent NAME] [--budget USD] TASK"),
    "status": SlashCommand("Show a run, and repeat its open questions.", "[RUN]"),
    "follow": SlashCommand("Wait until a run needs you or is over.", "[RUN]"),
    "why": SlashCommand("Explain the state of a run or a node.", "[NODE or RUN]"),
    "diff": SlashCommand("Show the work of a node.", "NODE"),
    "tell": SlashCommand("Send a message to a node's agent.", "NODE TEXT"),
    "answer": SlashCommand("Answer the question of a node.", "NODE TEXT"),
    "reject": SlashCommand("Send back work that waits for approval.", "NODE REASON"),
    "retry": SlashCommand("Retry a failed node.", "NODE"),
    "stop": SlashCommand("Stop a run; its work is kept.", "[RUN]"),
    "resume": SlashCommand("Resume a stopped run.", "[RUN]"),
}


class TypedCommand(Value):
    """A typed slash command."""

    name: str
    rest: str
    """The text after it."""

    def two(self) -> tuple[str, str]:
        """Return (node, text); UsageError if one is missing."""
        first, rest = [*self.rest.split(None, 1), "", ""][:2]
        if not rest:
            raise self.usage()
        return first, rest

    def one(self) -> str:
        """Return its only word; UsageError if there is none, or more."""
        if len(self.rest.split()) != 1:
            raise self.usage()
        return self.rest

    def usage(self) -> UsageError:
        """Return the error with its usage."""
        return UsageError(f"type /{self.name} {COMMANDS[self.name].hint}")


def read(text: str) -> TypedCommand | None:
    """Return the slash command in a message, None if there is none; UsageError for an unknown one.

    A path such as `/etc/hosts is wrong` is not a command.
    """
    first, rest = [*text.strip().split(None, 1), "", ""][:2]
    if not first.startswith("/") or "/" in first[1:] or "." in first:
        return None
    name = first[1:]
    if name not in COMMANDS:
        guess = nearest(name, COMMANDS)
        raise UsageError(f"there is no command {first}{f'; did you mean /{guess}?' if guess else ''}; "
                         f"there are /{', /'.join(COMMANDS)}")
    return TypedCommand(name, rest.strip())


def read_run(rest: str) -> dict[str, str]:
    """Parse the rest of `/run`: `task` and the options before it; UsageError for an unknown option or no task."""
    given = dict[str, str]()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, is_joined, value = word[2:].partition("=")
        if name not in RUN_OPTIONS:
            raise UsageError(f"/run has no {word}; it has --{', --'.join(RUN_OPTIONS)}; `garrison run` has more")
        if not is_joined:
            value, rest = _first_word(rest)
        given[name], rest = value, rest.strip()
    if not rest:
        raise UsageError(f"type /run {COMMANDS['run'].hint}")
    return {"task": rest, **given}


def _first_word(text: str) -> tuple[str, str]:
    """Return the first word of a text, which may be quoted, and the rest."""
    found = _WORD.match(text.lstrip())
    return (next(filter(None, found.groups()), ""), text.lstrip()[found.end():]) if found is not None else ("", "")


_WORD = re.compile(r"\"([^\"]*)\"|'([^']*)'|(\S+)")
