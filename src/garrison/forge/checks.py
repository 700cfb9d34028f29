"""What the clients share about checks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.forge.model import Check, CheckState
from garrison.forge.protocol import LOG_TAIL
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.forge.model import BaseRules


def mark_required(checks: list[Check], commit: str, rules: BaseRules) -> list[Check]:
    """Return the checks with `required` set, and required ones that have not reported as pending."""
    named = {each.name for each in checks}
    missing = [Check(name, commit, CheckState.PENDING, "has not reported", required=True)
               for name in rules.required_checks if name not in named]
    known = rules.known or None
    return [replace(each, required=True if each.name in rules.required_checks else known and False)
            for each in checks] + missing


def tail(log: str) -> str:
    """Return the end of a log, from the beginning of a line."""
    if len(log) <= LOG_TAIL:
        return log
    cut = log[-LOG_TAIL:]
    return cut.partition("\n")[2] or cut
