"""Values: immutable records, compared and hashed by their fields.

`Value` is the base of every such class. It is a `msgspec.Struct`: two hundred such classes cost a guardian 10 ms at its
start, frozen dataclasses 90. Mutable state is in unfrozen structs, or in dataclasses, which the functions here also
accept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

import msgspec

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """Base of all values. A class with a `cached_property` needs `dict=True`."""


def replace(value: T, /, **changes: Any) -> T:
    """Return a copy of a value, or of a dataclass instance, with some fields changed."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    import dataclasses  # 2 ms, not needed by commands that only use records

    return cast("T", dataclasses.replace(cast("Any", value), **changes))


def asdict(value: object) -> dict[str, Any]:
    """Convert a value, or a dataclass instance, with all nested values to JSON mappings, copied.

    Tuples stay tuples, enums become their values.
    """
    return cast("dict[str, Any]", to_builtins(value))


def to_builtins(value: object) -> object:
    """Convert a value, or a list or mapping of values, to what `json` can write, like `asdict`."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def project(kind: type[T], view: object) -> T:
    """Return a record of `kind` with the attributes of `view` of the same names, recursively."""
    return msgspec.convert(view, kind, from_attributes=True)


def _plain(value: object) -> str | dict[object, object]:
    """Convert a str or mapping that msgspec does not accept."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        # msgspec accepts only exact strings, not subclasses with a place in a file; str() might call a method of the
        # subclass
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} is not a JSON value")


def fields_of(value: object) -> dict[str, Any]:
    """Return field → value of a value or a dataclass instance, without copying the values."""
    return {name: getattr(value, name) for name in field_names(type(value))}


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the field names of a class of values, or of a dataclass, in order."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__

    import dataclasses

    return tuple(field.name for field in dataclasses.fields(kind))


def median(numbers: Sequence[float]) -> float | None:
    """Return the median; None if empty."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
