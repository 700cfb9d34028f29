"""Questions of a run as a client shows them: forms for answers, URLs of the page for decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
)
from mcp_types.version import is_version_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.session import ServerSession

    from garrison.mcp.crew import SeenWait

MODERN = "2026-07-28"
"""First version in which a question is the result of a call."""


def is_modern(version: str | None) -> bool:
    return version is not None and is_version_at_least(version, MODERN)


def can_ask(capabilities: ClientCapabilities | None, wait: SeenWait) -> bool:
    """Return whether the client can show the form or URL for what waits."""
    can = capabilities.elicitation if capabilities is not None else None
    if can is None:
        return False
    return (can.form is not None or can.url is None) if wait.question else (can.url is not None and bool(wait.url))


def request_for(wait: SeenWait, version: str | None) -> ElicitRequest:
    """Return the elicitation request for what waits."""
    if not wait.question:
        return ElicitRequest(params=ElicitRequestURLParams(
            message=f"{wait.node} waits for your decision: {wait.text}", url=wait.url,
            elicitation_id=None if is_modern(version) else wait.key))
    choice = {"enum": wait.options} if wait.options else {}
    answer: Mapping[str, object] = {"type": "string", "title": "Answer", **choice}
    return ElicitRequest(params=ElicitRequestFormParams(
        message=f"{wait.node} asks: {wait.text}",
        requested_schema={"type": "object", "properties": {"answer": dict(answer)}, "required": ["answer"]}))


def answer_in(given: object) -> str:
    """Return the answer in a form; '' if it was declined, and for a URL."""
    content = given.content if isinstance(given, ElicitResult) and given.action == "accept" else None
    text = content.get("answer") if content else None
    return text if isinstance(text, str) and text.strip() else ""


def client_of(session: ServerSession) -> str:
    """Return the name and version of the client that an answer comes through."""
    info = session.client_params.client_info if session.client_params is not None else None
    return f"{info.name} {info.version}"[:80] if info is not None else "an MCP client"
