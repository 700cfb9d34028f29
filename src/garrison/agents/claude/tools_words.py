"""What an agent is told of garrison's own tools, and whether what it gave one can be taken as meant. Pure, and without
the SDK."""

from __future__ import annotations

from typing import Any

from garrison.agents import result

REPORTS = ("success", "partial_success", "retry", "failure")
"""How a task may be reported to have ended; the first two land."""
FOR_THE_PIPELINE = ("preferred_label", "suggested_next_ids", "context_updates")
"""What else of a report the pipeline reads."""
_WORDS = {"type": "string"}
REPORT_RESULT = ("Say how the task ended. Without this call the task has failed. Call it once, at the end.", {
    "type": "object", "required": ["status", "summary"], "properties": {
        "status": {"type": "string", "enum": list(REPORTS), "description": "partial_success: what is there is worth "
                   "landing, though not all was done. retry: it failed, and another attempt may do better."},
        "summary": {"type": "string", "description": "What was done, or why it could not be."},
        "evidence": {"type": "array", "items": _WORDS,
                     "description": "What proves it: commands that were run and what they said, commits."},
        "preferred_label": {**_WORDS, "description": "Only where the task leaves you a choice of how the pipeline goes "
                            "on: the label of the way to take."},
        "suggested_next_ids": {"type": "array", "items": _WORDS, "description": "Nodes to go to, best first, where no "
                               "label decides."},
        "context_updates": {"type": "object", "description": "Values that later steps of the pipeline read, by key, "
                            "such as {\"tests.failed\": 3}."}}})
SAVE_NOTES = ("Keep notes for whoever goes on if this session dies; they replace the notes before.",
              {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}})
ASK_GUARDIAN = ("Ask the person in charge one question that you cannot settle yourself.",
                {"type": "object", "required": ["question"], "properties": {"question": {"type": "string"}}})
"""Tool → what it is for, and the JSON schema of its arguments."""


def report_of(given: dict[str, Any]) -> dict[str, Any] | str:
    """What is kept of a report, or why it does not count."""
    status, summary = given.get("status"), str(given.get("summary") or "").strip()
    if status not in REPORTS or not summary:
        return f"say status={', status='.join(REPORTS[:-1])} or status={REPORTS[-1]}, and a summary"
    evidence = given.get("evidence") or []
    try:
        more = result.said({name: given[name] for name in FOR_THE_PIPELINE if given.get(name)})
    except ValueError as error:
        return f"{error}; say it again"
    return {"status": status, "summary": summary,
            "evidence": [str(one) for one in evidence] if isinstance(evidence, list) else [], **more}


def told_of(report: Any) -> dict[str, Any]:
    """What a report says for the pipeline, as `agents.result` has it; {} without one."""
    if not isinstance(report, dict):
        return {}
    found = {name: report[name] for name in ("status", *FOR_THE_PIPELINE) if name in report}
    return result.said({**found, "notes": str(report.get("summary", ""))[:_NOTES]})


_NOTES = 2000
"""Characters of a summary that the pipeline keeps."""


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
