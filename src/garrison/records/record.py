"""Record format: conversion of frozen dataclasses to and from JSON. Pure.

A record class annotates its fields plainly (`str`, `int | None`, `dict[str, object]`, …). Reading checks the type of
each field against its annotation, so that a foreign file is refused by name instead of failing later with a traceback.
Unknown fields of the same schema are ignored, and kept when the record is rewritten; a newer schema is refused, and
the file stays as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from garrison.errors import NewerSchema, RecordCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

T = TypeVar("T")

SCHEMA = 1
"""Version written into every record; raise it when an older garrison would misread a record."""

_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,),
                                       "dict": (dict,), "list": (list,), "None": (type(None),), "tuple": (list, tuple)}
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")


def to_dict(record: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a record by name, after its schema."""
    return {"schema": SCHEMA, **asdict(record)}


def encode(record: DataclassInstance, unknown: Mapping[str, Any] | None = None) -> bytes:
    """Return a record as indented JSON with a final newline; undecodable bytes in its texts are escaped.

    Args:
        unknown: fields of the file that the record replaces, which are not the record's own (`unknown_fields`).
    """
    text = json.dumps({**to_dict(record), **(unknown or {})}, indent=2, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace")


def decode(kind: type[T], data: bytes, where: object) -> T:
    """Read `data` as a record of `kind`; RecordCorrupt and NewerSchema name the file `where`."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordCorrupt(where, f"not JSON ({error})") from error
    if not isinstance(body, dict):
        raise RecordCorrupt(where, "not a JSON object")
    return from_dict(kind, body, where)


def unknown_fields(kind: Any, data: bytes) -> dict[str, Any]:
    """Return the fields of a record's file that `kind` does not have: somebody else's, such as a later garrison's."""
    known = {"schema", *(name for name, *_ in _layout(kind))}
    return {name: value for name, value in json.loads(data).items() if name not in known}


def from_dict(kind: type[T], body: dict[str, Any], where: object) -> T:
    """Build a record of `kind` from a JSON object, checking the type of every field."""
    schema = body.get("schema", SCHEMA)
    if not isinstance(schema, int):
        raise RecordCorrupt(where, "schema is not a number")
    if schema > SCHEMA:
        raise NewerSchema(where, schema, SCHEMA)
    try:
        return kind(**_checked_values(kind, body, where))
    except (TypeError, ValueError) as error:
        raise RecordCorrupt(where, str(error)) from error


def _checked_values(kind: Any, body: dict[str, Any], where: object) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, annotation, allowed, required in _layout(kind):
        if name not in body:
            if required:
                raise RecordCorrupt(where, f"field {name} is missing")
            continue
        value = body[name]
        if not _has_type(value, allowed):
            raise RecordCorrupt(where, f"field {name} should be {annotation}, is {type(value).__name__}")
        values[name] = tuple(value) if annotation.startswith("tuple") else value
    return values


def _has_type(value: object, allowed: tuple[type, ...]) -> bool:
    return isinstance(value, allowed) and not (isinstance(value, bool) and bool not in allowed)


@cache
def _layout(kind: Any) -> list[tuple[str, str, tuple[type, ...], bool]]:
    """Return name, annotation, allowed types and whether it is required, for each field of a record class."""
    layout = []
    for field in fields(kind):
        allowed: tuple[type, ...] = ()
        for option in str(field.type).split(" | "):
            allowed += _TYPES[option.split("[")[0]]
        required = field.default is MISSING and field.default_factory is MISSING
        layout.append((field.name, str(field.type), allowed, required))
    return layout


def is_timestamp(text: str) -> bool:
    """Return whether `text` is a time of a record: RFC 3339 in UTC; garrison writes `2026-01-31T12:00:00.000000Z`."""
    if not _TIMESTAMP.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
