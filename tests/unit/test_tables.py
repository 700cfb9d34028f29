"""Tables of settings: a record declares the keys of a table, and every error has the same form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from garrison import tables
from garrison.errors import UsageError
from garrison.tables import Table, as_mapping, as_text, is_secret, number, or_none, readers_of, setting, whole
from garrison.values import Value


class Wind(StrEnum):
    NORTH = "north"
    SOUTH = "south"


class Sails(Value):
    turn: float = setting(9.0, number("seconds", 1, 60))
    wind: Wind = setting(Wind.NORTH, tables.member(Wind))
    pass_: str = setting("", tables.matching(r"[a-z]*", "small letters"), is_secret=True)
    set: Mapping[str, str] = tables.empty_table(as_mapping)
    effects: Mapping[Wind, bool] = tables.settings_by_key(Wind, tables.as_flag)
    crew: tuple[str, ...] = ()
    """No setting."""


FILE = Table.parse("c.toml", b"""\
[sails.big]
turn = 3
south = true
x_mine = 1
[sails.odd]
tun = 3
[sails.late]
turn = 90
wind = "nort"
pass_ = "SECRET"
set = {KEY = "SECRET", N = 1}
[sails.none]
""")


def test_a_record_declares_its_table() -> None:
    assert tuple(readers_of(Sails)) == ("turn", "wind", "pass_", "set", "north", "south")
    assert FILE.below("sails", "big").read(Sails) == Sails(3.0, effects={Wind.SOUTH: True})
    assert FILE.below("sails", "none").read(Sails) == FILE.below("sails", "absent").read(Sails) == Sails()
    base = Sails(5.0, Wind.SOUTH, crew=("a",))
    assert FILE.below("sails", "none").read(Sails, base) == base
    assert Table("w", {"turns": 4, "tun": 1}).read(Sails, others=None, names={"turn": "turns"}) == Sails(4.0)
    assert Table("w", {"tun": 1}).read(Sails, others=("tun",)) == Sails()
    assert [is_secret(Sails, key) for key in ("turn", "pass_")] == [False, True]


@pytest.mark.parametrize(("table", "said"), [
    (FILE.below("sails", "odd"), "c.toml:6: [sails.odd] tun is not a setting; did you mean turn?"),
    (Table("w", {"tide": 1}, ("t",)), "w: [t] tide is not a setting; there are turn, wind, pass_, set, north, south; "
                                      "your own keys start with x_"),
    (FILE.below("sails", "late"), "c.toml:8: [sails.late] turn=90 should be seconds from 1 to 60"),
    (Table("node n", {"wind": "nort"}), "node n: wind='nort' should be one of north, south; did you mean north?"),
    (Table("w", {"turn": "9" * 100}), f"w: turn='{'9' * 78}… should be seconds from 1 to 60"),
    (FILE.below("sails", "big", "turn"),
     "c.toml:2: sails.big.turn should be a table with turn, wind, pass_, set, north, south"),
])
def test_an_error_has_file_line_table_key_and_a_suggestion(table: Table, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        table.read(Sails)
    assert str(caught.value) == said


@pytest.mark.parametrize("key", ["pass_", "set"])
def test_no_error_shows_a_secret(key: str) -> None:
    late = FILE.below("sails", "late")
    with pytest.raises(UsageError, match=rf"^c.toml:1[01]: \[sails.late\] {key} should be ") as caught:
        Table(late.file, {key: late.values[key]}, late.keys, late.text).read(Sails)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(("read", "good", "made", "bad", "expected"), [
    (as_text, " a", " a", " ", "a text"), (tables.as_flag, "True", True, 1, "true or false"),
    (tables.as_subfolder, " ./packages//a/ ", "packages/a", ["", "/etc", "a/../..", "~/x", 3, "a\0"],
     'a folder of the repository, such as "packages/a" ("." is its top)'),
    (tables.as_names, "a, b c", ("a", "b", "c"), [""], "a list of names"),
    (tables.as_strings, ["a"], ("a",), "a", "a list of strings"),
    (tables.as_count, "7", 7, 1.5, "a whole number above 0"), (tables.as_count, 7, 7, True, "a whole number above 0"),
    (tables.as_amount, "$0.5", 0.5, "nan", "a number above 0"),
    (tables.as_amount, "3 USD", 3.0, "x", "a number above 0"),
    (number("hours", 0, above=True), 2, 2.0, 0, "hours above 0"),
    (number("hours", 0, 5, above=True), 5, 5.0, 6, "hours above 0 and at most 5"),
    (whole(1), 1, 1, "1", "a whole number above 0"), (whole(0, 9), 0, 0, 10, "a whole number from 0 to 9"),
    (or_none(whole(1)), "None", None, 0, 'a whole number above 0, or "none"'),
    (or_none(as_text), False, None, 0, 'a text, or "none"'), (tables.one_of("", "on"), "", "", "of", '"on"'),
    (as_mapping, {"a": "b"}, {"a": "b"}, {"a": 1}, "a table of texts"),
])
def test_a_reader_names_what_it_expects(read: Any, good: object, made: object, bad: object, expected: str) -> None:
    assert read(good) == made
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}($|;)"):
        read(bad)


def test_invalid_toml_is_refused_with_its_file() -> None:
    for data in (b"[a", b"\xff"):
        with pytest.raises(UsageError, match=r"^f is not TOML: "):
            Table.parse("f", data)
