"""Wording of proposed lessons by an agent that reads the repository, with `[lessons] by = "agent"`.

The agent gets the refused work quoted, and answers with one line. That line is hostile: it is cleaned, bounded and
shown with its sources, and reaches no prompt before the user keeps it. Each proposal is worded once, so that the user
keeps what was shown; if the agent fails, the rule's wording stays.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from garrison.agents.quotation import quote
from garrison.errors import GarrisonError
from garrison.lessons.rule import MOST_CHARACTERS, clean_wording
from garrison.lessons.store import WORDING, WordingRecord
from garrison.node.reader import RepositoryReader, exchange_file
from garrison.records import atomic
from garrison.records.costs import LESSONS
from garrison.records.json_io import extract_object
from garrison.records.run import Task, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from garrison.lessons.rule import LessonProposal
    from garrison.lessons.store import Lessons
    from garrison.node.reader import ReaderAnswer
    from garrison.processes.runtime import Runtime
    from garrison.system.git import Git

SECONDS = 300.0
"""Time limit of an attempt."""
KEY = "line"
ANSWER = "lesson.json"
"""Exchange file for the agent's answer."""
_SCHEMA = json.dumps({"type": "object", "required": [KEY], "properties": {KEY: {"type": "string", "description": (
    f"The instruction, in one line of at most {MOST_CHARACTERS} characters.")}}})
_REQUEST = """\
Work of coding agents on the repository here was sent back {times} times for the same reason. Write the one line for its
instructions file that would have prevented that, and do nothing else: change nothing. Say what to do before reporting
success, and name the relevant file or command. Read what you need of the repository.

What sent the work back:

{quoted}

A rule would say:

{rule}

Submit one JSON object of the schema below: as `output` of the tool `report_result` if it takes one; else in the file
`{file}` if you can write it; else at the end of your last message.

{schema}"""


class Wording:
    """Has an agent word proposals, one after the other."""

    def __init__(self, runtime: Runtime, git: Git, lessons: Lessons, agent: str, report: Callable[[str], None]) -> None:
        self.runtime, self.git, self.lessons, self.agent, self._report = runtime, git, lessons, agent, report

    def write(self, proposals: Iterable[LessonProposal], commit: str) -> None:
        """Have an agent that reads a commit word the unworded proposals; a failure is recorded, not raised."""
        for proposal in proposals:
            if self.lessons.read_wording(proposal.id) is None:
                self._report(f"lesson {proposal.id}: {self.agent} is wording it")
                wording = self._word(proposal, commit)
                if wording.trouble:
                    self._report(f"lesson {proposal.id} keeps the rule's wording: {self.agent}: {wording.trouble}")
                # a failure is kept as well: otherwise each call would pay the agent again
                save(self.lessons.folder_of(wording.id) / WORDING, wording)

    def _word(self, proposal: LessonProposal, commit: str) -> WordingRecord:
        try:
            answer = self._ask(proposal, commit)
        except (GarrisonError, OSError) as error:
            return WordingRecord(proposal.id, self.agent, trouble=str(error))
        if answer.trouble:
            return WordingRecord(proposal.id, self.agent, trouble=answer.trouble)
        found = extract_object(answer.text, KEY)
        said = found[KEY] if found is not None else None
        line = clean_wording(said) if isinstance(said, str) else ""
        return WordingRecord(proposal.id, self.agent, line, "" if line else (
            f'it gave no "{KEY}" of at most {MOST_CHARACTERS} characters'))

    def _ask(self, proposal: LessonProposal, commit: str) -> ReaderAnswer:
        place = atomic.make_directory(self.lessons.folder_of(proposal.id))
        # a new folder for each try: a killed one may have left its answer
        number = 1 + max((int(name) for name in atomic.list_names(place) if name.isdecimal()), default=0)
        folder = atomic.make_directory(place / str(number))
        file = exchange_file(folder, ANSWER)
        subject = proposal.subject
        refused = quote(f"{subject.by} {subject.what}\n{subject.name}")
        text = _REQUEST.format(times=len(proposal.sources), quoted=refused, rule=quote(subject.line), file=file,
                               schema=_SCHEMA)
        task = Task(f"lesson-{proposal.id}", proposal.id, number, label="Word a lesson", prompt=text, agent=self.agent,
                    timeout_s=SECONDS)
        account = f"{LESSONS}/{self.lessons.folder.name}"
        with RepositoryReader(
                self.runtime, self.git, commit, place, account, lambda _: "Nobody can answer. Decide yourself.",
                lambda reason: self._report(f"lesson {proposal.id}: {self.agent} waits: {reason}")) as reader:
            return reader.ask(task, folder, file, {"GARRISON_LESSON_FILE": str(file)}, schema=_SCHEMA)
