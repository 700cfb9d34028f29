"""References from a step's arguments to earlier results: `${step}`, `${step.key}`, `${step.items[0].name}`. Pure.

A value that consists of one reference keeps the type of the referenced value; within other text a reference becomes
text (JSON, if it is not text). A key that contains a dot or a bracket is quoted: `${step["a.b"]}`. `$${` is a literal
`${`. `${inputs.NAME}` is an input of the workflow, `${env.NAME}` an environment variable of the process that runs it
(unless a step is named env).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from difflib import get_close_matches

from garrison.workflow.errors import MissingReference, UnavailableResult, WorkflowValidationError

INPUTS, ENVIRONMENT = "inputs", "env"
_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_PART = re.compile(r"""\[(-?\d+)\]|\[(?:"([^"]*)"|'([^']*)')\]|\.?([^.\[\]]+)""")


def references(value: object) -> Iterator[str]:
    """Yield every reference in JSON data, without its `${}`."""
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            if match.group(2) is not None:
                yield match.group(2).strip()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)


def find_unclosed(value: object) -> str:
    """Return a `${` without a closing brace, with the text that follows it; '' if there is none."""
    if isinstance(value, str):
        rest = _REFERENCE.sub(lambda match: " " * len(match[0]), value)
        at = rest.find("${")
        return value[at:at + 40] if at >= 0 else ""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for one in parts if (found := find_unclosed(one))), "")


def split(reference: str, steps: Container[str]) -> tuple[str, list[str | int]]:
    """Return (the step or `inputs`, the path into it); WorkflowValidationError if it names no step or cannot be parsed.

    A step's name may contain dots and spaces: the longest matching name wins.
    """
    places = [match.start() for match in re.finditer(r"[.\[]", reference)] + [len(reference)]
    # The longest first: with steps `a` and `a.b`, `${a.b.c}` means the key c of the second.
    for place in sorted(places, reverse=True):
        name = reference[:place]
        if name in steps or name in (INPUTS, ENVIRONMENT):
            return name, _path(reference[place:], reference)
    raise WorkflowValidationError(f"${{{reference:.80}}} names no step; {_suggest(reference, steps)}")


def _suggest(reference: str, steps: Container[str]) -> str:
    """Return a hint: the step with the most similar name, or the syntax."""
    names = list(steps) if isinstance(steps, Iterable) else []
    near = get_close_matches(re.split(r"[.\[]", reference)[0], [str(name) for name in names], 1, 0.6)
    return f"did you mean ${{{near[0]}}}?" if near else "write ${STEP.KEY}, ${inputs.NAME} or ${env.NAME}"


def _path(rest: str, reference: str) -> list[str | int]:
    path: list[str | int] = []
    place = 0
    while place < len(rest):
        match = _PART.match(rest, place)
        if match is None or match.end() == place:
            raise WorkflowValidationError(f"${{{reference:.80}}} cannot be parsed; write ${{STEP.KEY}} or "
                                          "${STEP[0].KEY}")
        path.append(int(match[1]) if match[1] is not None else match[match.lastindex or 0])
        place = match.end()
    return path


def resolve(value: object, results: Mapping[str, object], unavailable: Mapping[str, str]) -> object:
    """Return the value with its references replaced; `unavailable`: why a step has no result.

    Raises UnavailableResult for a reference to such a step, MissingReference for a key or index that does not exist.
    """
    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        if whole is not None and whole.group(2) is not None:
            return resolve_reference(whole.group(2).strip(), results, unavailable)
        return _REFERENCE.sub(lambda match: "${" if match.group(1) else _text(
            resolve_reference(match.group(2).strip(), results, unavailable)), value)
    if isinstance(value, Mapping):
        return {key: resolve(item, results, unavailable) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, results, unavailable) for item in value]
    return value


def resolve_reference(reference: str, results: Mapping[str, object], unavailable: Mapping[str, str]) -> object:
    """Return the value of one reference."""
    step, path = split(reference, {*results, *unavailable})
    if step in unavailable and step not in results:
        raise UnavailableResult(f"${{{reference}}}: {step} {unavailable[step]}")
    value = results.get(step, {})
    path_so_far = step
    for part in path:
        value, path_so_far = _enter(value, part, reference, path_so_far), f"{path_so_far}.{part}"
    return value


def _enter(value: object, part: str | int, reference: str, path: str) -> object:
    index = part if isinstance(part, int) else int(part) if part.lstrip("-").isdigit() else None
    if isinstance(value, Mapping) and str(part) in value:
        return value[str(part)]
    if isinstance(value, list) and index is not None and -len(value) <= index < len(value):
        return value[index]
    if isinstance(value, Mapping):
        has = ", ".join(str(key) for key in list(value)[:10]) or "nothing"
        raise MissingReference(f"${{{reference}}}: {path} has no {part}; it has {has}")
    if isinstance(value, list):
        raise MissingReference(f"${{{reference}}}: {path} has no {part}; it is a list of {len(value)}")
    raise MissingReference(f"${{{reference}}}: {path} is {value!r:.60}, which has no parts")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
