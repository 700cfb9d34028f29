"""`garrison lessons`: lines for agents, proposed from repeated refusals, that the user keeps or drops.

A lesson of the repository is a line of its AGENTS.md or CLAUDE.md, added by a commit that the merge queue tests and
lands like any entry; a private one is a line of a file in the home. Each step is idempotent: an existing line is not
added again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli import resolve
from garrison.cli.authority import require
from garrison.cli.begin import choose_agent
from garrison.cli.commands import Command, Group
from garrison.cli.merge_queue_process import land_commit
from garrison.cli.options import home_option, output_options, use_home
from garrison.cli.output import print_json, print_message, print_table
from garrison.cli.sandbox import settle_mode
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.lessons.rule import (
    LessonProposal,
    ShownLesson,
    Source,
    add_line,
    check_text,
    judge,
    propose,
    remove_line,
)
from garrison.lessons.store import LessonRecord, Lessons, read_occurrences
from garrison.lessons.wording import Wording
from garrison.processes.runtime import Runtime
from garrison.system.clock import from_iso, iso
from garrison.system.git import validate_repository
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.merge.queue import MergeQueue

FILES = ("AGENTS.md", "CLAUDE.md")
BY_AGENT = "agent"
_FILE = "100644"
_REGULAR = frozenset({_FILE, "100755"})
"""git's modes of files; links are not followed."""
_NAMED = 2
"""Maximum number of a proposal's sources in the table."""


@click.group(cls=Group, invoke_without_command=True)
@click.option("--as-worded", is_flag=True, hidden=True)  # for the page, which must not start an agent
@output_options
@click.pass_context
def lessons(context: click.Context, home: str | None, *, as_worded: bool, as_json: bool) -> None:
    """List lessons from repeated refusals here: proposed ones that you can keep for agents, and kept ones.

    A refusal or a reviewer's remark is proposed once it has occurred twice in 30 days and work that it sent back has
    landed. No agent reads a proposal before you keep it.
    """
    use_home(home)
    if context.invoked_subcommand is not None:
        return
    require("lessons", {}, home)  # agents must not get each other's words from here
    here = _Repository.open(find_home(None))
    if not as_worded:
        here.word(time.time())
    found = here.shown(time.time())
    if as_json:
        print_json(found)
        return
    print_table(("ID", "STATE", "TIMES", "WHERE", "LESSON"), [
        (each.id, each.state, each.times, _words(each.sources) or each.place, each.text) for each in found],
        "no lessons: no refusal occurred twice in 30 days and was resolved")
    for each in found:
        if each.state == "proposed":
            if each.written_by:
                print_message(f"{each.id}: written by {each.written_by} from: {each.quoted}")
            print_message(f"{each.id}: `garrison lessons keep {each.id}` or `garrison lessons drop {each.id}`")
        elif each.state == "quiet":
            print_message(f"{each.id} was not needed for 90 days; `garrison lessons drop {each.id}`")


@lessons.command(cls=Command, examples=(
    ("garrison lessons keep 3f2a91c0", "its line is committed to AGENTS.md or CLAUDE.md if the gate passes"),
    ('garrison lessons keep 3f2a91c0 --private --text "Run make lint first."', "your words, in your home only"),
))
@click.argument("lesson", metavar="ID")
@click.option("--private", is_flag=True, help="Keep it in the home instead of the repository.")
@click.option("--to", type=click.Choice(FILES), help="File that gets the line (default: the existing one).")
@click.option("--text", metavar="TEXT", help="Your wording in place of the proposed one.")
@home_option
def keep(lesson: str, to: str | None, text: str | None, home: str | None, *, private: bool) -> None:
    """Keep a proposed lesson for all agents, as a line in AGENTS.md, CLAUDE.md or a private file."""
    if private and to:
        raise UsageError("--private and --to are mutually exclusive")
    use_home(home)
    here = _Repository.open(find_home(None))
    own = None if text is None else check_text(text)
    proposal = here.proposal(lesson, time.time())
    words, by = here.words_of(proposal)
    line = own or words
    place = "" if private else here.instructions_file(to)
    # the commit first: after a kill in between, the same command finds the line landed and only records it
    if place:
        here.land(proposal.id, place, lambda old: add_line(old, line), f"Keep a lesson in {place}", line)
    with here.lessons.locked():
        if private:
            here.lessons.write_private(add_line(here.lessons.read_private(), line))
        subject = proposal.subject
        here.lessons.write(LessonRecord(proposal.id, subject.by, subject.what, subject.name, line, iso(time.time()),
                                        place, written_by="" if own else by))
    click.echo(f"kept in {place or here.lessons.private}: {line}")


@lessons.command(cls=Command, examples=(("garrison lessons drop 3f2a91c0", "it is not proposed again"),))
@click.argument("lesson", metavar="ID")
@home_option
def drop(lesson: str, home: str | None) -> None:
    """Drop a proposal for good, or remove the line of a kept lesson."""
    use_home(home)
    here = _Repository.open(find_home(None))
    kept = next((each for each in here.lessons.list() if each.id == lesson and not each.dropped), None)
    if kept is None:
        proposal = here.proposal(lesson, time.time())
        subject, (words, by) = proposal.subject, here.words_of(proposal)
        kept = LessonRecord(lesson, subject.by, subject.what, subject.name, words, iso(time.time()), written_by=by)
    elif kept.place:
        line = kept.text
        here.land(lesson, kept.place, lambda old: remove_line(old, line), f"Drop a lesson of {kept.place}", line)
    with here.lessons.locked():
        if not kept.place and (text := here.lessons.read_private()):
            here.lessons.write_private(remove_line(text, kept.text))
        here.lessons.write(replace(kept, dropped=True, at=iso(time.time())))
    click.echo(f"lesson {lesson} is dropped")


class _Repository:
    """Lessons of the current repository."""

    def __init__(self, runtime: Runtime, queue: MergeQueue) -> None:
        self.runtime, self.queue, self.git = runtime, queue, queue.git
        self.lessons = Lessons(runtime.home, self.git.key)
        self.config = read_config(runtime.home).lessons()

    @classmethod
    def open(cls, home: Path) -> _Repository:
        """Open the repository of the current folder; Refused outside of one."""
        root = validate_repository(Path.cwd())
        return cls(Runtime.real(home), resolve.open_queue(root, None, str(home)))

    def word(self, now: float) -> None:
        """Have new proposals worded by an agent if the user's settings name one."""
        if self.config.by != BY_AGENT or (tip := self.git.branch_tip(self.queue.target)) is None:
            return
        with self.lessons.wording():
            proposals = propose(read_occurrences(self.runtime, self.git), self.git.key,
                                (each.id for each in self.lessons.list()), now)
            if all(self.lessons.read_wording(each.id) is not None for each in proposals):
                return
            try:
                agent = choose_agent(self.runtime, Path(self.git.root), self.config.agent, "")
                settle_mode(self.runtime.home)
            except GarrisonError as error:
                print_message(f"this is the rule's wording: {error}")
                return
            Wording(self.runtime, self.git, self.lessons, agent, print_message).write(proposals, tip)

    def words_of(self, proposal: LessonProposal) -> tuple[str, str]:
        """Return the line of a proposal, and the agent that wrote it, '' for the rule."""
        wording = self.lessons.read_wording(proposal.id) if self.config.by == BY_AGENT else None
        return (wording.text, wording.agent) if wording is not None and wording.text else (proposal.subject.line, "")

    def shown(self, now: float) -> list[ShownLesson]:
        """Return the open proposals, then the kept lessons."""
        found, decided = read_occurrences(self.runtime, self.git), self.lessons.list()
        open_ones = propose(found, self.git.key, (each.id for each in decided), now)
        file = next(iter(self._files()), FILES[0])
        shown = [ShownLesson(each.id, "proposed", *self.words_of(each), each.subject.line, file, len(each.sources),
                             tuple(Source(one.run, one.node, one.attempt) for one in each.sources))
                 for each in open_ones]
        for lesson in decided:
            if not lesson.dropped:
                effect = judge(lesson.id, self.git.key, from_iso(lesson.at), found, now)
                shown.append(ShownLesson(lesson.id, "quiet" if effect.remove else "kept", lesson.text,
                                         lesson.written_by, lesson.subject.line, lesson.place or "private",
                                         effect.times, ()))
        return shown

    def proposal(self, lesson: str, now: float) -> LessonProposal:
        """Return the open proposal with an id; NotFound, or Refused if already decided."""
        decided = self.lessons.list()
        if any(each.id == lesson and not each.dropped for each in decided):
            raise Refused(f"lesson {lesson} is already kept; `garrison lessons drop {lesson}` removes it")
        for each in propose(read_occurrences(self.runtime, self.git), self.git.key, (each.id for each in decided), now):
            if each.id == lesson:
                return each
        raise NotFound(f"no lesson {lesson[:40]!r} is proposed; `garrison lessons` lists them")

    def instructions_file(self, wanted: str | None) -> str:
        """Return the file that gets a lesson; Refused if the target branch has none and none was given."""
        if found := wanted or next(iter(self._files()), ""):
            return found
        raise Refused(f"{self.queue.target} has neither {' nor '.join(FILES)}; --to {FILES[0]} creates one, --private "
                      "keeps the lesson in the home")

    def _files(self) -> list[str]:
        """Return the target branch's files for lessons."""
        tip = self.git.branch_tip(self.queue.target)
        return [name for name in FILES if tip and (found := self.git.find_text(tip, name)) and found[0] in _REGULAR]

    def land(self, lesson: str, name: str, change: Callable[[str], str], title: str, line: str) -> None:
        """Change a file by a commit that lands through the queue; GarrisonError if it does not land."""
        settle_mode(self.runtime.home)
        queue, tip = self.queue, self.git.branch_tip(self.queue.target)
        if tip is None:
            raise Refused(f"{queue.repo} has no branch {queue.target}")
        mode, old = self.git.find_text(tip, name) or (_FILE, "")
        if mode not in _REGULAR:
            raise Refused(f"{name} is not a plain file on {queue.target}; choose another with --to, or --private")
        if (new := change(old)) == old:
            return
        commit = self.git.commit_text(tip, name, mode, new, f"{title}\n\n- {line}\n")
        entry = land_commit(queue, f"lesson_{lesson}_{commit[:7]}", f"lesson/{lesson}", commit, title)
        if entry.status == "landed":
            return
        raise GarrisonError(f"{name} is not changed: {entry.reason or entry.status}; run the command again")


def _words(sources: Sequence[Source]) -> str:
    named = [f"{source.node} {source.attempt} of {source.run}" for source in sources[:_NAMED]]
    return ", ".join(named) + (f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else "")
