"""Values: records whose fields never change, compared and hashed by their fields.

`Value` is the base of every such class. It is a `msgspec.Struct`: two hundred of them cost a guardian 10 ms when it
starts, where frozen dataclasses cost 90. State that changes is kept in structs that are not frozen, or in dataclasses,
whose instances are taken here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

import msgspec

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """Base of all values. A class with a `cached_property` says `dict=True`."""


def replace(value: T, /, **changes: Any) -> T:
    """Return a copy of a value, or of an instance of a dataclass, in which some fields are others."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    import dataclasses  # 2 ms, which a command of records alone need not pay

    return cast("T", dataclasses.replace(cast("Any", value), **changes))


def asdict(value: object) -> dict[str, Any]:
    """Return a value, or an instance of a dataclass, with all values within it as mappings of JSON, copied.

    Tuples stay tuples, enums become their values.
    """
    return cast("dict[str, Any]", to_builtins(value))


def to_builtins(value: object) -> object:
    """Return what `json` can write of a value, or of a list or mapping of values, as `asdict` does of one."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def project(kind: type[T], view: object) -> T:
    """Return a record of `kind` whose fields are the attributes of `view` of these names; so for all that is below."""
    return msgspec.convert(view, kind, from_attributes=True)


def _plain(value: object) -> str | dict[object, object]:
    """Return what msgspec does not take for a text or a mapping as one."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        # msgspec takes exact strings alone, no message that knows its place in a file; str() might call a method of its
        # class.
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} is not a JSON value")


def fields_of(value: object) -> dict[str, Any]:
    """Return field → value of a value or of an instance of a dataclass; what they hold is not copied."""
    return {name: getattr(value, name) for name in field_names(type(value))}


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a class of values, or of a dataclass, in order."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__

    import dataclasses

    return tuple(field.name for field in dataclasses.fields(kind))


def median(numbers: Sequence[float]) -> float | None:
    """Return the median, None of nothing."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
