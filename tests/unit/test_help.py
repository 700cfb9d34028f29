"""`garrison --help` leads a person: twelve commands first, everything once, and an answer to other tools' words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from garrison.cli import run as run_module
from garrison.cli.main import SECTIONS, garrison


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(garrison, list(words))
    return result.exit_code, result.output


def test_help_lists_the_twelve_commands_of_every_day_and_all_of_them_if_asked() -> None:
    names = ["init", "run", "launch", "status", "top", "logs", "attach", "answer", "review", "stop", "resume", "why"]
    assert list(next(iter(SECTIONS.values()))) == names
    code, text = said("--help")
    positions = [text.index(f"\n  {name} ") for name in names]
    assert (code, positions) == (0, sorted(positions))
    assert "garrison help --all" in text and "merge-queue" not in text
    everything = said("help", "--all")[1]
    assert all(re.search(rf"\n  {name} ", everything) for section in SECTIONS.values() for name in section)


def hints() -> Iterator[tuple[str, str]]:
    """Yield (module, command line) for each command in backquotes that garrison's sentences name."""
    for path in sorted(Path(run_module.__file__).parents[1].rglob("*.py")):
        for text in re.findall(r"`garrison ([a-z][^`\n\"]*)`", path.read_text(encoding="utf-8")):
            yield path.name, text


def test_the_command_of_each_hint_exists_with_its_options() -> None:
    wrong = []
    for module, text in hints():
        command: click.Command | None = garrison
        ctx = click.Context(garrison)
        words = text.split()
        while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z-]+", words[0]):
            command = command.get_command(ctx, words.pop(0))
        params = command.get_params(ctx) if command else ()
        known = {"--help", *(name for each in params for name in (*each.opts, *each.secondary_opts))}
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        if command is None or not options <= known:
            wrong.append(f"{module}: {text}")
    assert not wrong


def test_each_command_is_in_one_section_with_a_line_that_fits() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    assert len(names) == len(set(names))
    lines = [line for section in SECTIONS.values() for *_, line in section.values()]
    assert max(map(len, lines)) <= 65, max(lines, key=len)


@pytest.mark.parametrize(("word", "where"), [
    ("ps", "garrison status"), ("list", "garrison status"), ("continue", "garrison resume RUN"),
    ("retry", "garrison agents respawn NODE"), ("approve", "garrison review"), ("stat", "'status'"),
])
def test_a_word_of_another_tool_leads_to_the_command(word: str, where: str) -> None:
    code, text = said(word)
    assert (code, where in text) == (2, True), text


def test_no_hint_hides_a_command_and_each_names_existing_ones() -> None:
    words = garrison.hints  # type: ignore[attr-defined]
    commands = {name for section in SECTIONS.values() for name in section}
    assert not commands & set(words)
    named = {name for hint in words.values() for name in re.findall(r"`garrison ([a-z-]+)", hint)}
    assert named <= commands


def test_help_and_version_are_commands_too() -> None:
    assert said("help", "merge-queue", "enqueue")[1].startswith("Usage: garrison merge-queue enqueue ")
    assert said("help")[1].startswith("Usage: garrison [OPTIONS] COMMAND")
    assert said("version")[1] == said("--version")[1]
    code, text = said("help", "ps")
    assert (code, "garrison status" in text) == (2, True)


@pytest.mark.parametrize("group", ["pipeline", "merge-queue", "signals", "config"])
def test_the_help_of_a_group_cuts_no_line_off(group: str) -> None:
    code, text = said(group, "--help")
    assert code == 0
    assert "..." not in text.split("Commands:")[1]
