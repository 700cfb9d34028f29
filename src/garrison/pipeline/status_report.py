"""Status reports: what a handler, a tool, an agent or a simulation says about its node, read as an outcome. Pure.

One rule holds for every word, however it was written:

    a status word, in any spelling (`passed`, `Failed`)         that status
    another word that an edge of the node asks for              a success of that name: routed, no proof of a goal gate
    any other word (`blocked`, `faild`, `not ok`)               fail: unknown outcome

An edge asks for a word by its condition (`outcome=needs_review`, `preferred_label=needs_review`) or, without a
condition, by its label. A node asks for the words of the conditional nodes right after it, too.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from garrison.errors import UsageError
from garrison.pipeline.outcome import FAIL, STATUSES, SUCCESS, Outcome, normalize_label, normalize_status

UNKNOWN_OUTCOME = "unknown_outcome"
"""Failure class of an attempt whose word nothing asks for."""


class Reading(NamedTuple):
    """Meaning of a status word: a status, the word itself if it is none, and why an unknown one is a failure."""

    status: str
    word: str = ""
    problem: str = ""

    def failure(self, reason: str, failure_class: str) -> tuple[str, str]:
        """Return reason and class of a failure, with the problem of an unknown word before what its reporter said."""
        if not self.problem:
            return reason, failure_class
        return f"{self.problem}: {reason}" if reason else self.problem, failure_class or UNKNOWN_OUTCOME


def read_word(word: str, asked: Container[str] | None) -> Reading:
    """Return what a status word means; `asked` are the words that edges ask for, as `Unit.words`.

    None accepts every word, as earlier versions did.
    """
    status = normalize_status(word)
    if status is not None:
        return Reading(status)
    text = word.strip()
    if asked is None or normalize_label(text) in asked:
        return Reading(SUCCESS, text)
    return Reading(FAIL, "", f"unknown outcome {text!r:.60}; write {', '.join(STATUSES)}, or a word that an edge of "
                             "the node asks for")


def word_outcome(word: str, asked: Container[str] | None) -> Outcome:
    return from_status_file({"outcome": word}, asked)


def from_status_file(data: Mapping[str, Any], asked: Container[str] | None) -> Outcome:
    """Return the outcome that a tool or an agent wrote as JSON: `{"outcome": ..., "preferred_next_label": ...}`.

    `status` and `preferred_label` are read as well. Raise UsageError for data that is no status report.
    """
    word = data["status"] if data.get("outcome") is None and "status" in data else data.get("outcome")
    if not isinstance(word, str) or not word.strip():
        raise UsageError('a status needs "outcome": one of ' + ", ".join(STATUSES))
    label = _text(data, "preferred_label") or _text(data, "preferred_next_label")
    ids = data.get("suggested_next_ids") or ()
    updates = data.get("context_updates") or {}
    if ids and (not isinstance(ids, (list, tuple)) or not all(isinstance(node, str) for node in ids)):
        raise UsageError("suggested_next_ids must be a list of node ids")
    if not isinstance(updates, (dict, Mapping)):
        raise UsageError("context_updates must be an object of keys and values")
    reading = read_word(word, asked)
    reason, failure_class = reading.failure(_text(data, "failure_reason"), _text(data, "failure_class"))
    context = {str(key): value for key, value in updates.items()}
    return Outcome(reading.status, label or reading.word, tuple(ids), context, _text(data, "notes"), reason,
                   failure_class, reading.word)


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{key} must be text")
    return value
