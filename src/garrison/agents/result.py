"""What an agent says for its pipeline besides success or failure: where to go next, and what later nodes should know.

A command agent writes it as one JSON object into GARRISON_RESULT_FILE; every key may be left out:

    {"status": "success | partial_success | retry | fail | skipped",   (alias `outcome`)
     "preferred_label": "ship",            the label of the edge to follow   (alias `preferred_next_label`)
     "suggested_next_ids": ["deploy"],     nodes to go to, where no edge decides
     "context_updates": {"tests.red": 3},  values that conditions, prompts and later nodes read   (alias `context`)
     "notes": "…", "failure_reason": "…",  (alias `reason`)
     "failure_class": "deterministic"}     then the failure is not retried

A status that is none of these words (`needs_review`) is a label of the agent's own, as if `preferred_label` said it.

The rule of this room: pure; a key of the wrong type is told and nothing of the object counts, other keys are passed
over.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from garrison.pipeline.outcome import FAIL, PARTIAL, RETRY, SKIPPED, SUCCESS, Outcome, normalize_status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ALIASES: Mapping[str, str] = {"outcome": "status", "preferred_next_label": "preferred_label",
                              "context": "context_updates", "reason": "failure_reason"}
TEXTS = ("status", "preferred_label", "notes", "failure_reason", "failure_class")
LANDS = frozenset({SUCCESS, PARTIAL, SKIPPED})
"""What an agent may say of itself for its branch to land."""
MOST = 1 << 20
"""Bytes of the file at most."""


def said(body: Any) -> dict[str, Any]:
    """The known keys of what an agent said, aliases resolved and empty ones left out; ValueError says what is wrong."""
    if not isinstance(body, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004  # what a file says, not what a caller gave
    found: dict[str, Any] = {}
    for key, value in body.items():
        name = ALIASES.get(key, key)
        if name in TEXTS:
            found[name] = _typed(key, value, str, "a text")
        elif name == "context_updates":
            found[name] = _typed(key, value, dict, "an object")
        elif name == "suggested_next_ids":
            found[name] = _typed(key, value, list, "an array of node ids")
            if not all(isinstance(one, str) for one in value):
                raise ValueError(f"{key} is not an array of node ids")
    word = found.pop("status", "") or ""
    if status := normalize_status(word):
        found["status"] = status
    elif word.strip() and not found.get("preferred_label"):
        found["preferred_label"] = word.strip()
    return {name: value for name, value in found.items() if value}


def outcome(told: Mapping[str, Any], *, good: bool, reason: str = "", kind: str = "",
            updates: Mapping[str, Any] | None = None) -> Outcome:
    """What an attempt comes to in its pipeline, from what `said` gave and from whether it was a success: that is a
    success unless the agent says partial or skipped, and a failure unless the agent asks for a retry.

    `reason` and `kind` say why it failed, where the agent names no class of its own; `updates` are context values that
    the agent's own win over.
    """
    word = told.get("status", "")
    status = (word if word in (PARTIAL, SKIPPED) else SUCCESS) if good else RETRY if word == RETRY else FAIL
    return Outcome(status, told.get("preferred_label", ""), tuple(told.get("suggested_next_ids", ())),
                   {**(updates or {}), **told.get("context_updates", {})}, told.get("notes", ""),
                   "" if good else reason, "" if good else told.get("failure_class") or kind)


def _typed(key: str, value: Any, kind: type, what: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{key} is not {what}")
    return value


def read(path: Path) -> dict[str, Any]:
    """What stands in a result file, {} if there is none; ValueError says what is wrong with it."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    if len(raw) > MOST:
        raise ValueError(f"it has more than {MOST >> 20} MiB")
    try:
        return said(json.loads(raw)) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
