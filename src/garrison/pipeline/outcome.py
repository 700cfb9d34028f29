"""What came of running a node: one small value, and the words that people and agents use for its status. Pure.

The rule of this room: a status is one of five words. Whatever else somebody wrote is folded when the outcome is made;
a word nobody knows is refused there, so that nothing behind this door ever compares spellings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from garrison.errors import UsageError

SUCCESS, PARTIAL, RETRY, FAIL, SKIPPED = "success", "partial_success", "retry", "fail", "skipped"

STATUSES = (SUCCESS, PARTIAL, RETRY, FAIL, SKIPPED)
"""Every status an outcome may have, the best first."""

DETERMINISTIC = "deterministic"
"""The failure class that says: the same attempt would fail again, so it is not tried again."""

_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("success", "succeeded", "succeed", "successful", "ok", "pass", "passed", "done", "complete",
                     "completed"), SUCCESS),
    **dict.fromkeys(("partial_success", "partial", "partially", "partial_succeeded"), PARTIAL),
    **dict.fromkeys(("retry", "retrying"), RETRY),
    **dict.fromkeys(("fail", "failed", "failure", "error", "errored"), FAIL),
    **dict.fromkeys(("skipped", "skip"), SKIPPED),
}


def fold_status(word: object) -> str | None:
    """The status that `word` means, whatever its case and separators; None for a word nobody knows."""
    folded = _WORDS.get(word) if isinstance(word, str) else None
    return folded or _WORDS.get(str(word).strip().lower().replace("-", "_").replace(" ", "_"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt at a node. It drives routing, and its updates go into the context.

    `status` is one of STATUSES (other spellings are folded; UsageError for a word nobody knows). `preferred_label`
    names the edge to take and `suggested_next_ids` the nodes to go to, best first; both count only where no condition
    decides. `context_updates` maps context keys to JSON values. `failure_class` is free text; "deterministic" failures
    are not retried.
    """

    status: str
    preferred_label: str = ""
    suggested_next_ids: tuple[str, ...] = ()
    context_updates: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""
    failure_reason: str = ""
    failure_class: str = ""

    def __post_init__(self) -> None:
        status = fold_status(self.status)
        if status is None:
            raise UsageError(f"{self.status!r:.60} is no outcome; write {', '.join(STATUSES)}")
        if status != self.status:
            object.__setattr__(self, "status", status)
        if type(self.suggested_next_ids) is not tuple:
            ids = self.suggested_next_ids
            object.__setattr__(self, "suggested_next_ids", (ids,) if isinstance(ids, str) else tuple(ids))

    @property
    def failed(self) -> bool:
        """Whether it is a failure for good (RETRY asks for another attempt, it is none)."""
        return self.status == FAIL

    @property
    def good(self) -> bool:
        """Whether the work may go on as if all were well: success, partial success, or skipped."""
        return self.status in (SUCCESS, PARTIAL, SKIPPED)

    def to_data(self) -> dict[str, Any]:
        """As JSON values; fields that say nothing are left out."""
        found: dict[str, Any] = {"status": self.status}
        if self.preferred_label:
            found["preferred_label"] = self.preferred_label
        if self.suggested_next_ids:
            found["suggested_next_ids"] = list(self.suggested_next_ids)
        if self.context_updates:
            found["context_updates"] = dict(self.context_updates)
        for key in ("notes", "failure_reason", "failure_class"):
            if value := getattr(self, key):
                found[key] = value
        return found

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Outcome:
        """The outcome that `to_data` wrote."""
        return cls(data["status"], data.get("preferred_label", ""), tuple(data.get("suggested_next_ids", ())),
                   data.get("context_updates", {}), data.get("notes", ""), data.get("failure_reason", ""),
                   data.get("failure_class", ""))


def from_status_file(data: Mapping[str, Any]) -> Outcome:
    """The outcome that a tool or an agent wrote as JSON: `{"outcome": ..., "preferred_next_label": ...}`.

    `status` and `preferred_label` are read as well. A word that is no status (`needs_review`) is a label of the
    agent's own: a success that prefers it, so that `outcome=needs_review` on an edge finds it. UsageError, in one line,
    when the data is not of this shape.
    """
    word = data.get("outcome", data.get("status"))
    if not isinstance(word, str) or not word.strip():
        raise UsageError('a status needs "outcome": one of ' + ", ".join(STATUSES))
    label = _text(data, "preferred_label") or _text(data, "preferred_next_label")
    status = fold_status(word)
    ids = data.get("suggested_next_ids") or ()
    updates = data.get("context_updates") or {}
    if ids and (not isinstance(ids, (list, tuple)) or not all(isinstance(one, str) for one in ids)):
        raise UsageError("suggested_next_ids must be a list of node ids")
    if not isinstance(updates, (dict, Mapping)):
        raise UsageError("context_updates must be an object of keys and values")
    return Outcome(status or SUCCESS, label or ("" if status else word.strip()), tuple(ids),
                   {str(key): value for key, value in updates.items()}, _text(data, "notes"),
                   _text(data, "failure_reason"), _text(data, "failure_class"))


def check_json(values: Mapping[str, Any], whose: str = "context") -> None:
    """UsageError, naming the key, when a value cannot be written as JSON and read back as the same."""
    for key, value in values.items():
        if type(key) is not str:
            raise UsageError(f"{whose}: the key {key!r:.60} is not text")
        if value is None or type(value) in (str, bool, int):
            continue
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise UsageError(f"{whose}: the value of {key!r:.60} ({type(value).__name__}) cannot be kept as JSON; "
                             "use text, numbers, true/false, null, lists and objects with text keys")


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{key} must be text")
    return value
