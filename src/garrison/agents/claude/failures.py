"""Classes of session failures, as `agents.trouble` has them for all agents, and what a person has to do about them."""

from __future__ import annotations

from collections.abc import Mapping

from garrison.agents.trouble import TABLE, TroubleKind, classify, classify_text
from garrison.supervise import death_classes

__all__ = ["CLASSES", "WHAT_TO_DO", "classify", "classify_text", "ruling"]

RATE_LIMIT, QUOTA = TroubleKind.RATE_LIMIT, TroubleKind.QUOTA
OVERLOADED, SERVER, NETWORK = TroubleKind.OVERLOADED, TroubleKind.SERVER, TroubleKind.NETWORK
AUTHENTICATION, BILLING, BUDGET = TroubleKind.AUTHENTICATION, TroubleKind.BILLING, TroubleKind.BUDGET
CONTEXT, HISTORY = TroubleKind.CONTEXT, TroubleKind.HISTORY
UNKNOWN_SESSION, INVALID = TroubleKind.UNKNOWN_SESSION, TroubleKind.INVALID
MAX_TURNS, CRASH, HANG = TroubleKind.MAX_TURNS, TroubleKind.CRASH, TroubleKind.HANG
TOO_LONG, REFUSED = TroubleKind.TOO_LONG, TroubleKind.REFUSED
RESERVED, LOOP = TroubleKind.RESERVED, TroubleKind.LOOP

CLASSES: Mapping[str, str] = {kind: each.death for kind, each in TABLE.items() if each.death != death_classes.CRASH
                              or kind is TroubleKind.CRASH}
"""Class of a failure → its class in the restart policy; any other is a crash there."""

WHAT_TO_DO: Mapping[str, str] = {
    AUTHENTICATION: "the key or log-in was refused: set ANTHROPIC_API_KEY (and pass it on), or run `garrison login`",
    BILLING: "the account cannot pay: resolve that with the provider",
    BUDGET: "the budget is used up: raise it in config.toml or the graph",
}
"""Failure → instruction for the person who has to act before the session can continue."""


def ruling(kind: str) -> death_classes.Ruling:
    return death_classes.ruling(CLASSES.get(kind, death_classes.CRASH))
