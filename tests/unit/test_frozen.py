"""Frozen dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import garrison
from garrison.frozen import frozen


class _Body:
    """A value."""

    name: str
    number: int = 0
    items: list[int] = field(default_factory=list)
    line: int = field(default=0, compare=False, repr=False)

    @cached_property
    def double(self) -> int:
        return 2 * self.number


def _kind(decorate: Any) -> Any:
    return decorate(type("Value", (), {**{name: value for name, value in vars(_Body).items() if name != "__dict__"},
                                       "__doc__": "A value."}))


@frozen
class Point:
    """Point in a plane."""

    x: int
    y: int = 0


@frozen
class Named(Point):
    """Point with a name."""

    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.strip())


@frozen
class Empty:
    """Value without fields."""


@frozen
class Spoken:
    """Value with its own words."""

    word: str

    def __repr__(self) -> str:
        return f"<{self.word}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spoken) and self.word.lower() == other.word.lower()

    def __hash__(self) -> int:
        return hash(self.word.lower())


@pytest.mark.parametrize("decorate", [frozen, dataclass(frozen=True)], ids=["ours", "the standard library's"])
def test_a_value_is_compared_shown_and_copied_by_its_fields(decorate: Any) -> None:
    kind = _kind(decorate)
    value = kind("a", 1, line=3)
    assert value == kind("a", 1, line=4) != kind("a", 2)
    assert value != ("a", 1, [])
    assert repr(value) == "Value(name='a', number=1, items=[])"
    assert asdict(value) == {"name": "a", "number": 1, "items": [], "line": 3}
    assert [each.name for each in fields(kind)] == list(kind.__match_args__) == ["name", "number", "items", "line"]
    assert replace(value, number=5).number == 5
    assert kind("a").items is not kind("a").items
    assert (value.double, value.double) == (2, 2)
    for wrong in ({}, {"name": "a", "other": 1}):
        with pytest.raises(TypeError):
            kind(**wrong)


@pytest.mark.parametrize("decorate", [frozen, dataclass(frozen=True)], ids=["ours", "the standard library's"])
def test_no_field_is_set_again_or_deleted(decorate: Any) -> None:
    value = _kind(decorate)("a")
    for change in (lambda: setattr(value, "name", "b"), lambda: setattr(value, "number", 1),
                   lambda: delattr(value, "name")):
        with pytest.raises(FrozenInstanceError):
            change()
    assert value.name == "a"


def test_values_of_equal_fields_are_one_key_but_not_across_classes() -> None:
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    assert {Empty(), Empty()} == {Empty()}
    assert len({Point(1), Named(1), Named(1, name="n")}) == 3
    assert Named(1, name=" n ").name == "n"
    with pytest.raises(TypeError):
        hash(_kind(frozen)("a"))


def test_values_are_pickled_and_copied() -> None:
    value = Named(1, 2, "n")
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == copy.deepcopy(value) == value
    with pytest.raises(FrozenInstanceError):
        copy.copy(value).x = 2  # type: ignore[misc]


def test_methods_that_a_class_defines_itself_stay() -> None:
    assert repr(Spoken("Hi")) == "<Hi>"
    assert {Spoken("Hi")} == {Spoken("hi")}


def test_every_frozen_dataclass_is_made_here() -> None:
    source = Path(garrison.__file__).parent
    apart = source / "testing/checker"  # it imports nothing of garrison, so that its judgement is its own
    files = [path for path in source.rglob("*.py") if apart not in path.parents]
    compiled = [f"{path.relative_to(source)}: {line}" for path in files for line in path.read_text().splitlines()
                if line.startswith("@dataclass(frozen=True") and "order=True" not in line]
    assert compiled == []


def test_the_first_instances_are_as_all_others_whoever_makes_them() -> None:
    @frozen
    class Base:
        name: str
        tags: list[str] = field(default_factory=list)

    @frozen
    class Late(Base):
        count: int = 3
        total: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            assert self.count >= 0

    barrier = threading.Barrier(8)

    def make(number: int) -> Late:
        barrier.wait()
        return Late("a", [str(number)], count=number)

    with ThreadPoolExecutor(8) as pool:
        assert [one.tags for one in pool.map(make, range(8))] == [[str(number)] for number in range(8)]
    assert (Late("a"), Base("a").tags, Late("b").count) == (Late("a", [], 3), [], 3)
    with pytest.raises(TypeError, match=r"Late\.__init__\(\) missing 1 required positional argument: 'name'"):
        Late()  # type: ignore[call-arg]
    with pytest.raises(AssertionError):
        Late("a", count=-1)
    assert type(replace(Base("a"), name="b")) is Base
