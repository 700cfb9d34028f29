"""JSON object in a model's answer: models fence it, write a sentence before it, and use braces in that sentence."""

from __future__ import annotations

import json
import re
from typing import Any

_MAX_BRACES = 50
"""Opening braces that are tried."""
_decode = json.JSONDecoder().raw_decode


def extract_object(text: str, key: str = "") -> dict[str, Any] | None:
    """Return the first JSON object in `text`, or with `key` the first that has that key; None if there is none."""
    for number, match in enumerate(re.finditer(r"\{", text)):
        if number == _MAX_BRACES:
            break
        try:
            value, _ = _decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if not key or key in value:
            return dict(value)
    return None
