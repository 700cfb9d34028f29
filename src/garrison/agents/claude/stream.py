"""Event stream of a Claude session (`stream.jsonl`): event kinds, terminal rendering, tool call in flight.

An event is one small JSON object of kind `begin, text, thinking, tool, tool_result, retry, limit, usage, result, note`.
Only `connection` translates SDK messages into events; readers of a stream need no SDK.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


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


SILENT = 900.0
"""Seconds a tool under way may be silent: a little above what the session itself allows it (`stretch`)."""
_TAIL = 256 * 1024
"""Bytes of the stream's end that are read; results are cut, so a tool's beginning is nearly always among them."""


def tool_in_flight(attempt: Path) -> tuple[str, float] | None:
    """(name, seconds it may be silent) of the last tool without a result in this attempt's session; None if none."""
    under_way: dict[str, str] = {}
    for line in _tail(attempt / "claude" / "stream.jsonl").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the first line of the tail is cut, the last may be torn
            continue
        kind = event.get("kind") if isinstance(event, dict) else None
        if kind in ("begin", "result"):
            under_way.clear()
        elif kind == "tool":
            under_way[str(event.get("id"))] = str(event.get("name", ""))
        elif kind == "tool_result":
            under_way.pop(str(event.get("id")), None)
    return (list(under_way.values())[-1], SILENT) if under_way else None


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            return file.read()
    except OSError:
        return b""
