"""What happens in a session as garrison keeps it: one small JSON object an event, and the line a person sees. Pure.

Kinds: `begin, text, thinking, tool, tool_result, retry, limit, usage, result, note`. The SDK's messages become events
in `stretch` alone; whoever reads a stream later needs no SDK.
"""

from __future__ import annotations

import json
from typing import Any

Event = dict[str, Any]
LONG = 2_000
"""Characters of one text that the stream keeps of a tool's output; the CLI's own transcript has the rest."""
_SHOWN = 240


def shown(event: Event) -> str:
    """The line or lines for the terminal; '' for what a person need not see."""
    teller = _TELLERS.get(event["kind"])
    return teller(event) if teller else ""


def _begin(event: Event) -> str:
    how = "resumed" if event.get("resumed") else "begun"
    return f"── session {event['session'][:8]} {how}, {event.get('model') or 'default model'}"


def _text(event: Event) -> str:
    return str(event["text"]).strip()


def _thinking(event: Event) -> str:
    return "  (thinks) " + _brief(event["text"]) if event["text"].strip() else ""


def _tool(event: Event) -> str:
    return f"  → {event['name'].removeprefix('mcp__garrison__')} {_brief(_argument(event['input']))}"


def _argument(given: Any) -> str:
    """The one argument that tells a person most."""
    if isinstance(given, dict):
        for name in ("command", "file_path", "path", "pattern", "question", "summary", "text", "phase"):
            if isinstance(given.get(name), str):
                return str(given[name])
    return json.dumps(given, ensure_ascii=False)


def _tool_result(event: Event) -> str:
    mark = "✗" if event.get("error") else "←"
    return f"  {mark} {_brief(event['text'])}" if event["text"].strip() else f"  {mark} (nothing)"


def _retry(event: Event) -> str:
    return f"  … the API answered {event.get('status') or event.get('error') or 'nothing'}; trying again in " \
           f"{event.get('delay', 0):.0f} s"


def _note(event: Event) -> str:
    return f"── {event['text']}"


def _result(event: Event) -> str:
    cost = f", ${event['usd']:.4f} in all" if event.get("usd") is not None else ""
    how = f"failed: {_brief(event.get('said') or event.get('subtype', ''))}" if event.get("error") else "ended its turn"
    return f"── session {how}{cost}"


def _brief(text: str) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


_TELLERS = {"begin": _begin, "text": _text, "thinking": _thinking, "tool": _tool, "tool_result": _tool_result,
            "retry": _retry, "note": _note, "result": _result}


def cut(text: str) -> str:
    """A long text with its middle left out."""
    return text if len(text) <= LONG else f"{text[:LONG // 2]}\n… {len(text) - LONG} characters …\n{text[-LONG // 2:]}"
