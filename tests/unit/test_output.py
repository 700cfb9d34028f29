"""How commands speak, and what becomes of an error."""

from __future__ import annotations

import sys

import pytest

from garrison.cli import output
from garrison.errors import Fenced, GarrisonError, PreflightRed, RecordCorrupt, UsageError
from garrison.system.clock import format_age


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
                                             "where), then type the same command again\n"),
    (GarrisonError("first\nsecond"), "garrison: first second\n"),
    (PreflightRed("the gate is red\nhere", "one\n  two"), "garrison: the gate is red here\n    one\n      two\n"),
])
def test_an_error_says_in_one_line_what_to_do_before_the_tail_of_a_log(
        error: Exception, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(error) == 1
    assert capsys.readouterr().err == told


def test_a_plain_table_is_aligned_and_an_empty_one_prints_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("NAME", "LIFE"), [("runner-a@r1", 1), ("x", None), ("two\nlines", "")])
    assert capsys.readouterr().out.splitlines() == ["NAME         LIFE", "runner-a@r1  1", "x            -",
                                                    "two lines    -"]
    output.print_table(("NAME",), [], "nothing there")
    assert capsys.readouterr() == ("", "nothing there\n")


def test_a_table_for_a_terminal_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    output.print_table(("NAME",), [("[red]a[/red]",)])
    assert "[red]a[/red]" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (0.4, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"),
                                               (200000, "2d")])
def test_an_age_has_one_unit(seconds: float | None, text: str) -> None:
    assert format_age(seconds) == text
