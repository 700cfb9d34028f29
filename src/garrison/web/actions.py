"""Actions of the page: each runs one of garrison's own commands and shows its output.

Pure tables map an action to the words of its command. The command runs as on a terminal, in its own process, so
that the page can do nothing that the terminal cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from garrison.errors import Refused, UsageError
from garrison.launch.own_command import failure_of, last_message, program
from garrison.lessons.rule import ShownLesson
from garrison.records.names import check_node
from garrison.records.record import from_data
from garrison.system.command import run_to_end
from garrison.values import Value
from garrison.views.comments import MAX_COMMENTS

SECONDS, GATE_SECONDS = 120.0, 3600.0
"""Time limit of a command, and of one that may run a gate."""
TEXT = 8000
"""Longest text, which becomes an argument of a command."""
_ENTRY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}\Z")

T = TypeVar("T")
RUN: Mapping[str, Callable[[str], list[str]]] = {
    "stop": lambda run: ["stop", run],
    "resume": lambda run: ["resume", run, "--detach", "--json"],
    "again": lambda run: ["resume", run, "--detach", "--json"],
    "sync": lambda run: ["pr", "sync", run],
    "reopen": lambda run: ["pr", "open", "--again", run],
}
# `--` and `--reason=`: text of the user may start with a dash, and is never taken for an option.
NODE: Mapping[str, Callable[[str, str, str], list[str]]] = {
    "respawn": lambda run, node, text: ["agents", "respawn", "--run", run, "--", node],
    "retry": lambda run, node, text: ["agents", "retry", "--run", run, "--", node],
    "park": lambda run, node, text: ["agents", "park", "--run", run, f"--reason={text}", "--", node],
    "unpark": lambda run, node, text: ["agents", "unpark", "--run", run, "--", node],
    "cancel": lambda run, node, text: ["agents", "cancel", "--run", run, f"--reason={text}", "--", node],
    "answer": lambda run, node, text: ["answer", "--run", run, "--", node, text],
    "tell": lambda run, node, text: ["tell", "--run", run, "--", node, text],
    "preview": lambda run, node, text: ["preview", "--background", "--run", run, "--", node,
                                        *re.findall(r"\d{1,5}", text)[:1]],
}
ENTRY: Mapping[str, Sequence[str]] = {
    "hold": ("merge-queue", "hold"), "unhold": ("merge-queue", "release"), "cancel": ("merge-queue", "cancel"),
    "retry": ("merge-queue", "retry")}
SCHEDULE: Mapping[str, Sequence[str]] = {
    "run-now": ("schedule", "run-now"), "pause": ("schedule", "pause"), "unpause": ("schedule", "unpause")}
LESSON: Mapping[str, Sequence[str]] = {
    "keep-in-AGENTS.md": ("lessons", "keep", "--to=AGENTS.md"),
    "keep-in-CLAUDE.md": ("lessons", "keep", "--to=CLAUDE.md"),
    "keep-private": ("lessons", "keep", "--private"), "drop": ("lessons", "drop")}
QUEUE: Mapping[str, Sequence[str]] = {"pause": ("merge-queue", "pause"), "resume": ("merge-queue", "unpause")}
"""Action → the words of its command."""


def run_command_words(run: str, body: Mapping[str, object]) -> list[str]:
    """Return the command of a run's action; UsageError for an unknown one.

    `again` retries all failed nodes, or those that `nodes` names.
    """
    words = _choose(RUN, body)(run)
    if body.get("action") != "again":
        return words
    nodes = body.get("nodes", [])
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise UsageError("nodes must be a list of node names")
    return [*words, *(f"--retry={check_node(node)}" for node in nodes)] if nodes else [*words, "--retry-failed"]


def node_command_words(run: str, node: str, body: Mapping[str, object]) -> list[str]:
    """Return the command of a node's action (`text` is required to answer and to tell, allowed with parking)."""
    text = text_of(body, "text", required=body.get("action") in ("answer", "tell"))
    return _choose(NODE, body)(run, node, text)


def answer_command_words(run: str, node: str, body: Mapping[str, object]) -> list[str]:
    """Return the command that answers a question: with the label of a choice, or in words."""
    text = text_of(body, "choice", required=False) or text_of(body, "text", required=True)
    confirmed = ["--yes"] if body.get("confirmed") is True else []
    return ["answer", "--run", run, *confirmed, "--", node, text]


def answered_through(words: Sequence[str], by: str, question: str = "") -> list[str]:
    """Return an answer's command with its channel, and the id of the one question that it answers."""
    if words[0] != "answer":
        return list(words)
    return ["answer", f"--by={by}", *([f"--question={question}"] if question else []), *words[1:]]


def review_command_words(run: str, node: str, body: Mapping[str, object], attempt: int, commit: str,
                         comments: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return the command that approves a node's work (`choice`) or rejects it, with a note (`text`) and comments.

    The command names attempt and commit of the entry that the page showed: it is refused if the entry has changed.
    `comments` are places (`FILE:LINE`) and texts.
    """
    shown = ["--run", run, f"--attempt={attempt}", f"--commit={commit}"]
    note = text_of(body, "text", required=body.get("choice") != "Approve" and not comments).strip()
    reason = [f"--reason={note}"] if note else []
    judgement = "--approve" if body.get("choice") == "Approve" else "--reject"
    return ["review", *shown, judgement, *reason, *(word for place, text in comments for word in (
        "--comment", place, text)), "--", node]


def comments_of(body: Mapping[str, object], path_of: Callable[[int, int], str]) -> list[tuple[str, str]]:
    """Return the comments of a request as places and texts.

    Args:
        path_of: gives the path of a changed file, from its number and the attempt with which the work was compared.
    """
    given = body.get("comments", [])
    if not isinstance(given, list) or len(given) > MAX_COMMENTS:
        raise UsageError(f"comments must be a list of at most {MAX_COMMENTS}")
    return [_comment_of(each, path_of) for each in given]


def _comment_of(given: object, path_of: Callable[[int, int], str]) -> tuple[str, str]:
    try:
        comment = from_data(GivenComment, given)
    except ValueError as error:
        raise UsageError(f"a comment needs file and line, both numbers, and text ({error})") from None
    last = f"-{abs(comment.last)}" if comment.last else ""
    return (f"{path_of(comment.file, comment.since)}:{comment.line}{last}",
            text_of({"text": comment.text}, "text", required=True))


class GivenComment(Value):
    """A comment as the page sends it: the number of a changed file, its line, the last of several, and the attempt
    with which the work was compared."""

    file: int
    line: int
    text: str
    last: int = 0
    since: int = 0


def entry_command_words(entry: str, body: Mapping[str, object]) -> list[str]:
    if not _ENTRY.match(entry):
        raise UsageError("invalid merge entry id")
    return named_command_words(ENTRY, entry, body)


def named_command_words(table: Mapping[str, Sequence[str]], name: str, body: Mapping[str, object]) -> list[str]:
    """Return the command of a table's action on the object with this name."""
    return [*_choose(table, body), "--", name]


def queue_command_words(repo: str, targets: Sequence[str], body: Mapping[str, object]) -> list[str]:
    """Return the command of an action on the queue of `target`, one of `targets`, by default the first."""
    target = text_of(body, "target", required=False) or targets[0]
    if target not in targets:
        raise UsageError(f"pass target, one of {', '.join(dict.fromkeys(targets))}")
    return [*_choose(QUEUE, body), f"--repo-root={repo}", f"--target={target}"]


def _choose(table: Mapping[str, T], body: Mapping[str, object]) -> T:
    action = body.get("action")
    if not isinstance(action, str) or action not in table:
        raise UsageError(f"pass action, one of {', '.join(table)}")
    return table[action]


def text_of(body: Mapping[str, object], key: str, *, required: bool, most: int = TEXT) -> str:
    """Return a text of a request; UsageError if it is missing, or cannot be passed to a command."""
    text = body.get(key, "")
    if not isinstance(text, str) or "\0" in text or len(text) > most:
        raise UsageError(f"{key} must be a text of at most {most} characters")
    if required and not text.strip():
        raise UsageError(f"{key} is missing")
    return text


async def run_command(home: Path, words: Sequence[str], text: str = "", *, repo: str = "",
                      seconds: float = SECONDS) -> str:
    """Run one of our commands and return its last line; Refused, with that line, if it failed.

    Args:
        text: its standard input.
        repo: folder in which it works; '' for the home.
    """
    out, err = await _run(home, words, repo or str(home), text, seconds)
    message = last_message(err, out)
    return message if message and "--json" not in words else "done"


async def _run(home: Path, words: Sequence[str], cwd: str, text: str = "", seconds: float = SECONDS) -> tuple[str, str]:
    """Run a command to its end; return its stdout and stderr. Refused, with its message, if it fails."""
    argv, environment = program(home, words)
    code, out, err = await run_to_end(argv, seconds, environment, cwd=cwd, text=text)
    if code:
        raise Refused(failure_of(code, err, out))
    return out, err


class ListedPlan(Value):
    """A plan, as `garrison plan --list --json` lists it."""

    id: str
    goal: str
    repo: str
    stage: str
    mends: bool = True
    """False for one that `garrison take` continues."""


class ListedPlans(Value):
    """The plans that have not started, the latest first."""

    plans: tuple[ListedPlan, ...]


_OPEN = ("planning", "asked", "proposed")


async def read_plans(home: Path) -> ListedPlans:
    """Return the plans of a home that can be continued; Refused if they cannot be read."""
    out, _ = await _run(home, ("plan", "--list", "--json"), str(home))
    found = from_data(tuple[ListedPlan, ...], json.loads(out))
    return ListedPlans(tuple(each for each in found if each.stage in _OPEN and each.mends))


class ListedLessons(Value):
    """The lessons of a repository."""

    lessons: tuple[ShownLesson, ...]


async def read_lessons(home: Path, repo: str) -> ListedLessons:
    """Return the proposals and the kept lessons of a repository; Refused if its runs cannot be read."""
    out, _ = await _run(home, ("lessons", "--as-worded", "--json"), repo)
    return ListedLessons(from_data(tuple[ShownLesson, ...], json.loads(out)))
