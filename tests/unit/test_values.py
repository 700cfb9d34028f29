"""Values: compared, shown and copied by their immutable fields, in part also for dataclasses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import pytest

from garrison.values import Value, asdict, field_names, fields_of, replace


class Colour(StrEnum):
    RED = "red"


class Point(Value):
    """Point in a plane."""

    x: int
    y: int = 0


class Named(Point):
    """Point with a name."""

    name: str = ""
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", self.name.strip())


@dataclass
class Box:
    """A dataclass that contains values."""

    corners: dict[str, Point]
    colour: Colour = Colour.RED


class Spoken(Value):
    """Value with its own methods."""

    word: str

    def __repr__(self) -> str:
        return f"<{self.word}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spoken) and self.word.lower() == other.word.lower()

    def __hash__(self) -> int:
        return hash(self.word.lower())


def test_values_of_one_class_with_equal_fields_are_equal() -> None:
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    assert len({Point(1), Named(1), Named(1, name="n")}) == 3
    assert Named(1, name=" n ").name == replace(Named(1), name=" n").name == "n"
    assert {Spoken("Hi")} == {Spoken("hi")} and repr(Spoken("Hi")) == "<Hi>"


@pytest.mark.parametrize("change", [lambda value: setattr(value, "x", 2), lambda value: delattr(value, "x"),
                                    lambda value: setattr(value, "other", 2)])
def test_fields_cannot_be_set_or_deleted(change: Any) -> None:
    value = Point(1)
    with pytest.raises(AttributeError):
        change(value)
    assert value == pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == Point(1)


def test_values_and_dataclasses_become_the_same_mappings() -> None:
    box, named = Box({"a": Point(1)}), Named(1, 2, "n", (Point(3),))
    assert asdict(box) == {"corners": {"a": {"x": 1, "y": 0}}, "colour": "red"}
    assert asdict(named) == {"x": 1, "y": 2, "name": "n", "points": ({"x": 3, "y": 0},)}
    assert fields_of(named) == {"x": 1, "y": 2, "name": "n", "points": (Point(3),)}
    assert fields_of(box)["corners"] is box.corners
    assert field_names(Named) == ("x", "y", "name", "points") and field_names(Box) == ("corners", "colour")
    assert replace(box, colour=Colour.RED) == box and replace(named, x=5).x == 5
