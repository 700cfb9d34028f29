"""Values in a forge's JSON: an answer that is not as documented is `Unreachable`, never a traceback. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from garrison.forge.errors import Unreachable


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreachable(f"the forge sent {type(value).__name__} instead of an object")
    return value


def as_objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Unreachable(f"the forge sent {type(value).__name__} instead of a list")
    return [as_object(each) for each in value]


def text(body: dict[str, Any], *path: str) -> str:
    """Return a text below `path`, which UTF-8 can hold; empty if it is absent or null."""
    value = _below(body, path)
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def number(body: dict[str, Any], *path: str) -> int:
    """Return a whole number below `path`, which must be there."""
    value = _below(body, path)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unreachable(f"the forge sent no number {'.'.join(path)}")
    return value


def optional_number(body: dict[str, Any], *path: str) -> int | None:
    """Return a whole number below `path`; None if it is absent, null or zero."""
    value = _below(body, path)
    return value if isinstance(value, int) and value else None


def flag(body: dict[str, Any], *path: str) -> bool:
    return _below(body, path) is True


def objects(body: dict[str, Any], *path: str) -> list[dict[str, Any]]:
    """Return the objects of a list below `path`; none if it is absent or null."""
    value = _below(body, path)
    return as_objects(value) if value is not None else []


def texts(body: dict[str, Any], key: str, field: str = "") -> tuple[str, ...]:
    """Return a list of texts, or the texts `field` of a list of objects."""
    value = body.get(key)
    values = value if isinstance(value, list) else []
    found = (each.get(field) if isinstance(each, dict) else each for each in values)
    return tuple(each for each in found if isinstance(each, str))


def moment(body: dict[str, Any], *path: str) -> float:
    """Return a time below `path` in seconds since 1970; 0 if it is absent or not one."""
    try:
        parsed = datetime.fromisoformat(text(body, *path))
    except ValueError:
        return 0.0
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _below(body: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body
