"""Result block: the report, or the verdict, of an agent without garrison's tools, at the end of its last message. Pure.

    ```garrison-result
    {"status": "success", "summary": "what was done"}
    ```
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from garrison.agents.conversation.tools import FOR_THE_PIPELINE
from garrison.agents.result import parse_report, verdict_problem
from garrison.agents.result import to_report as to_verdict

if TYPE_CHECKING:
    from collections.abc import Container

LANGUAGE = "garrison-result"
_BLOCK = re.compile(rf"^[ \t]*(?:```|~~~)[ \t]*{LANGUAGE}[ \t]*\r?\n(.*?)^[ \t]*(?:```|~~~)", re.DOTALL | re.MULTILINE)
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]]\s*(?:[,}\]]|\Z))")


def find_report(message: str, asked: Container[str] | None = ()) -> dict[str, object] | None:
    """Return the report in the last block of a message, as in report.json; None without a block.

    ValueError if the block is invalid. `asked` are the words that edges of the node test for.
    """
    blocks = _BLOCK.findall(message)
    if not blocks:
        return None
    try:
        body = _load(blocks[-1])
        if isinstance(body, dict) and "summary" in body:
            body = {"notes": body["summary"], **body}
        report = parse_report(body, asked)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its result block is invalid: {error}") from error
    if not report.get("status"):
        raise ValueError("its result block has no status")
    return to_report(report)


def _load(block: str) -> object:
    """Parse a block; models leave commas before a closing bracket."""
    try:
        return json.loads(block)
    except ValueError:
        # Only now: within a string of valid JSON such a comma is text.
        return json.loads(_TRAILING_COMMA.sub("", block))


def find_verdict(message: str) -> dict[str, object] | None:
    """Return a validator's verdict in the block of a message, as in report.json; None without a block.

    ValueError if the block is invalid, or if several differ: a validator's quotation may contain a block of the judged
    agent.
    """
    blocks = {block.strip() for block in _BLOCK.findall(message)}
    if not blocks:
        return None
    if len(blocks) > 1:
        raise ValueError("its message has several result blocks, and they differ; send one alone")
    try:
        body = _load(blocks.pop())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its result block is invalid: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("its result block is invalid: it should be an object")  # noqa: TRY004  # as the others
    if problem := verdict_problem(body):
        raise ValueError(f"its result block is not a verdict: {problem}")
    return to_verdict(body)


def to_report(report: Mapping[str, object]) -> dict[str, object]:
    """Return an agent's report in the form of report.json."""
    status = str(report.get("status", "success"))
    summary = str(report.get("failure_reason") or report.get("notes") or status)
    more = {name: report[name] for name in FOR_THE_PIPELINE if report.get(name)}
    return {"status": status, "summary": summary, "evidence": [], **more,
            **({"word": report["word"]} if report.get("word") else {})}
