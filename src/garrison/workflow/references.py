"""References from a step's arguments to earlier results: `${step}`, `${step.key}`, `${step.items[0].name}`. Pure.

A value that is a reference and nothing else keeps the type of what it names; within other text it becomes text (JSON,
for what is no text). A key with a dot or a bracket of its own stands in quotes: `${step["a.b"]}`. `$${` is `${` itself.
`${inputs.NAME}` names an input of the workflow, `${env.NAME}` a variable of the environment of whoever runs it (unless
a step is called env).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from garrison.workflow.errors import LostReference, MissingReference, WorkflowValidationError

INPUTS, ENVIRONMENT = "inputs", "env"
_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_PART = re.compile(r"""\[(-?\d+)\]|\[(?:"([^"]*)"|'([^']*)')\]|\.?([^.\[\]]+)""")


def references(value: Any) -> Iterator[str]:
    """Every reference in a value of JSON's shapes, without its `${}`."""
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            if match.group(2) is not None:
                yield match.group(2).strip()
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from references(one)


def unclosed(value: Any) -> str:
    """A `${` that no brace closes, with what follows it, in a value of JSON's shapes; '' if there is none."""
    if isinstance(value, str):
        rest = _REFERENCE.sub(lambda match: " " * len(match[0]), value)
        at = rest.find("${")
        return value[at:at + 40] if at >= 0 else ""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for one in parts if (found := unclosed(one))), "")


def split(reference: str, steps: Container[str]) -> tuple[str, list[str | int]]:
    """(the step or `inputs`, the path into it); WorkflowValidationError if it cannot be read or names nobody.

    A step's name may have dots and spaces: the longest name that fits is meant.
    """
    places = [match.start() for match in re.finditer(r"[.\[]", reference)] + [len(reference)]
    for place in sorted(places, reverse=True):
        name = reference[:place]
        if name in steps or name in (INPUTS, ENVIRONMENT):
            return name, _path(reference[place:], reference)
    raise WorkflowValidationError(f"${{{reference:.80}}} names no step; {_meant(reference, steps)}")


def _meant(reference: str, steps: Container[str]) -> str:
    """The step that was probably meant."""
    names = list(steps) if isinstance(steps, Iterable) else []
    near = get_close_matches(re.split(r"[.\[]", reference)[0], [str(one) for one in names], 1, 0.6)
    return f"did you mean ${{{near[0]}}}?" if near else "write ${STEP.KEY}, ${inputs.NAME} or ${env.NAME}"


def _path(rest: str, reference: str) -> list[str | int]:
    found: list[str | int] = []
    place = 0
    while place < len(rest):
        match = _PART.match(rest, place)
        if match is None or match.end() == place:
            raise WorkflowValidationError(f"${{{reference:.80}}} cannot be read; write ${{STEP.KEY}} or "
                                          "${STEP[0].KEY}")
        found.append(int(match[1]) if match[1] is not None else match[match.lastindex or 0])
        place = match.end()
    return found


def resolve(value: Any, results: Mapping[str, Any], lost: Mapping[str, str]) -> Any:
    """The value with its references replaced; `lost` says why a step has no result.

    LostReference for one of those, MissingReference for a key or index that is not there.
    """
    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        if whole is not None and whole.group(2) is not None:
            return look_up(whole.group(2).strip(), results, lost)
        return _REFERENCE.sub(lambda match: "${" if match.group(1) else _text(
            look_up(match.group(2).strip(), results, lost)), value)
    if isinstance(value, Mapping):
        return {key: resolve(one, results, lost) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(one, results, lost) for one in value]
    return value


def look_up(reference: str, results: Mapping[str, Any], lost: Mapping[str, str]) -> Any:
    """What one reference names."""
    step, path = split(reference, {*results, *lost})
    if step in lost and step not in results:
        raise LostReference(f"${{{reference}}}: {step} {lost[step]}")
    found = results.get(step, {})
    done = step
    for part in path:
        found, done = _enter(found, part, reference, done), f"{done}.{part}"
    return found


def _enter(found: Any, part: str | int, reference: str, done: str) -> Any:
    index = part if isinstance(part, int) else int(part) if part.lstrip("-").isdigit() else None
    if isinstance(found, Mapping) and str(part) in found:
        return found[str(part)]
    if isinstance(found, list) and index is not None and -len(found) <= index < len(found):
        return found[index]
    if isinstance(found, Mapping):
        has = ", ".join(str(key) for key in list(found)[:10]) or "nothing"
        raise MissingReference(f"${{{reference}}}: {done} has no {part}; it has {has}")
    if isinstance(found, list):
        raise MissingReference(f"${{{reference}}}: {done} has no {part}; it is a list of {len(found)}")
    raise MissingReference(f"${{{reference}}}: {done} is {found!r:.60}, which has nothing within")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
