"""Classes of session failures: one table from the API's and the CLI's messages to a class.

The texts are the error types of Anthropic's Messages API and the CLI's own wording in its result and retry messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.supervise import death_classes

RATE_LIMIT, OVERLOADED, SERVER = "rate_limit", "overloaded", "server"
AUTHENTICATION, BILLING, BUDGET = "authentication", "billing", "budget"
CONTEXT, UNKNOWN_SESSION, INVALID = "context", "unknown_session", "invalid"
MAX_TURNS, CRASH, HANG, NETWORK = "max_turns", "crash", "hang", "network"
TOO_LONG, REFUSED = "too_long", "refused"
"""An answer that reaches the model's output limit; a model that refuses the task."""
RESERVED, LOOP = "reserved", "loop"
"""Calls of other sessions may cost what is left of a budget; a session that goes round (`loop_detector`)."""

CLASSES: Mapping[str, str] = {
    RATE_LIMIT: death_classes.RATE_LIMIT, AUTHENTICATION: death_classes.AUTHENTICATION, BILLING: death_classes.BILLING,
    BUDGET: death_classes.BUDGET, CONTEXT: death_classes.CHURN, CRASH: death_classes.CRASH, HANG: death_classes.HUNG,
    RESERVED: death_classes.RATE_LIMIT}
"""Class of a failure → its class in the restart policy; any other is a crash there."""

WHAT_TO_DO = {
    AUTHENTICATION: "the key or log-in was refused: set ANTHROPIC_API_KEY (and pass it on), or run `garrison login`",
    BILLING: "the account cannot pay: resolve that with the provider",
    BUDGET: "the budget is used up: raise it in config.toml or the graph",
}
"""Failure → instruction for the person who has to act before the session can continue."""

_BY_STATUS = {401: AUTHENTICATION, 402: BILLING, 403: AUTHENTICATION, 408: NETWORK, 413: CONTEXT, 429: RATE_LIMIT,
              529: OVERLOADED}
_BY_TEXT = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in (
    (UNKNOWN_SESSION, r"no conversation found|session .{0,60}not found"),
    (CONTEXT, r"prompt is too long|context (?:window|length|limit)|input length and .?max_tokens|request_too_large"),
    (BILLING, r"billing|credit balance|payment|insufficient (?:credit|quota|funds)"),
    (AUTHENTICATION, r"authentication|invalid (?:x-)?api.?key|unauthori[sz]ed|permission_error|not logged in|"
                     r"please run /login|oauth token (?:has )?(?:expired|revoked)"),
    (RATE_LIMIT, r"rate.?limit|usage limit|too many requests"),
    (OVERLOADED, r"overloaded"),
    (NETWORK, r"connection (?:error|refused|reset|closed)|econn|etimedout|timed? ?out|socket|fetch failed|"
              r"unable to connect|network"),
))
_BUDGET = re.compile("garrison: budget used up")
"""Of garrison's own proxy, which refuses calls beyond a budget."""
_BY_ERROR = {"max_output_tokens": TOO_LONG, "authentication_failed": AUTHENTICATION, "billing_error": BILLING,
             "rate_limit": RATE_LIMIT, "model_not_found": INVALID, "invalid_request": INVALID,
             "error_max_turns": MAX_TURNS, "error_max_budget_usd": BUDGET, "budget": BUDGET, "refusal": REFUSED}
"""Class by the CLI's name of a failure, in its result or in the message before it."""


def ruling(kind: str) -> death_classes.Ruling:
    """Return the restart policy's ruling on a class of failure."""
    return death_classes.ruling(CLASSES.get(kind, death_classes.CRASH))


def classify(status: int | None, text: str, error: str = "") -> str:
    """Return the class of an API failure.

    Args:
        status: HTTP status, None if not known.
        text: the message that came with it.
        error: the CLI's own name of the failure.
    """
    if status == 402 and _BUDGET.search(text):
        return BUDGET
    if status == 400:
        return by_text if (by_text := classify_text(text)) in (CONTEXT, BILLING) else INVALID
    if status == 403 and classify_text(text) == BILLING:
        return BILLING
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and status >= 500:
        return SERVER
    if status is not None and status >= 400:
        return INVALID
    return _BY_ERROR.get(error) or classify_text(text) or SERVER


def classify_text(text: str) -> str:
    """Return the class of a failure by the words of its message alone, '' for none of the known."""
    return next((kind for kind, pattern in _BY_TEXT if pattern.search(text)), "")
