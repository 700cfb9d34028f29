"""Whether what an agent gave a tool can be taken as meant. Pure, and without the SDK."""

from __future__ import annotations

from typing import Any


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
