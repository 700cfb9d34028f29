"""What a session's stream tells, as blocks for the page. Pure; a line that is no event tells nothing.

    {"role": "assistant" | "tool" | "session", "kind": "text" | "thinking" | "tool_use" | "tool_result" | "result"
     | "note", "name", "text", "at", "life", "error"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONG = 20_000
"""Characters of a block at most."""
_ROLES: Mapping[str, tuple[str, str]] = {
    "text": ("assistant", "text"), "thinking": ("assistant", "thinking"), "tool": ("assistant", "tool_use"),
    "tool_result": ("tool", "tool_result"), "result": ("session", "result"), "begin": ("session", "note"),
    "retry": ("session", "note"), "limit": ("session", "note"), "note": ("session", "note"),
}
"""Kind of a stream's event → role and kind of its block; the others show nothing."""


def blocks_of(event: Any) -> list[dict[str, Any]]:
    """The block of one event, [] for none."""
    kind = str(event.get("kind", "")) if isinstance(event, dict) else ""
    if kind not in _ROLES:
        return []
    role, shown = _ROLES[kind]
    return [{"role": role, "kind": shown, "name": str(event.get("name", "")).removeprefix("mcp__garrison__"),
             "text": _text(kind, event)[:LONG], "at": str(event.get("at", "")), "life": event.get("life"),
             "error": bool(event.get("error"))}]


def _text(kind: str, event: Mapping[str, Any]) -> str:
    if kind == "tool":
        return json.dumps(event.get("input"), ensure_ascii=False, indent=1)
    if kind == "begin":
        how = "resumed" if event.get("resumed") else "begun"
        return f"session {str(event.get('session', ''))[:8]} {how}, {event.get('model') or 'default model'}"
    if kind == "retry":
        return f"the API answered {event.get('status') or event.get('error') or 'nothing'}; trying again"
    if kind == "result":
        usd = event.get("usd")
        cost = f", ${usd:.4f} in all" if isinstance(usd, int | float) else ""
        how = f"failed: {event.get('said') or event.get('subtype', '')}" if event.get("error") else "ended its turn"
        return f"{how}{cost}"
    return str(event.get("text", ""))
