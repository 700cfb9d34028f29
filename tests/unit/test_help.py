"""`garrison --help`: twelve commands first, each command once, and an answer to the words of other tools."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from garrison.cli import run as run_module
from garrison.cli.main import garrison
from garrison.ends import WaitKind
from garrison.views.waits import PersonWait, describe_settling

SECTIONS: dict[str, dict[str, str]] = garrison.lines  # type: ignore[attr-defined]
"""Heading → command → help line, of the core and its extras."""
COMMANDS = {name for section in SECTIONS.values() for name in section}


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(garrison, list(words))
    return result.exit_code, result.output


def test_help_lists_the_twelve_common_commands_and_all_on_request_each_in_one_line() -> None:
    names = ["init", "run", "launch", "status", "logs", "attach", "answer", "review", "stop", "resume", "why", "top"]
    assert list(next(iter(SECTIONS.values()))) == names
    code, text = said("--help")
    positions = [text.index(f"\n  {name} ") for name in names]
    assert (code, positions) == (0, sorted(positions))
    assert "garrison help --all" in text and "merge-queue" not in text
    everything = said("help", "--all")[1]
    assert all(re.search(rf"\n  {name} ", everything) for section in SECTIONS.values() for name in section)
    assert len(COMMANDS) == sum(map(len, SECTIONS.values()))
    lines = [line for section in SECTIONS.values() for line in section.values()]
    assert max(map(len, lines)) <= 65, max(lines, key=len)


VALUE = "1"
"""Stands for a value that a sentence gets when it is printed: a name or a number."""
NAMED = frozenset({"pipeline run", "host", "mcp", "acp", "attach", "tell", "host add", "merge-queue",
                   "session send --turn-graph", "verify --costs", "launch 1 --no-gate1",
                   'merge-queue enqueue NODE BRANCH"'})
"""Commands that sentences mention without a request to type them."""


UNTYPED = re.compile(r" [|<>(]|;|[)]$|, (?:or|with) | continues it$| --$|   \w+: ")
"""What ends a command line in a sentence or an example."""


def printed(node: ast.AST) -> str:
    """Return the text of a literal, its values replaced."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(printed, parts))
        case ast.FormattedValue(value=ast.IfExp(body=ast.JoinedStr() as body)):
            return printed(body)
    return VALUE


def literals(path: Path) -> Iterator[str]:
    """Yield the texts in a module that may be printed: all but docstrings."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source if re.search(r"[`(]garrison |: garrison ", source) else "")
    nodes = [*ast.walk(tree)]
    left_out = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
                if part is not node}
    left_out |= {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node not in left_out:
            yield printed(node)


def hints() -> Iterator[tuple[str, str]]:
    """Yield (module, command line) for each command in backquotes, in brackets, at the start or after a colon of
    garrison's sentences and examples, and for those that end a wait."""
    for path in sorted(Path(run_module.__file__).parents[1].rglob("*.py")):
        for text in filter(lambda text: "garrison " in text, literals(path)):
            for pattern in (r"`garrison ([a-z][^`\n]*)`", r"\((?:answer: )?garrison ([a-z][^`()\n]*)\)",
                            r"(?:^|: |; )garrison ((?!\w+ would)[a-z][^`\n]*)"):
                yield from ((path.name, UNTYPED.split(found)[0])
                            for found in re.findall(pattern, text)
                            if found.split()[0] in COMMANDS or pattern.startswith("`"))
    for kind in WaitKind:
        waits = PersonWait(kind, "`garrison up`", "build", retriable=kind is WaitKind.FAILED)
        text = describe_settling(waits, "crew-1")
        yield from ((kind, found) for found in re.findall(r"`garrison ([^`]+)`", text))


def objection(line: str) -> str:
    """Return why a command line is invalid, '' if it is valid."""
    command: click.Command = garrison
    ctx = click.Context(garrison, info_name="garrison")
    words = shlex.split(line)
    try:
        while isinstance(command, click.Group) and (words or not command.invoke_without_command):
            _, found, words = command.resolve_command(ctx, words)
            command, ctx = found, click.Context(found, info_name=found.name, parent=ctx)
        command.make_context(command.name, words, parent=ctx.parent)
    except click.MissingParameter as error:
        return error.format_message()
    except click.BadParameter:
        return ""  # the value is ours: no such file
    except (click.UsageError, IndexError) as error:
        return str(error)
    except click.exceptions.Exit:
        pass
    return ""


def test_each_hint_is_a_valid_command_line() -> None:
    """Its command exists, with these options and arguments."""
    found = [(module, text) for module, text in hints() if text not in NAMED]
    assert len(found) > 500
    assert {f"{module}: {text}": why for module, text in found if (why := objection(text))} == {}
    assert "No such option" in objection("run x --yes-please") and "ENTRY" in objection("merge-queue release")
    assert "unexpected" in objection("status a b") and "No such command" in objection("statsu")


@pytest.mark.parametrize(("word", "where"), [
    ("ps", "garrison status"), ("list", "garrison status"), ("continue", "garrison resume RUN"),
    ("retry", "garrison agents respawn NODE"), ("approve", "garrison review"), ("todo", "run --tasks FILE"),
    ("stat", "'status'"),
])
def test_a_word_of_another_tool_leads_to_the_command(word: str, where: str) -> None:
    code, text = said(word)
    assert (code, where in text) == (2, True), text


def test_no_hint_hides_a_command_and_each_names_existing_ones() -> None:
    words = garrison.hints  # type: ignore[attr-defined]
    assert not COMMANDS & set(words)
    named = {name for hint in words.values() for name in re.findall(r"`garrison ([a-z-]+)", hint)}
    assert named <= COMMANDS


@pytest.mark.parametrize("command", ["run", "launch"])
def test_the_help_of_a_start_has_ten_options_and_all_on_request(command: str) -> None:
    short, full = said(command, "--help")[1], said(command, "--help-all")[1]
    options = [set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)) for text in (short, full)]
    assert len(options[0] - {"--help", "--help-all"}) <= 12 and options[0] < options[1]
    assert {"--gate", "--agent", "--detach", "--help-all"} <= options[0] and {"--max-rework", "--env"} <= options[1]
    assert "Worktrees, tests and landing:" in full and said("help", command, "--all")[1] == full
    assert said("help", command)[1] == short


def test_help_and_version_are_also_commands() -> None:
    assert said("help", "merge-queue", "enqueue")[1].startswith("Usage: garrison merge-queue enqueue ")
    assert said("help")[1].startswith("Usage: garrison [OPTIONS] [COMMAND]")
    assert said("version")[1] == said("--version")[1]
    code, text = said("help", "ps")
    assert (code, "garrison status" in text) == (2, True)


@pytest.mark.parametrize("group", ["pipeline", "merge-queue", "signals", "config"])
def test_the_help_of_a_group_truncates_no_line(group: str) -> None:
    code, text = said(group, "--help")
    assert code == 0
    assert "..." not in text.split("Commands:")[1]
