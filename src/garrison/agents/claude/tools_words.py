"""What an agent is told of garrison's own tools, and whether what it gave one can be taken as meant. Pure, and without
the SDK."""

from __future__ import annotations

from typing import Any

REPORT_RESULT = ("Say how the task ended. Without this call the task has failed. Call it once, at the end.", {
    "type": "object", "required": ["status", "summary"], "properties": {
        "status": {"type": "string", "enum": ["success", "failure"]},
        "summary": {"type": "string", "description": "What was done, or why it could not be."},
        "evidence": {"type": "array", "items": {"type": "string"},
                     "description": "What proves it: commands that were run and what they said, commits."}}})
SAVE_NOTES = ("Keep notes for whoever goes on if this session dies; they replace the notes before.",
              {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}})
"""Tool → what it is for, and the JSON schema of its arguments."""


def report_of(given: dict[str, Any]) -> dict[str, Any] | None:
    """What is kept of a `report_result`; None for one that says no status or no summary."""
    status, summary = given.get("status"), str(given.get("summary") or "").strip()
    if status not in ("success", "failure") or not summary:
        return None
    evidence = given.get("evidence") or []
    return {"status": status, "summary": summary,
            "evidence": [str(one) for one in evidence] if isinstance(evidence, list) else []}


def unsound(given: dict[str, Any]) -> str:
    """Why a verdict does not count: it lacks a part, or contradicts itself; '' if it does. Pure."""
    criteria = given.get("criteria")
    if given.get("verdict") not in ("pass", "fail") or not str(given.get("reason") or "").strip():
        return "say verdict=pass or verdict=fail, and a reason"
    if not isinstance(criteria, list) or not criteria or not all(isinstance(one, dict) for one in criteria):
        return "say at least one criterion, each with criterion, met and evidence"
    if given["verdict"] == "pass" and not all(one.get("met") is True and one.get("evidence") for one in criteria):
        return "a pass needs every criterion met, with evidence; say verdict=fail, or what proves the rest"
    return ""
