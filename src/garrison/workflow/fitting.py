"""Whether a step's arguments fit its tool, as far as that can be seen before it runs. Pure.

What a tool takes is known from a Python function's signature, or from the schema that an MCP server told (`listed`).
Types are compared where both sides are plain: a value that is a reference may become anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from garrison.workflow.models import WORDS
from garrison.workflow.references import references

_JSON: Mapping[str, type] = {"string": str, "boolean": bool, "integer": int, "number": float, "array": list,
                             "object": dict}
Kinds = tuple[type, ...]
"""The types that an argument may have; none: whatever."""


def misfit(arguments: Mapping[str, Any], tool: Any) -> str:
    """Why the arguments do not fit the tool; '' if they do, as far as can be seen before it runs."""
    known, needed, open_ = _listed(tool.listed) if hasattr(tool, "listed") else _signed(tool)
    unknown = [] if open_ else [name for name in arguments if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known.keys() - arguments.keys(), 1, 0.6)
        meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(sorted(known)) or 'nothing'}"
        return f"takes no {unknown[0]}; {meant}"
    if missing := sorted(needed - set(arguments)):
        return f"needs {missing[0]}"
    wrong = next((name for name, value in arguments.items() if not _may_be(value, known.get(name, ()))), None)
    return f"takes {words(known[wrong])} as {wrong}, not {arguments[wrong]!r:.60}" if wrong is not None else ""


def words(kinds: Kinds) -> str:
    """Types in a person's words."""
    return " or ".join(WORDS[kind] for kind in kinds)


def _listed(tool: Any) -> tuple[dict[str, Kinds], set[str], bool]:
    """Of a server's tool: its arguments with their types, those it needs, whether it takes others."""
    schema = getattr(tool, "input_schema", None) or {}
    properties = schema.get("properties", {})
    known = {name: _of_schema(one) for name, one in properties.items()}
    return known, set(schema.get("required", ())), schema.get("additionalProperties", True) is not False and not known


def _of_schema(one: Any) -> Kinds:
    kind = _JSON.get(str(one.get("type"))) if isinstance(one, Mapping) else None
    return (kind,) if kind else ()


def _signed(tool: Callable[..., Any]) -> tuple[dict[str, Kinds], set[str], bool]:
    """Of a function, the same."""
    try:
        parameters = list(_signature(tool).parameters.values())
    except (TypeError, ValueError):  # written in C, and says nothing of itself
        return {}, set(), True
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return ({one.name: _of_annotation(one.annotation) for one in named},
            {one.name for one in named if one.default is one.empty},
            any(one.kind is one.VAR_KEYWORD for one in parameters))


def _signature(tool: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(tool, eval_str=True)
    except (NameError, SyntaxError, AttributeError):  # an annotation that names what only a type checker loads
        return inspect.signature(tool)


def _of_annotation(annotation: Any) -> Kinds:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [get_origin(part) or part for part in parts if part is not NoneType]
    return tuple(kinds) if all(kind in WORDS for kind in kinds) else ()


def _may_be(value: Any, kinds: Kinds) -> bool:
    if not kinds or value is None or (isinstance(value, str) and any(references(value))):
        return True
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)
