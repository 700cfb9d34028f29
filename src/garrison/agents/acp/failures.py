"""Failures of ACP agents: from the protocol's errors to the classes of `claude.failures`. Pure.

An agent's error has a number of the protocol and a text of its own; what its model's API answered is in the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from garrison.agents.claude import failures

PROTOCOL = "protocol"
"""An agent that breaks the protocol; nothing follows but the end."""
_AUTH_REQUIRED, _METHOD_NOT_FOUND, _INVALID_PARAMS, _INVALID_REQUEST = -32000, -32601, -32602, -32600
_MAX_DATA = 1000

BY_STOP: Mapping[str, str] = {"max_tokens": failures.CONTEXT, "max_turn_requests": failures.MAX_TURNS,
                              "refusal": failures.REFUSED}
"""Why an agent ended its turn → the class of that failure; any other end is none."""


def classify(code: int, text: str, data: Any = None) -> tuple[str, str]:
    """Return the class of an agent's error, and its reason in one line."""
    details = _details(data)
    reason = " ".join(f"{text} {details}".split())
    known = failures.classify_text(reason)
    if code == _AUTH_REQUIRED and known not in (failures.RATE_LIMIT, failures.QUOTA, failures.BILLING):
        return failures.AUTHENTICATION, reason
    kind = failures.classify(None, reason)
    if kind == failures.SERVER and code in (_METHOD_NOT_FOUND, _INVALID_PARAMS, _INVALID_REQUEST):
        kind = failures.INVALID
    return kind, reason


def _details(data: Any) -> str:
    if data is None:
        return ""
    if isinstance(data, dict) and isinstance(data.get("details"), str):
        return str(data["details"])[:_MAX_DATA]
    return json.dumps(data, default=str)[:_MAX_DATA]
