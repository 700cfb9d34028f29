"""Light records behave as frozen dataclasses do: the same questions are put to both."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from garrison import light


@pytest.fixture(autouse=True, params=[light._OFTEN, 1], ids=["first", "often"])
def often(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first instances of a class, and those after which it has a constructor of its own."""
    monkeypatch.setattr(light, "_OFTEN", request.param)


def make(kind: Any, field: Any) -> type:
    class Point:
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)
        told: str = field(default="", compare=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is below 0")

    made: type = kind(frozen=True, order=True)(Point)
    return made


KINDS = [pytest.param((light.dataclass, light.field, light.replace), id="light"),
         pytest.param((dataclasses.dataclass, dataclasses.field, dataclasses.replace), id="dataclasses")]


@pytest.mark.parametrize("given", KINDS)
def test_values_defaults_and_comparison(given: Any) -> None:
    point = make(*given[:2])
    one, two = point(1), point(1)
    assert (one.x, one.y, one.tags) == (1, 2, [])
    assert one.tags is not two.tags
    assert one == two == point(1, 2, [], told="other")
    assert one != point(2)
    assert one < point(2)
    assert (point(x=3, y=4).x, point(3, y=4).y) == (3, 4)
    assert one != 1


@pytest.mark.parametrize("given", KINDS)
def test_changes(given: Any) -> None:
    point, replace = make(*given[:2]), given[2]
    one = point(1)
    assert replace(one, y=5) == point(1, 5)
    assert dataclasses.replace(one, y=5) == point(1, 5)
    assert dataclasses.asdict(one) == {"x": 1, "y": 2, "tags": [], "told": ""}
    with pytest.raises(AttributeError):
        one.x = 2
    with pytest.raises(ValueError, match="below 0"):
        replace(one, x=-1)


@pytest.mark.parametrize("given", KINDS)
@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, [], "", 5), {}), ((1,), {"x": 2}), ((1,), {"z": 2}),
                                               ((), {"y": 1, "z": 2})])
def test_wrong_calls(given: Any, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        make(*given[:2])(*values, **named)


def test_a_constructor_of_its_own_is_for_who_is_made_often() -> None:
    point = make(light.dataclass, light.field)
    own = [vars(point(1)) and point.__init__ for _ in range(light._OFTEN + 1)]
    assert own[-1] is not own[0] or light._OFTEN == 1
    assert [one is own[-1] for one in own].index(True) == light._OFTEN - 1
    assert point(1) == point(x=1, y=2)
    assert list(vars(point(1))) == ["x", "y", "tags", "told"]


def test_a_field_without_default_after_one_that_has_one_is_given_by_name() -> None:
    class Late:
        a: int = 1
        b: int

    late = light.dataclass(Late)
    assert [(late(b=2).a, late(b=2).b) for _ in range(3)] == [(1, 2)] * 3


@pytest.mark.parametrize("given", KINDS)
def test_hash(given: Any) -> None:
    class Key:
        a: str
        b: int = 0

    key = given[0](frozen=True)(Key)
    assert len({key("x"), key("x"), key("x", 1)}) == 2


@pytest.mark.parametrize("given", [pytest.param((light.dataclass, light.field, light.asdict), id="light"),
                                   pytest.param((dataclasses.dataclass, dataclasses.field, dataclasses.asdict),
                                                id="dataclasses")])
def test_a_record_that_may_change_and_records_within(given: Any) -> None:
    class Inner:
        a: int = 1

    class Outer:
        inner: Any
        kept: list[Any] = given[1](default_factory=list)

    inner, outer = given[0](frozen=True)(Inner), given[0](Outer)
    one = outer(inner(2), [inner(3), {"x": (inner(4),)}])
    assert given[2](one) == {"inner": {"a": 2}, "kept": [{"a": 3}, {"x": ({"a": 4},)}]}
    one.inner = None
    assert one == outer(None, one.kept)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
