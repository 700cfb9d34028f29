"""Gate files of a run directory: questions asked, answers given, and signals sent.

    NODE/question.json    the question, and when it was first asked
    answers/PLACE         an answer, as text; one that the question rejects is renamed to PLACE.refused
    signals/NAME          a signal, as JSON or text; the visit that takes it renames it to NAME@PLACE

The library's driver reads answers and signals here; the command line writes them. A run need not be running to be
answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from garrison.pipeline.questions import Question
from garrison.pipeline.run_directory import RunDirectory, read_checkpoint
from garrison.records import atomic


class GateFiles:
    """Answers and signals of the run in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_answer(self, question_id: str, answer: str) -> None:
        """Store the answer to a question."""
        path = self._answer(question_id)
        atomic.make_directory(path.parent)
        atomic.write(path, answer.encode())

    def waiting_answer(self, question_id: str) -> str:
        return (atomic.read(self._answer(question_id)) or b"").decode(errors="replace").strip()

    def read_answer(self, question: Question) -> str | None:
        """Return the answer to a question, None without one. A rejected one is set aside, so that it is read once."""
        path = self._answer(question.id)
        raw = atomic.read(path)
        if raw is None:
            return None
        answer = raw.decode(errors="replace").strip()
        if question.rejection(answer):
            path.replace(path.with_name(f"{path.name}.refused"))
        return answer

    def write_signal(self, name: str, data: str) -> None:
        """Store a signal; `data` is JSON, or empty for true."""
        path = self._signal(name)
        atomic.make_directory(path.parent)
        atomic.write(path, data.encode())

    def take_signal(self, name: str, place: str) -> Any:
        """Return the value of a signal and keep it for `place`, which may ask again; None if it has not arrived."""
        taken = self._signal(name).with_name(f"{quote(name, safe='')}@{quote(place, safe='#')}")
        if not taken.exists():
            try:
                self._signal(name).replace(taken)
            except FileNotFoundError:
                return None
        body = (atomic.read(taken) or b"").decode(errors="replace").strip()
        try:
            return json.loads(body) if body else True
        except ValueError:
            return body

    def _answer(self, question_id: str) -> Path:
        return self.directory / "answers" / quote(question_id, safe="#")

    def _signal(self, name: str) -> Path:
        return self.directory / "signals" / quote(name, safe="")


def first_asked_at(folder: Path | None, question: Question) -> float:
    """Return when `question` was first asked, in seconds since 1970, and store it in the node's `folder`."""
    now = time.time()
    if folder is None:
        return now
    path = folder / "question.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["id"] == question.id:
            return float(stored["asked_at"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    atomic.write(path, json.dumps({**question.to_data(), "asked_at": now}, indent=1).encode(), durable=False)
    return now


class OpenQuestion(NamedTuple):
    """A question that a run has asked and not settled, that run, its question.json, and the answer it was given ('' if
    none: it waits for one)."""

    run: RunDirectory
    question: Question
    data: Mapping[str, Any]
    answer: str = ""


def open_questions(run: RunDirectory) -> dict[str, OpenQuestion]:
    """Return the questions open in a run and its children, by node."""
    questions: dict[str, OpenQuestion] = {}
    for path in sorted((run.root / "children").glob("*/journal.jsonl")):
        questions.update(open_questions(RunDirectory(path.parent)))
    for place in (read_checkpoint(run) or {}).get("in_flight", ()):
        raw = atomic.read(Path(place.get("folder") or run.node(place["node"])) / "question.json")
        body = json.loads(raw) if raw else None
        if body and body["id"] in (place["id"], f"{place['id']}@{place['attempt']}") and body["options"]:
            question = Question.from_data(body)
            questions[place["node"]] = OpenQuestion(run, question, body,
                                                    GateFiles(run.root).waiting_answer(question.id))
    return questions
