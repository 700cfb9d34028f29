"""Running commands: exit codes, renamed options, help, unknown commands; their output and errors."""

from __future__ import annotations

import sys

import click
import pytest

from garrison.cli import main as cli
from garrison.cli import output
from garrison.cli.commands import Command, Group, run_command
from garrison.cli.main import main
from garrison.errors import Fenced, GarrisonError, PreflightRed, RecordCorrupt, UsageError
from garrison.system.clock import format_age


@click.group(cls=Group)
def group() -> None:
    """Do things."""


@group.command(examples=(("do it --retry-failed", "again"),), option_groups={"Retrying": ("retry_failed", "limit")},
               renamed={"--again": "--retry-failed", "--most": "--limit"})
@click.argument("words", nargs=-1)
@click.option("--retry-failed", is_flag=True, help="Retry.")
@click.option("--limit", type=int, default=1)
@click.option("--quiet", is_flag=True, help="Be quiet.")
def it(words: tuple[str, ...], retry_failed: bool, limit: int, quiet: bool) -> None:
    """Do it."""
    click.echo(f"{words} {retry_failed} {limit}")


@pytest.mark.parametrize(("arguments", "out", "warnings"), [
    (["--retry-failed"], "() True 1", 0),
    (["--again"], "() True 1", 1),
    (["--again", "--most=3"], "() True 3", 2),
    (["--most", "4", "x"], "('x',) False 4", 1),
    (["--", "--again"], "('--again',) False 1", 0),
])
def test_a_former_option_name_is_accepted_with_a_warning(arguments: list[str], out: str, warnings: int,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(group, ["it", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.out == out + "\n"
    lines = shown.err.splitlines()
    assert len(lines) == warnings
    assert all(line.startswith("warning: --") and " is now --" in line for line in lines)


def test_help_has_groups_and_examples_and_no_former_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(group, ["it", "-h"]) == 0
    text = capsys.readouterr().out
    assert text.index("Retrying:") < text.index("--retry-failed") < text.index("Options:") < text.index("--quiet")
    assert "  do it --retry-failed\n      again\n" in text
    assert "--again" not in text


def test_every_renamed_option_of_garrison_exists() -> None:
    def leaves(command: click.Command, context: click.Context) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        children = [command.get_command(context, name) for name in command.list_commands(context)]
        return [leaf for child in children if child is not None for leaf in leaves(child, context)]

    commands = leaves(cli.garrison, click.Context(cli.garrison))
    renamed = [(command, new) for command in commands if isinstance(command, Command)
               for new in command.renamed.values()]
    assert renamed
    for command, new in renamed:
        assert any(new in param.opts for param in command.params), (command.name, new)


def test_an_unknown_command_is_answered_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lunch"]) == 2
    assert "did you mean 'launch'?" in capsys.readouterr().err
    assert main(["agents", "prak"]) == 2
    assert "did you mean 'park'?" in capsys.readouterr().err


def test_click_commands_give_their_code(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @click.argument("what", type=click.Choice(["ok", "no", "exit", "text", "return"]))
    def command(what: str) -> int:
        if what == "no":
            raise GarrisonError("refused")
        if what in ("exit", "text"):
            raise SystemExit(3 if what == "exit" else "a word")
        return 4 if what == "return" else 0

    assert [run_command(command, [what])
            for what in ("ok", "no", "exit", "text", "return", "--help")] == [0, 1, 3, 1, 4, 0]
    assert run_command(command, ["nonsense"]) == 2
    assert run_command(command, []) == 2
    assert "garrison: refused" in capsys.readouterr().err


def test_every_command_of_the_table_exists_and_has_help() -> None:
    for name in cli.garrison.list_commands(click.Context(cli.garrison)):
        command = cli.garrison.get_command(click.Context(cli.garrison), name)
        assert isinstance(command, click.Command), name
        assert command.get_short_help_str(), name


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_platforms_are_refused_in_a_line(platform: str, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert main(["home"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"garrison: garrison runs on Linux, this is {platform}; use a Linux machine, container or VM\n"


# ---- how commands print, and what becomes of an error


def fail(error: BaseException) -> int:
    def work() -> int:
        raise error

    return output.run_guarded(work, output.print_error)


@pytest.mark.parametrize(("error", "code"), [
    (GarrisonError("no"), 1), (Fenced("later"), 1), (UsageError("bad"), 2), (RecordCorrupt("x.json", "torn"), 1),
    (KeyboardInterrupt(), 130), (PermissionError(13, "Permission denied", "/x"), 1), (ZeroDivisionError("a fault"), 1),
])
def test_an_error_is_one_line_and_a_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GARRISON_DEBUG", raising=False)
    assert fail(error) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == (0 if isinstance(error, KeyboardInterrupt) else 1)
    assert "Traceback" not in told.err
    if not isinstance(error, KeyboardInterrupt):
        assert told.err.startswith("garrison: ")


@pytest.mark.parametrize("error", [GarrisonError("no"), ZeroDivisionError(), PermissionError(13, "no")])
def test_a_traceback_only_with_garrison_debug(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRISON_DEBUG", "1")
    with pytest.raises(type(error)):
        fail(error)


@pytest.mark.parametrize(("error", "told"), [
    (OSError(28, "No space left on device"), "garrison: No space left on device; free some space (`df -h` shows "
                                             "where), then run the same command again\n"),
    (GarrisonError("first\nsecond"), "garrison: first second\n"),
    (PreflightRed("the gate is red\nhere", "one\n  two"), "garrison: the gate is red here\n    one\n      two\n"),
])
def test_an_error_says_in_one_line_what_to_do_before_the_tail_of_a_log(
        error: Exception, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(error) == 1
    assert capsys.readouterr().err == told


def test_a_table_is_aligned_shows_markup_as_it_is_and_an_empty_one_prints_no_data(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output.print_table(("NAME", "LIFE"), [("runner-a@r1", 1), ("x", None), ("two\nlines", "")])
    assert capsys.readouterr().out.splitlines() == ["NAME         LIFE", "runner-a@r1  1", "x            -",
                                                    "two lines    -"]
    output.print_table(("NAME",), [], "nothing there")
    assert capsys.readouterr() == ("", "nothing there\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    output.print_table(("NAME",), [("[red]a[/red]",)])
    assert "[red]a[/red]" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (0.4, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"),
                                               (200000, "2d")])
def test_an_age_has_one_unit(seconds: float | None, text: str) -> None:
    assert format_age(seconds) == text
