"""Ratchet on the size of the code: lines and modules of each room of src/garrison and of tests stay below a ceiling.

The ceilings are in `tests/sizes.toml`; `python -m tests.unit.test_size --lower` lowers them to the current sizes.
Growth is a `[[raised]]` entry by hand with a `why`, a sentence of CHANGELOG's Unreleased section: its benefit for
users. At a release, `--rebase` takes the current sizes as ceilings and removes the entries.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/sizes.toml"
HEAD = "# Ceilings of tests/unit/test_size.py, which says how they change: lines and modules (Python) a room.\n"


@dataclass(frozen=True)
class Size:
    """Lines and modules of a room."""

    lines: int = 0
    modules: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.lines + other.lines, self.modules + other.modules)


@dataclass(frozen=True)
class Raise:
    """Growth of a room over its ceiling, and its benefit for users."""

    room: str
    why: str
    lines: int = 0
    modules: int = 0


@dataclass(frozen=True)
class Table:
    """Ceilings of the rooms, and growth since the last release."""

    rooms: Mapping[str, Size]
    raised: tuple[Raise, ...] = ()

    @classmethod
    def read(cls, text: str) -> Table:
        """Read the table; raise TypeError if an entry has missing or unknown fields."""
        data = tomllib.loads(text)
        return cls({room: Size(**size) for room, size in data["rooms"].items()},
                   tuple(Raise(**each) for each in data.get("raised", ())))

    def raised_by(self, room: str) -> Size:
        """Return the growth of a room."""
        return sum((Size(each.lines, each.modules) for each in self.raised if each.room == room), Size())

    def write(self) -> str:
        """Return the table as text."""
        rows = [f'"{room}" = {{ lines = {size.lines}, modules = {size.modules} }}'
                for room, size in sorted(self.rooms.items())]
        more = [f'\n[[raised]]\nroom = "{each.room}"\nlines = {each.lines}\nmodules = {each.modules}\n'
                f'why = {json.dumps(each.why, ensure_ascii=False)}' for each in self.raised]
        return HEAD + "\n[rooms]\n" + "\n".join([*rows, *more]) + "\n"


def measure(root: Path = ROOT) -> dict[str, Size]:
    """Return the size of each room: a folder of src/garrison or tests with its subfolders, or the other modules."""
    sizes: dict[str, Size] = {}
    for top in ("src/garrison", "tests"):
        for path in (root / top).rglob("*.py"):
            parts = path.relative_to(root / top).parts
            room = top if len(parts) == 1 else f"{top}/{parts[0]}"
            size = Size(len(path.read_text(encoding="utf-8").splitlines()), 1)
            sizes[room] = sizes.get(room, Size()) + size
    return sizes


def find_excess(sizes: Mapping[str, Size], table: Table, unreleased: str) -> list[str]:
    """Return what is above its ceiling, or was raised without an entry in the changelog."""
    wrong = []
    for room, size in sorted(sizes.items()):
        ceiling = table.rooms.get(room, Size()) + table.raised_by(room)
        wrong += [f"{room}: {what} {is_} > {limit}; make room, or add a [[raised]] entry to {TABLE.name}"
                  for what, is_, limit in (("lines", size.lines, ceiling.lines),
                                           ("modules", size.modules, ceiling.modules)) if is_ > limit]
    said = " ".join(unreleased.split())
    return wrong + [f"{each.room}: CHANGELOG's Unreleased section does not say: {each.why}" for each in table.raised
                    if not each.why or " ".join(each.why.split()) not in said]


def lower(table: Table, sizes: Mapping[str, Size]) -> Table:
    """Return the table with each ceiling lowered to the current size."""
    rooms = {}
    for room, old in table.rooms.items():
        size, more = sizes.get(room), table.raised_by(room)
        if size is not None:
            rooms[room] = Size(min(old.lines, size.lines - more.lines), min(old.modules, size.modules - more.modules))
    return Table(rooms, table.raised)


def test_no_room_is_above_its_ceiling() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## [Unreleased]")[2].partition("\n## ")[0]
    assert find_excess(measure(), Table.read(TABLE.read_text(encoding="utf-8")), changes) == []


@pytest.mark.parametrize(("size", "raised", "wrong"), [
    (Size(10, 2), (), 0), (Size(11, 2), (), 1), (Size(11, 3), (), 2),
    (Size(15, 2), (Raise("a", "Nodes  land sooner.", 5),), 0), (Size(16, 2), (Raise("a", "Nodes land sooner.", 5),), 1),
    (Size(9, 2), (Raise("a", "Nobody said this.", 5),), 1), (Size(9, 2), (Raise("a", ""),), 1),
])
def test_sizes_above_a_ceiling_and_silent_growth_are_found(size: Size, raised: tuple[Raise, ...], wrong: int) -> None:
    assert len(find_excess({"a": size}, Table({"a": Size(10, 2)}, raised), "- Nodes land\n  sooner.")) == wrong
    assert find_excess({"new": Size(1, 1)}, Table({}), "") != []


def test_ceilings_are_only_lowered() -> None:
    table = Table({"a": Size(10, 2), "b": Size(10, 2), "gone": Size(1, 1)}, (Raise("b", "why", 5),))
    low = lower(table, {"a": Size(12, 1), "b": Size(13, 2)})
    assert low.rooms == {"a": Size(10, 1), "b": Size(8, 2)}
    assert Table.read(low.write()) == low


def main(arguments: Sequence[str] | None = None) -> int:
    """Lower or re-base the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.test_size", description=__doc__)
    parser.add_argument("--lower", action="store_true", help="lower each ceiling to what is there")
    parser.add_argument("--rebase", action="store_true", help="take today's sizes as ceilings (at a release)")
    options = parser.parse_args(arguments)
    if options.rebase:
        TABLE.write_text(Table(measure()).write(), encoding="utf-8")
    elif options.lower:
        table = Table.read(TABLE.read_text(encoding="utf-8"))
        TABLE.write_text(lower(table, measure()).write(), encoding="utf-8")
    else:
        parser.error("say --lower or --rebase")
    return 0


if __name__ == "__main__":
    sys.exit(main())
