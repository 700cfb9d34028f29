"""Records: values stored as JSON, with the functions that read and write them. Pure.

A record class annotates its fields. Reading checks each value against its annotation, so that a foreign file is refused
with its name instead of failing later with a traceback. Unknown fields of the same schema are ignored, and kept when
the record is rewritten; a newer schema is refused, and the file stays as it is. The conversion is msgspec's. The JSON
is the standard library's, since file names may contain lone surrogates, which `msgspec.json` refuses.
"""

from __future__ import annotations

import copy
import json
import re
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from garrison.errors import NewerSchema, RecordCorrupt
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

SCHEMA = 1
"""Version written into every record; raise it when an older garrison would misread a record."""
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")


class Record(Value, omit_defaults=True):
    """A record that omits fields with their default value, unless they are `stated`."""


def stated(default: T) -> T:
    """Declare a field that is written even if it has its default."""
    return msgspec.field(default_factory=partial(copy.copy, default))


def to_dict(record: object) -> dict[str, object]:
    return {"schema": SCHEMA, **asdict(record)}


def encode(record: object, unknown: Mapping[str, object] | None = None) -> bytes:
    """Return a record as indented JSON with a final newline; undecodable bytes in its texts are escaped.

    Args:
        unknown: fields of the replaced file that the record does not have (`unknown_fields`).
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


def unknown_fields(kind: type[msgspec.Struct], data: bytes) -> dict[str, object]:
    """Return the fields of a record's file that `kind` does not have, such as a later garrison's."""
    known = {"schema", *kind.__struct_encode_fields__}
    return {name: value for name, value in json.loads(data).items() if name not in known}


def from_dict(kind: type[T], body: Mapping[str, object], where: object) -> T:
    """Build a record of `kind` from a JSON object, checking the type of every field."""
    schema = body.get("schema", SCHEMA)
    # First of all: a record of a newer schema may lack the fields that this one requires.
    if not isinstance(schema, int):
        raise RecordCorrupt(where, "schema is not a number")
    if schema > SCHEMA:
        raise NewerSchema(where, schema, SCHEMA)
    try:
        return from_data(kind, body)
    except ValueError as error:
        raise RecordCorrupt(where, str(error)) from error


def from_data(kind: type[T], data: object) -> T:
    """Build a record of `kind` from JSON values; ValueError says which field is missing or has another type."""
    try:
        return msgspec.convert(data, kind, dec_hook=_read_path)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(str(error)) from error


def _read_path(kind: type[Any], value: object) -> object:
    """Convert text to a path; msgspec refuses every other mismatch."""
    return Path(value) if kind is Path and isinstance(value, str) else value


def read_foreign(kind: type[T], data: object) -> T:
    """Build a value of `kind` from foreign JSON values, where null means that a field is absent.

    Texts are made encodable as UTF-8. ValueError says which field is missing or has another type.
    """
    try:
        return msgspec.convert(_tidy(data), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _tidy(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tidy(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_tidy(each) for each in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def is_timestamp(text: str) -> bool:
    """Return whether `text` is a time of a record: RFC 3339 in UTC; garrison writes `2026-01-31T12:00:00.000000Z`."""
    if not _TIMESTAMP.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
