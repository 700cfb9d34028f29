"""Report of an agent to its pipeline: where to go next, and values for later nodes.

A command agent writes it as one JSON object to GARRISON_RESULT_FILE; every key is optional:

    {"status": "success | partial_success | nothing_to_do | retry | fail | skipped",   (alias `outcome`)
     "preferred_label": "ship",            label of the edge to follow   (alias `preferred_next_label`)
     "suggested_next_ids": ["deploy"],     nodes to go to if no edge decides "context_updates": {"tests.red": 3},
     values that conditions, prompts and later nodes read   (alias `context`) "notes": "…", "failure_reason": "…",
     (alias `reason`) "failure_class": "deterministic"}     a failure of this class is not retried

Other statuses are handled as everywhere (`pipeline.outcome`): a word that an edge of the node tests for
(`needs_review`) is routed, any other is a failure. A known key of the wrong type makes the whole object invalid;
unknown keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from garrison.pipeline.outcome import FAIL, PARTIAL, RETRY, SKIPPED, SUCCESS, Outcome, read_word
from garrison.system import untrusted

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

    from garrison.agents.base import AgentReport


ALIASES: Mapping[str, str] = {"outcome": "status", "preferred_next_label": "preferred_label",
                              "context": "context_updates", "reason": "failure_reason"}
TEXTS = ("status", "preferred_label", "notes", "failure_reason", "failure_class")
NOTHING_TO_DO = "nothing_to_do"
"""Status of an agent that found its task already done; its notes contain the proof."""
LANDING = frozenset({SUCCESS, PARTIAL, SKIPPED, NOTHING_TO_DO})
"""Statuses for which an agent's branch may land, or need not."""
MAX_BYTES = 1 << 20
"""Maximum size of a result file."""


def parse_report(body: Any, asked: Container[str] | None = ()) -> AgentReport:
    """Return the known keys of a report without empty ones; ValueError names the problem. `asked` are the words that
    edges of the node test for, as in `read_word`.
    """
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  # a file's content, not an argument's type
    report: dict[str, Any] = {}
    for key, value in body.items():
        name = ALIASES.get(key, key)
        if name in TEXTS:
            report[name] = _typed(key, value, str, "a text")
        elif name == "context_updates":
            report[name] = _typed(key, value, dict, "an object")
        elif name == "suggested_next_ids":
            report[name] = _typed(key, value, list, "an array of node ids")
            if not all(isinstance(node, str) for node in value):
                raise ValueError(f"{key} is not an array of node ids")
    if (word := report.pop("status", "") or "").strip() == NOTHING_TO_DO and NOTHING_TO_DO not in (asked or ()):
        report["status"] = NOTHING_TO_DO
    elif word.strip():
        reading = read_word(word, asked)
        report |= {"status": reading.status, "word": reading.word,
                   "preferred_label": report.get("preferred_label") or reading.word}
        reason, failure_class = reading.failure(report.get("failure_reason") or "", report.get("failure_class") or "")
        report |= {"failure_reason": reason, "failure_class": failure_class}
    return cast("AgentReport", {name: value for name, value in report.items() if value})


def read_report(path: Path, asked: Container[str] | None = ()) -> AgentReport:
    """Return the report in a result file, empty if there is none; ValueError names the problem.

    `asked` as in `parse_report`.
    """
    try:
        raw = untrusted.read(path.parent, path.name, MAX_BYTES)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    except untrusted.UnsafeFile as error:
        raise ValueError(f"it {error.why}") from error
    if raw is None:
        return {}
    try:
        return parse_report(json.loads(raw), asked) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error


def to_pipeline_outcome(report: Mapping[str, Any], *, succeeded: bool, reason: str = "", failure_class: str = "",
                        updates: Mapping[str, Any] | None = None) -> Outcome:
    """Combine an attempt's result with the agent's report into an outcome for the pipeline.

    A success stays one unless the agent reports partial or skipped; a failure stays one unless the agent asks for a
    retry.

    Args:
        reason: why it failed.
        failure_class: class of the failure if the agent names none.
        updates: context values; the agent's own take precedence.
    """
    word = report.get("status", "")
    result, exceptions = (SUCCESS, (PARTIAL, SKIPPED)) if succeeded else (FAIL, (RETRY,))
    status = word if word in exceptions else result
    return Outcome(status, report.get("preferred_label", ""), tuple(report.get("suggested_next_ids", ())),
                   {**(updates or {}), **report.get("context_updates", {})}, report.get("notes", ""),
                   "" if succeeded else reason, "" if succeeded else report.get("failure_class") or failure_class,
                   report.get("word", "") if succeeded else "")


def _typed(key: str, value: object, kind: type, description: str) -> object:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{key} is not {description}")
    return value


# ---- verdict ---------------------------------------------------------------------------------------------------------

# Verdict of a validator: its form as the call of a tool, a request to the agent's socket, or a result block. Pure.


KEYS = ("verdict", "reason", "criteria")
"""Keys of a verdict."""


def verdict_problem(arguments: Mapping[str, object]) -> str:
    """Return why a verdict is incomplete or contradictory; '' if it is valid."""
    criteria = arguments.get("criteria")
    if arguments.get("verdict") not in ("pass", "fail") or not str(arguments.get("reason") or "").strip():
        return "say verdict=pass or verdict=fail, and a reason"
    if not isinstance(criteria, list) or not criteria or not all(isinstance(item, dict) for item in criteria):
        return "say at least one criterion, each with criterion, met and evidence"
    proven = all(item.get("met") is True and item.get("evidence") for item in criteria)
    if arguments["verdict"] == "pass" and not proven:
        return "a pass needs every criterion met, with evidence; say verdict=fail, or what proves the rest"
    return ""


def to_report(arguments: Mapping[str, object]) -> dict[str, object]:
    return {"status": "success" if arguments["verdict"] == "pass" else "failure",
            "summary": str(arguments["reason"]), "criteria": arguments["criteria"]}
