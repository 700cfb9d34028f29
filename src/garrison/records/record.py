"""Records as frozen dataclasses, and their one way to and from JSON. Pure.

A record class lists its fields with plain annotations (`str`, `int | None`, `dict[str, object]`, …). Reading checks
each field's type by that annotation, so a foreign file is refused by name instead of surfacing later as a traceback.
Unknown fields of the same schema are dropped on reading; a newer schema is refused untouched.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from json.encoder import encode_basestring

from garrison.errors import NewerSchema, RecordCorrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")

SCHEMA = 1
"""The version stamped on every record; raise it when an older garrison would misread a record."""

_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,),
                                       "dict": (dict,), "list": (list,), "None": (type(None),), "tuple": (list, tuple)}
_DIGITS = str.maketrans("123456789", "000000000")


def to_dict(record: Any) -> dict[str, Any]:
    """A record's fields by name, with its schema first; nested records and tuples become JSON's shapes."""
    body = {field.name: _plain(getattr(record, field.name)) for field in fields(record)}
    return {"schema": SCHEMA, **body}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def encode(record: Any) -> bytes:
    """A record as indented JSON, ending with a newline; undecodable bytes that came in with a text are escaped."""
    lines = [f'  "{field.name}": {_value(getattr(record, field.name), _INNER)}' for field in fields(record)]
    text = f'{{\n  "schema": {SCHEMA},\n' + ",\n".join(lines) + "\n}\n"
    return text.encode(errors="backslashreplace")


_json = json.JSONEncoder(ensure_ascii=False).encode
"""One line. With an indent Python's own encoder is used instead of the one in C: a third of all that a write costs."""
_PLAIN = {None: "null", True: "true", False: "false"}
_INNER = "\n    "


def _value(value: Any, pad: str) -> str:
    """A value as `json.dumps` with an indent of two would show it where new lines begin with `pad`."""
    kind = type(value)
    if kind is str:  # nearly all are one of these, and cost a tenth of an encoder's pains
        return encode_basestring(value)
    if kind is int:
        return str(value)
    if value is None or kind is bool:
        return _PLAIN[value]
    value = _plain(value)
    if not value or not isinstance(value, (dict, list)):
        return _json(value)
    if isinstance(value, list):
        return f"[{pad}" + f",{pad}".join([_value(item, pad + "  ") for item in value]) + f"{pad[:-2]}]"
    if any(type(key) is not str for key in value):
        return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", pad[:-2])  # within a text it is escaped
    items = [f"{encode_basestring(key)}: {_value(item, pad + '  ')}" for key, item in value.items()]
    return f"{{{pad}" + f",{pad}".join(items) + f"{pad[:-2]}}}"


def decode(kind: type[T], data: bytes, where: object) -> T:
    """Read `data` as a record of `kind`; `where` names the file in RecordCorrupt and NewerSchema."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordCorrupt(where, f"not JSON ({error})") from error
    if not isinstance(body, dict):
        raise RecordCorrupt(where, "not a JSON object")
    return from_dict(kind, body, where)


def from_dict(kind: type[T], body: dict[str, Any], where: object) -> T:
    """Build a record of `kind` from JSON's shapes, checking every field's type."""
    schema = body.get("schema", SCHEMA)
    if not isinstance(schema, int):
        raise RecordCorrupt(where, "schema is not a number")
    if schema > SCHEMA:
        raise NewerSchema(where, schema, SCHEMA)
    try:
        return kind(**_values(kind, body, where))
    except (TypeError, ValueError) as error:
        raise RecordCorrupt(where, str(error)) from error


_fitting: dict[tuple[object, ...], tuple[str, ...]] = {}
"""A class, and the names and types of a body that fits it → the fields it gives. Nothing else is asked of types, so
what fitted once fits again; only for classes without tuples."""
_MOST_SHAPES = 1000


def _values(kind: type[Any], body: dict[str, Any], where: object) -> dict[str, Any]:
    """The values of a record's fields; RecordCorrupt unless every one is of its field's type."""
    shape = (kind, *body, *map(type, body.values()))
    if names := _fitting.get(shape):
        return {name: body[name] for name in names}
    values = _checked(kind, body, where)
    if len(_fitting) < _MOST_SHAPES and tuple not in map(type, values.values()):
        _fitting[shape] = tuple(values)
    return values


def _checked(kind: type[Any], body: dict[str, Any], where: object) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name not in body:
            if field.default is MISSING and field.default_factory is MISSING:
                raise RecordCorrupt(where, f"field {field.name} is missing")
            continue
        value = body[field.name]
        if not _fits(value, str(field.type)):
            raise RecordCorrupt(where, f"field {field.name} should be {field.type}, is {type(value).__name__}")
        values[field.name] = tuple(value) if str(field.type).startswith("tuple") else value
    return values


def is_timestamp(text: str) -> bool:
    """Whether `text` is a time as records hold them, `2026-01-31T12:00:00.000000Z`."""
    if text[:17] in _minutes:
        return _WITHIN(text, 17) is not None
    good = (text.translate(_DIGITS) == "0000-00-00T00:00:00.000000Z" and text[17:19] <= "60"
            and text[14:16] < "60" and text[11:13] < "24" and _is_day(text[:10]))
    if good and len(_minutes) < _MOST_SHAPES:
        _minutes.add(text[:17])
    return good


_WITHIN = re.compile(r"(?:[0-5][0-9]|60)\.[0-9]{6}Z").fullmatch
_minutes: set[str] = set()
"""Minutes that were looked at: what a home's records name are of few, and the rest of a time costs half as much."""


def _is_day(text: str) -> bool:
    """Whether these digits are a day of the calendar."""
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    february = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    days = (0, 31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return 1 <= month <= 12 and 1 <= day <= days[month]


def _fits(value: object, annotation: str) -> bool:
    for option in annotation.split(" | "):
        allowed = _TYPES[option.split("[")[0]]
        if isinstance(value, allowed) and not (isinstance(value, bool) and bool not in allowed):
            return True
    return False
