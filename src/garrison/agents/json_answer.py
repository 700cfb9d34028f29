"""The JSON object in a model's words: models fence it, say a sentence before it, and write braces in that. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_MOST = 50
"""Braces that are tried."""
_decode = json.JSONDecoder().raw_decode


def extract_object(said: str, key: str = "") -> dict[str, Any] | None:
    """The first JSON object in `said` (with `key`: the first that has it); None if there is none."""
    for number, match in enumerate(re.finditer(r"\{", said)):
        if number == _MOST:
            break
        try:
            found, _ = _decode(said, match.start())
        except (ValueError, RecursionError):
            continue
        if not key or key in found:
            return dict(found)
    return None
