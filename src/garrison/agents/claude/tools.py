"""The tools an agent has to speak with its garrison, in the process of its stretch. Each writes one file, nothing more.

`report_result` is the only way to success: a session that ends without it is asked once, then its attempt has failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from claude_agent_sdk import SdkMcpTool, create_sdk_mcp_server, tool

from garrison.agents.claude import questions
from garrison.agents.claude.attempt_files import ClaudeFiles, write_json
from garrison.agents.claude.tools_words import ASK_GUARDIAN, REPORT_RESULT, SAVE_NOTES, report_of, unsound
from garrison.records import atomic

SERVER = "garrison"
PHASES = ("planning", "executing", "impl_complete")
"""Where an orchestrator's own hook may be; what comes after is its runner's."""
Answer = dict[str, Any]


WORKER, VALIDATOR = "worker", "validator"
NAMES = {WORKER: ("report_result", "update_phase", "save_notes", "ask_guardian"), VALIDATOR: ("report_verdict",)}
"""Part → its tools."""


def names(part: str) -> list[str]:
    """The tools of a part as the CLI calls them, for its allow-list."""
    return [f"mcp__{SERVER}__{name}" for name in NAMES[part]]


def server(part: str, files: ClaudeFiles, notes: Path) -> Any:
    """The in-process MCP server with the tools of a part; `notes` is the file for a successor."""
    made = [_verdict(files)] if part == VALIDATOR else [_report(files), _phase(files), _notes(notes), _ask(files)]
    return create_sdk_mcp_server(SERVER, "1.0.0", made)


def _told(text: str, *, error: bool = False) -> Answer:
    return {"content": [{"type": "text", "text": text}], **({"is_error": True} if error else {})}


def _report(files: ClaudeFiles) -> SdkMcpTool[Any]:
    @tool("report_result", *REPORT_RESULT)
    async def report_result(given: dict[str, Any]) -> Answer:
        report = report_of(given)
        if isinstance(report, str):
            return _told(report, error=True)
        write_json(files.report, report)
        return _told("Noted. End your turn now.")

    return report_result


def _phase(files: ClaudeFiles) -> SdkMcpTool[Any]:
    @tool("update_phase", "Say which phase your work has reached: planning, executing or impl_complete.",
          {"type": "object", "required": ["phase"], "properties": {"phase": {"type": "string", "enum": list(PHASES)}}})
    async def update_phase(given: dict[str, Any]) -> Answer:
        phase = given.get("phase")
        if phase not in PHASES:
            return _told(f"{phase!r} is not a phase of yours; there are {', '.join(PHASES)}", error=True)
        atomic.write(files.phase, str(phase).encode())
        return _told(f"Your phase is {phase}.")

    return update_phase


def _verdict(files: ClaudeFiles) -> SdkMcpTool[Any]:
    criterion = {"type": "object", "required": ["criterion", "met", "evidence"], "properties": {
        "criterion": {"type": "string"}, "met": {"type": "boolean"}, "evidence": {"type": "string"}}}

    @tool("report_verdict", "Give your verdict on the work. Without this call the work counts as refused.", {
        "type": "object", "required": ["verdict", "reason", "criteria"], "properties": {
            "verdict": {"type": "string", "enum": ["pass", "fail"]},
            "reason": {"type": "string", "description": "For whoever does the work again: what is wrong, and where."},
            "criteria": {"type": "array", "items": criterion}}})
    async def report_verdict(given: dict[str, Any]) -> Answer:
        wrong = unsound(given)
        if wrong:
            return _told(wrong, error=True)
        write_json(files.report, {"status": "success" if given["verdict"] == "pass" else "failure",
                                  "summary": str(given["reason"]), "criteria": given["criteria"]})
        return _told("Noted. End your turn now.")

    return report_verdict


def _notes(path: Path) -> SdkMcpTool[Any]:
    @tool("save_notes", *SAVE_NOTES)
    async def save_notes(given: dict[str, Any]) -> Answer:
        text = str(given.get("text") or "").strip()
        if not text:
            return _told("there is no text", error=True)
        atomic.write(path, (text + "\n").encode(errors="replace"))
        return _told("Kept.")

    return save_notes


def _ask(files: ClaudeFiles) -> SdkMcpTool[Any]:
    @tool("ask_guardian", f"{ASK_GUARDIAN[0]} End your turn after it; the answer comes as your next message, however "
          "long it takes.", ASK_GUARDIAN[1])
    async def ask_guardian(given: dict[str, Any]) -> Answer:
        text = str(given.get("question") or "").strip()
        if not text:
            return _told("there is no question", error=True)
        questions.ask(files, text)
        return _told("Your question is passed on. End your turn now; the answer will be your next message.")

    return ask_guardian
