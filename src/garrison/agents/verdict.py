"""Verdict of a validator: its form as the call of a tool, a request to the agent's socket, or a result block. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS = ("verdict", "reason", "criteria")
"""Keys of a verdict."""


def verdict_problem(arguments: Mapping[str, Any]) -> str:
    """Return why a verdict does not count, since it lacks a part or contradicts itself; '' if it does."""
    criteria = arguments.get("criteria")
    if arguments.get("verdict") not in ("pass", "fail") or not str(arguments.get("reason") or "").strip():
        return "say verdict=pass or verdict=fail, and a reason"
    if not isinstance(criteria, list) or not criteria or not all(isinstance(item, dict) for item in criteria):
        return "say at least one criterion, each with criterion, met and evidence"
    proven = all(item.get("met") is True and item.get("evidence") for item in criteria)
    if arguments["verdict"] == "pass" and not proven:
        return "a pass needs every criterion met, with evidence; say verdict=fail, or what proves the rest"
    return ""


def to_report(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "success" if arguments["verdict"] == "pass" else "failure",
            "summary": str(arguments["reason"]), "criteria": arguments["criteria"]}
