"""Tools that garrison offers an agent, as MCP tools of the server `garrison`: report, notes, questions, verdict.

`report_result` is the only way to success: a session that ends without it is asked once, then its attempt has failed.
Each tool only writes one file of the attempt. It loads no SDK: `client` turns the functions into MCP tools.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.agents.base import VALIDATOR, WORKER, AgentReport, Function
from garrison.agents.conversation import questions
from garrison.agents.result import NOTHING_TO_DO, parse_report, to_report, verdict_problem
from garrison.errors import UsageError
from garrison.records import atomic
from garrison.records.json_io import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.conversation.files import AttemptFiles

SERVER = "garrison"
STATUSES = ("success", "partial_success", NOTHING_TO_DO, "retry", "failure")
"""Statuses of a report; the first two land."""
FOR_THE_PIPELINE = ("preferred_label", "suggested_next_ids", "context_updates")
"""Other fields of a report that the pipeline reads."""
_MAX_NOTES = 2000
"""Characters of a summary that the pipeline keeps."""
ACCEPTED = "Noted. End your turn now."
"""Reply to a model's report."""
ASKED = "Your question is passed on. End your turn now; the answer will be your next message."
"""Reply to a model's question."""
_STRING = {"type": "string"}


def tools_of(role: str, files: AttemptFiles, notes: Path, output: Mapping[str, object] | None = None) -> list[Function]:
    """Return the tools of a worker or validator.

    Args:
        notes: file for a successor.
        output: JSON schema of the output that a successful report must have, if any.
    """
    if role == VALIDATOR:
        return [report_verdict(files)]
    return [report_result(files, output), save_notes(notes), ask_guardian(files)]


def descriptions(role: str = WORKER) -> list[Function]:
    """Return the tools of a role, only for their names and schemas; `mcp_server` makes the calls."""
    from garrison.agents.conversation.files import AttemptFiles

    return tools_of(role, AttemptFiles(Path()), Path())


def report_result(files: AttemptFiles, output: Mapping[str, object] | None = None) -> Function:
    """Return the tool for a worker's report; `output` is the schema of its result."""
    def call(**arguments: Any) -> str:
        _require_unreported(files)
        report = check_report(arguments)
        if output is not None and report["status"] in STATUSES[:2]:
            report["output"] = _check_output(arguments.get("output"), output)
            more = report.get("context_updates")
            report["context_updates"] = {"output": report["output"], **(more if isinstance(more, dict) else {})}
        write_json(files.report, report)
        return ACCEPTED

    return Function(
        "report_result", "Say how the task ended. Without this call the task has failed. Call it once, at the end.", {
            "type": "object", "required": ["status", "summary"], "properties": {
                "status": {"type": "string", "enum": list(STATUSES), "description": "partial_success: what is there is "
                           "worth landing, though not all was done. nothing_to_do: what is asked for is there "
                           "already, as the evidence shows. retry: it failed, and another attempt may do "
                           "better."},
                "summary": {"type": "string", "description": "What was done, or why it could not be."},
                "evidence": {"type": "array", "items": _STRING,
                             "description": "What proves it: commands that were run and their output, commits."},
                "preferred_label": {**_STRING, "description": "Only where the task leaves you a choice of how the "
                                    "pipeline continues: the label of the edge to follow."},
                "suggested_next_ids": {"type": "array", "items": _STRING, "description": "Nodes to go to, best first, "
                                       "where no label decides."},
                "context_updates": {"type": "object", "description": "Values that later steps of the pipeline read, by "
                                    "key, such as {\"tests.failed\": 3}."},
                **({"output": {**output, "description": "What the task is to deliver; needed for a success."}}
                   if output is not None else {})}}, call)


def save_notes(path: Path) -> Function:
    """Return the tool that saves an agent's notes for its successor in a file."""
    def call(text: object = None, **_unknown: object) -> str:
        notes = str(text or "").strip()
        if not notes:
            raise UsageError("there is no text")
        atomic.make_directory(path.parent)
        atomic.write(path, (notes + "\n").encode(errors="replace"))
        return "Kept."

    return Function("save_notes", "Save notes for your successor in case this session dies; they replace earlier ones.",
                    {"type": "object", "required": ["text"], "properties": {"text": _STRING}}, call)


def ask_guardian(files: AttemptFiles | None) -> Function:
    """Return the tool that asks the user.

    The question ends its turn, and the answer is its next message. Without `files` the caller of the tools waits for
    the answer, which is the tool's result.
    """
    def call(question: object = None, **_unknown: object) -> str:
        text = str(question or "").strip()
        if not text:
            raise UsageError("there is no question")
        if files is not None:
            questions.ask(files, text)
        return ASKED

    description = "Ask the person in charge one question that you cannot settle yourself."
    if files is not None:
        description += " End your turn after it; the answer comes as your next message, however long it takes."
    return Function("ask_guardian", description,
                    {"type": "object", "required": ["question"], "properties": {"question": _STRING}}, call)


def report_verdict(files: AttemptFiles) -> Function:
    """Return the tool for a validator's verdict."""
    def call(**arguments: object) -> str:
        _require_unreported(files)
        if problem := verdict_problem(arguments):
            raise UsageError(problem)
        write_json(files.report, to_report(arguments))
        return ACCEPTED

    criterion = {"type": "object", "required": ["criterion", "met", "evidence"], "properties": {
        "criterion": {**_STRING, "description": "The words of the task that ask for it, quoted, and what they mean."},
        "met": {"type": "boolean"}, "evidence": _STRING}}
    return Function(
        "report_verdict", "Give your verdict on the work. Without this call the work counts as refused.", {
            "type": "object", "required": ["verdict", "reason", "criteria"], "properties": {
                "verdict": {"type": "string", "enum": ["pass", "fail"]},
                "reason": {**_STRING, "description": "For the next attempt: what is wrong, and where."},
                "criteria": {"type": "array", "items": criterion}}}, call)


def _check_output(given: object, schema: Mapping[str, object]) -> object:
    """Return the output if it matches the schema; UsageError with the first mismatch if not."""
    import jsonschema  # type: ignore[import-untyped]  # comes with the SDK, and few sessions need it

    try:
        jsonschema.validate(given, schema)
    except jsonschema.ValidationError as error:
        raise UsageError(f"output{error.json_path[1:]}: {error.message}; say it again") from error
    return given


def _require_unreported(files: AttemptFiles) -> None:
    """Refuse a second report: nothing after the first was requested or judged."""
    if report := read_json(files.report):
        raise UsageError(f"you have reported already ({report['status']}); the first report stands. End your turn.")


def check_report(arguments: dict[str, object]) -> dict[str, object]:
    """Return the content of report.json; UsageError if the arguments of `report_result` are not a valid report."""
    status, summary = arguments.get("status"), str(arguments.get("summary") or "").strip()
    if status not in STATUSES or not summary:
        raise UsageError(f"say status={', status='.join(STATUSES[:-1])} or status={STATUSES[-1]}, and a summary")
    evidence = arguments.get("evidence") or []
    # This claim lands nothing and no gate tests it, so it needs proof that a validator can read.
    if status == NOTHING_TO_DO and not evidence:
        raise UsageError("say in evidence which lines of which files prove that nothing has to be done")
    try:
        extra = parse_report({name: arguments[name] for name in FOR_THE_PIPELINE if arguments.get(name)})
    except ValueError as error:
        raise UsageError(f"{error}; say it again") from error
    return {"status": status, "summary": summary,
            "evidence": [str(item) for item in evidence] if isinstance(evidence, list) else [], **extra}


def to_agent_report(report: object) -> AgentReport:
    """Return the part of report.json for the pipeline; empty without a report."""
    if not isinstance(report, dict):
        return {}
    fields = {name: report[name] for name in ("status", *FOR_THE_PIPELINE) if name in report}
    return parse_report({**fields, "notes": str(report.get("summary", ""))[:_MAX_NOTES]})


# ---- end of a turn ---------------------------------------------------------------------------------------------------

# After a report or a question, a session must do nothing more until it has an answer. A model may continue for minutes,
# and do what it had asked permission for. So each later tool call is refused, and the turn ends once the tools of the
# response have run: no further request is made.


_AFTER_QUESTION = frozenset(f"mcp__{SERVER}__{name}" for name in ("ask_guardian", "save_notes"))
"""Tools that may follow a question in its turn."""


class SessionReports:
    """Report or question of an attempt's session that ends its turn, from its files."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files

    @property
    def reached(self) -> str:
        """Return why the turn is over; '' while it is not."""
        if read_json(self._files.report):
            return "the report is made"
        return "the question is asked" if questions.unanswered(self._files) else ""

    def refuse(self, tool: str, _arguments: Mapping[str, Any]) -> str:
        """Return why a tool call is refused; '' if it is allowed."""
        if report := read_json(self._files.report):
            return f"refused: you have reported already ({report['status']}). The first report stands; end your turn."
        if tool not in _AFTER_QUESTION and questions.unanswered(self._files):
            return ("refused: you have asked a question and its answer is not there yet. End your turn now; the answer "
                    "will be your next message.")
        return ""

    def end_after(self, tool: str) -> str:
        """Return why the turn ends after a call of this tool; '' if it continues."""
        return self.reached if tool.startswith(f"mcp__{SERVER}__") else ""
