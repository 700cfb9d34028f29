"""Outcome of a node, result of a run, and the status words that users and agents write. Pure.

A status is one of five words. Other spellings are normalized when an outcome is created, and unknown words are refused
there, so that no other code compares spellings. Reports of handlers, tools, agents and simulations on their node are
all read by one rule:

    a status word, in any spelling (`passed`, `Failed`)         that status
    another word that an edge of the node asks for              a success of that name: routed, no proof of a goal gate
    any other word (`blocked`, `faild`, `not ok`)               fail: unknown outcome

An edge asks for a word by its condition (`outcome=needs_review`, `preferred_label=needs_review`) or, without a
condition, by its label. A node also asks for the words of the conditional nodes right after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from garrison.errors import UsageError
from garrison.records.record import Record
from garrison.values import Value, fields_of

SUCCESS, PARTIAL, RETRY, FAIL, SKIPPED = "success", "partial_success", "retry", "fail", "skipped"

STATUSES = (SUCCESS, PARTIAL, RETRY, FAIL, SKIPPED)
"""Every status of an outcome, the best first."""

GOOD = (SUCCESS, PARTIAL, SKIPPED)
"""Statuses after which a run continues normally."""

DETERMINISTIC = "deterministic"
"""Failure class of an attempt that would fail the same way again, so that it is not retried."""

RESPONSE_CHARS = 200
"""Characters of an agent's response in the context's `last_response`."""

LAST_FAILURE = ("last_failure", "last_failed_node")
"""Keys of a context with the reason and the node of the latest failure."""
ENGINE_KEYS = ("outcome", "preferred_label", "failure_reason", "failure_class", "last_stage", *LAST_FAILURE,
               "current_node")
"""Keys of a context that the engine itself writes, in addition to those below `graph.` and `internal.`."""

STATUS_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("success", "succeeded", "succeed", "successful", "ok", "pass", "passed", "done", "complete",
                     "completed"), SUCCESS),
    **dict.fromkeys(("partial_success", "partial", "partially", "partial_succeeded"), PARTIAL),
    **dict.fromkeys(("retry", "retrying"), RETRY),
    **dict.fromkeys(("fail", "failed", "failure", "error", "errored"), FAIL),
    **dict.fromkeys(("skipped", "skip"), SKIPPED),
}
"""Word in a report or condition → its status."""

_ACCELERATOR = re.compile(r"\[\s*\w{1,3}\s*\]\s*(?=\S)|\w{1,2}\)\s*(?=\S)|\w\s+[-–—:]\s+(?=\S)|\w:\s+(?=\S)")


def normalize_status(word: object) -> str | None:
    """Return the status that `word` means in any case and with any separator; None for an unknown word."""
    status = STATUS_WORDS.get(word) if isinstance(word, str) else None
    return status or STATUS_WORDS.get(str(word).strip().lower().replace("-", "_").replace(" ", "_"))


def normalize_label(label: str) -> str:
    """Return a label as it is compared: without accelerator (`[Y] Yes`, `Y) Yes`, `Y - Yes`), extra spaces and case."""
    bare = label.strip()
    match = _ACCELERATOR.match(bare)
    return " ".join(bare[match.end() if match else 0:].split()).casefold()


class Budget(StrEnum):
    """Budget that a run has used up: codes of its reason."""

    STEPS = "max_steps_exceeded"
    DURATION = "max_pipeline_duration_exceeded"
    ABORTED = "aborted"
    """No budget: it was stopped."""


class Outcome(Record):
    """Result of one attempt at a node. It decides routing, and its updates go into the context.

    `status` is one of STATUSES; other spellings are normalized, unknown words raise UsageError. `preferred_label` names
    the edge to follow and `suggested_next_ids` the nodes to go to, best first; both matter only where no condition
    decides. `context_updates` maps context keys to JSON values. `failure_class` is free text; "deterministic" failures
    are not retried. `word` is a word that an edge asks for instead of a status; that is not a plain success:
    it neither matches `outcome=success` nor satisfies a goal gate.
    """

    status: str
    preferred_label: str = ""
    suggested_next_ids: tuple[str, ...] = ()
    context_updates: Mapping[str, Any] = msgspec.field(default_factory=dict)
    notes: str = ""
    failure_reason: str = ""
    failure_class: str = ""
    word: str = ""

    def __post_init__(self) -> None:
        status = normalize_status(self.status)
        if status is None:
            raise UsageError(f"{self.status!r:.60} is not a status; write {', '.join(STATUSES)}")
        if status != self.status:
            # The struct is frozen; only here, before it is visible to other code, may it be corrected.
            msgspec.structs.force_setattr(self, "status", status)
        if type(self.suggested_next_ids) is not tuple:
            # tuple("ship") would give its four letters.
            ids = self.suggested_next_ids
            msgspec.structs.force_setattr(self, "suggested_next_ids", (ids,) if isinstance(ids, str) else tuple(ids))

    @property
    def failed(self) -> bool:
        """Return whether it failed; RETRY asks for another attempt and is not a failure."""
        return self.status == FAIL

    @property
    def name(self) -> str:
        """Return the word that edges ask for: its own, else its status."""
        return self.word or self.status

    @property
    def good(self) -> bool:
        return self.status in GOOD


class RunResult(Value):
    """End of a run: status `success`, `fail` or `waiting`, the reason, and everything that was done.

    `completed_nodes` names every visit that ended, in order; `node_outcomes`: the latest outcome of each node.
    `how`: how to continue a waiting run; `resumable`: whether a failed one can continue (`budget`, `again`).
    """

    status: str
    reason: str = ""
    completed_nodes: list[str] = msgspec.field(default_factory=list)
    node_outcomes: dict[str, Outcome] = msgspec.field(default_factory=dict)
    steps: int = 0
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    run: str = ""
    detail: str = ""
    how: str = ""
    resumable: str = ""

    def to_data(self) -> dict[str, object]:
        """Return the result as JSON values; `node_outcomes` maps a node to its status, or to its own word."""
        return {**fields_of(self), "node_outcomes": {node: outcome.word or outcome.status
                                                   for node, outcome in self.node_outcomes.items()}}


def check_json(values: Mapping[str, object], owner: str = "context") -> dict[str, object]:
    """Return a copy of JSON values; UsageError, naming the key, if one changes when it is written and read back."""
    copies = dict(values)
    for key, value in values.items():
        if type(key) is not str:
            raise UsageError(f"{owner}: the key {key!r:.60} is not text")
        if value is None or type(value) in (str, bool, int):
            continue
        try:
            # Compared after a round trip, not by type: a tuple comes back as a list, the key 1 as "1". A resumed run
            # would see another value than one that was not interrupted.
            copies[key] = json.loads(json.dumps(value, allow_nan=False))
            is_same = copies[key] == value
        except (TypeError, ValueError, RecursionError):
            is_same = False
        if not is_same:
            raise UsageError(f"{owner}: the value of {key!r:.60} ({type(value).__name__}) cannot be stored as JSON; "
                             "use text, numbers, true/false, null, lists and objects with text keys")
    return copies


# ---- reports ---------------------------------------------------------------------------------------------------------


UNKNOWN_OUTCOME = "unknown_outcome"
"""Failure class of an attempt with a word for which no edge asks."""


class Reading(NamedTuple):
    """Meaning of a status word: a status, the word itself if it is not one, and why an unknown one is a failure."""

    status: str
    word: str = ""
    problem: str = ""

    def failure(self, reason: str, failure_class: str) -> tuple[str, str]:
        """Return reason and class of a failure, with the problem of an unknown word before the reported reason."""
        if not self.problem:
            return reason, failure_class
        return f"{self.problem}: {reason}" if reason else self.problem, failure_class or UNKNOWN_OUTCOME


def read_word(word: str, asked: Container[str] | None) -> Reading:
    """Return the meaning of a status word; `asked`: the words that edges ask for, as in `Unit.words`.

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


def from_status_file(data: Mapping[str, object], asked: Container[str] | None) -> Outcome:
    """Return the outcome that a tool or an agent wrote as JSON: `{"outcome": ..., "preferred_next_label": ...}`.

    `status` and `preferred_label` are also read. Raise UsageError for data that is not a status report.
    """
    # Agents write either; `outcome` is the specification's name, and null there does not hide the other.
    word = data["status"] if data.get("outcome") is None and "status" in data else data.get("outcome")
    if not isinstance(word, str) or not word.strip():
        raise UsageError('a status needs "outcome": one of ' + ", ".join(STATUSES))
    label = _text(data, "preferred_label") or _text(data, "preferred_next_label")
    ids: Any = data.get("suggested_next_ids") or ()
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


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{key} must be text")
    return value
