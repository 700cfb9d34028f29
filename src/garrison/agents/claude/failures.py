"""What a failure of a session means: one table from what the API or the CLI said to a class. Pure.

Source of the words: the error types of Anthropic's Messages API, and what the CLI makes of them in its result and retry
messages (seen with the CLI's own texts).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.supervise import restart

RATE_LIMIT, OVERLOADED, SERVER = "rate_limit", "overloaded", "server"
AUTHENTICATION, BILLING, BUDGET = "authentication", "billing", "budget"
CONTEXT, UNKNOWN_SESSION, INVALID = "context", "unknown_session", "invalid"
MAX_TURNS, CRASH, HANG, NETWORK = "max_turns", "crash", "hang", "network"
TOO_LONG, REFUSED = "too_long", "refused"
"""An answer that hits the model's limit again and again; a model that refuses the task."""

CLASSES: Mapping[str, str] = {
    RATE_LIMIT: restart.RATE_LIMIT, AUTHENTICATION: restart.AUTHENTICATION, BILLING: restart.BILLING,
    BUDGET: restart.BUDGET, CONTEXT: restart.CHURN, CRASH: restart.CRASH, HANG: restart.HUNG}
"""What a stretch ended with → its class in the one table of what counts, waits and parks; any other is a crash."""


def ruling(kind: str) -> restart.Ruling:
    """What the table says of an ending of a stretch."""
    return restart.ruling(CLASSES.get(kind, restart.CRASH))


_BY_STATUS = {401: AUTHENTICATION, 402: BILLING, 403: AUTHENTICATION, 408: NETWORK, 413: CONTEXT, 429: RATE_LIMIT,
              529: OVERLOADED}
_BY_WORD = (
    (UNKNOWN_SESSION, r"no conversation found|session .{0,60}not found"),
    (CONTEXT, r"prompt is too long|context (?:window|length|limit)|input length and .?max_tokens|request_too_large"),
    (BILLING, r"billing|credit balance|payment|insufficient (?:credit|quota|funds)"),
    (AUTHENTICATION, r"authentication|invalid (?:x-)?api.?key|unauthori[sz]ed|permission_error|not logged in|"
                     r"please run /login|oauth token (?:has )?(?:expired|revoked)"),
    (RATE_LIMIT, r"rate.?limit|usage limit|too many requests"),
    (OVERLOADED, r"overloaded"),
    (NETWORK, r"connection (?:error|refused|reset|closed)|econn|etimedout|timed? ?out|socket|fetch failed|"
              r"unable to connect|network"),
)
_BY_ERROR = {"max_output_tokens": TOO_LONG, "authentication_failed": AUTHENTICATION, "billing_error": BILLING,
             "rate_limit": RATE_LIMIT, "model_not_found": INVALID, "invalid_request": INVALID}
"""What the CLI calls a failure in the message before the result."""
_WORDS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _BY_WORD)

WHAT_TO_DO = {
    AUTHENTICATION: "the key or log-in was refused: set ANTHROPIC_API_KEY (and pass it on), or run `garrison login`",
    BILLING: "the account cannot pay: mend that with the provider",
    BUDGET: "the budget is used up: raise it in config.toml or the graph",
}
"""What a person must do before such a session can go on."""


def classify(status: int | None, said: str, error: str = "") -> str:
    """The class of an API failure by its HTTP status (None: not known), the words that came with it, and what the CLI
    calls it."""
    if status == 400:
        return found if (found := _word(said)) in (CONTEXT, BILLING) else INVALID
    if status == 403 and _word(said) == BILLING:
        return BILLING
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and status >= 500:
        return SERVER
    if status is not None and status >= 400:
        return INVALID
    return _BY_ERROR.get(error) or _word(said) or SERVER


def _word(said: str) -> str:
    return next((kind for kind, pattern in _WORDS if pattern.search(said)), "")
