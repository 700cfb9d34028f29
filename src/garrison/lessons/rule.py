"""Rule that proposes lessons from records of refusals. Pure.

A refusal (by kind and subject) or a remark of a reviewer or validator is proposed once it has occurred at least twice
within 30 days and work that it sent back has landed since. A kept lesson counts how often its refusal recurs, and is
proposed for removal after 90 days without one.

Names of files and tests are chosen by agents and count as hostile. A line quotes them as one code span of bounded
length, so that they can neither imitate an instruction nor import a file.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from garrison.agents.quotation import mention
from garrison.ends import RefusalKind, RefusedBy
from garrison.errors import UsageError
from garrison.system.terminal_text import clean, spell_hidden
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DAY = 86400.0
WITHIN, QUIET = 30 * DAY, 90 * DAY
"""Seconds within which a refusal has to occur twice, and without one before its lesson is to be removed."""
TIMES, MOST_OPEN = 2, 3
"""Number of occurrences for a proposal, and maximum number of open proposals."""
MOST_CHARACTERS = 300
"""Maximum length of a lesson's line."""
_IMPORT = re.compile(r"(?<![\w@])@[^\s`]+")
"""Matches an import in an instructions file."""
_BEGINS_BLOCK = "#->*+=|~ "
CHECK, COMMAND = "check", "command"
"""Subject of a refusal by acceptance or gate: a failed test, or the whole command."""

_LINES: Mapping[tuple[str, str], str] = {
    (RefusedBy.ACCEPTANCE, CHECK): "Before you report success, run {}: work here was sent back because it failed.",
    (RefusedBy.ACCEPTANCE, COMMAND): "Before you report success, run {}: work here was sent back because it failed.",
    (RefusedBy.GATE, CHECK): "Before you report success, run {}: the gate refused work here because it failed.",
    (RefusedBy.GATE, COMMAND): "Before you report success, run {}: it is the gate, and it refused work here.",
    (RefusedBy.CONFLICT, ""): "Change as few lines of {} as you can: others often change it at the same time.",
    (RefusedBy.REVIEW, ""): "A reviewer has asked more than once: {}",
    (RefusedBy.VALIDATOR, ""): "A validator has refused work more than once: {}",
    (RefusedBy.HOOK, RefusalKind.HOOK): "Before you report success, run the commit hook {}: it refused work here.",
    (RefusedBy.NO_CHANGE, RefusalKind.IGNORED): "Do not put results into {}: git ignores it.",
    (RefusedBy.UNFINISHED, RefusalKind.OPERATION): "Finish or abort what you start with git: {} was left open.",
    (RefusedBy.UNFINISHED, RefusalKind.UNMERGED): "Resolve the conflicts in {} and add it before you report success.",
    (RefusedBy.UNFINISHED, RefusalKind.MARKERS): "Leave no conflict markers in {}.",
    (RefusedBy.UNFINISHED, RefusalKind.STASH): "Commit your work on your own branch: what is in the stash is lost.",
    (RefusedBy.UNFINISHED, RefusalKind.OTHER_BRANCH): "Commit your work on your own branch, not on another one.",
    (RefusedBy.UNFINISHED, RefusalKind.REWRITTEN): "Never rewrite the commits at the start of your branch."}
"""Refusing step and subject → line; `{}` is the quoted name."""
_GUARD = "Do not commit {}: `[guard]` refuses it."
_UNNAMED = frozenset({RefusalKind.STASH.value, RefusalKind.OTHER_BRANCH.value, RefusalKind.REWRITTEN.value})


class Subject(Value):
    """Subject of a refusal."""

    by: str
    """One of `RefusedBy`."""
    what: str = ""
    """A `RefusalKind` or `ChangeKind`, CHECK or COMMAND; '' if `by` is enough."""
    name: str = ""
    """Named file, test, command or hook, or the words of a reviewer or validator."""

    def id_in(self, repository: str) -> str:
        """Return the id of its lesson; case and white space of remarks are ignored."""
        is_remark = self.by in (RefusedBy.REVIEW, RefusedBy.VALIDATOR)
        name = " ".join(self.name.casefold().split()) if is_remark else self.name
        key = "\0".join((repository, self.by, self.what, name)).encode(errors="replace")
        return hashlib.sha256(key).hexdigest()[:8]

    @property
    def line(self) -> str:
        """Return the line for agents, '' for a refusal without a lesson."""
        form = _LINES.get((self.by, self.what), _GUARD if self.by == RefusedBy.GUARD else "")
        quoted = mention(self.name)
        return form.format(quoted) if form and (quoted or self.what in _UNNAMED) else ""


class Occurrence(Value):
    """Refusal of an attempt's work."""

    subject: Subject
    run: str
    node: str
    attempt: int
    at: float
    """Seconds since 1970."""
    resolved: bool = False
    """True if the node has since landed in a run that landed."""


class LessonProposal(Value):
    """Proposed lesson that the user may keep or drop."""

    id: str
    subject: Subject
    sources: tuple[Occurrence, ...]
    """Refusals, newest first."""


class Source(Value):
    """Attempt whose work was sent back."""

    run: str
    node: str
    attempt: int


class ShownLesson(Value):
    """Lesson for `garrison lessons --json` and the page."""

    id: str
    state: str
    """`proposed`, `kept`, or `quiet` for a kept lesson whose refusal has not occurred for 90 days."""
    text: str
    written_by: str
    """Agent that worded the text, '' for the rule or the user."""
    quoted: str
    """The rule's line, which quotes the subject."""
    place: str
    """File with its line, or `private`; for a proposal the file that would get it."""
    times: int
    """Number of attempts that its refusal sent back; for a kept lesson, since it was kept."""
    sources: tuple[Source, ...]
    """Attempts behind a proposal, newest first."""


def propose(found: Iterable[Occurrence], repository: str, decided: Iterable[str],
            now: float) -> tuple[LessonProposal, ...]:
    """Return the open proposals, most frequent refusals first, then the latest.

    Args:
        decided: ids of lessons that the user has kept or dropped.
        now: seconds since 1970.
    """
    by_id = dict[str, list[Occurrence]]()
    for each in found:
        if now - WITHIN <= each.at and each.subject.line:
            by_id.setdefault(each.subject.id_in(repository), []).append(each)
    for name in decided:
        by_id.pop(name, None)
    made = []
    for name, several in by_id.items():
        # an attempt refused for the same thing in several places counts once
        attempts = {(each.run, each.node, each.attempt): each for each in several}
        if len(attempts) >= TIMES and any(each.resolved for each in attempts.values()):
            sources = tuple(sorted(attempts.values(), key=lambda each: each.at, reverse=True))
            made.append(LessonProposal(name, sources[0].subject, sources))
    made.sort(key=lambda each: (-len(each.sources), -each.sources[0].at, each.id))
    return tuple(made[:MOST_OPEN])


class LessonEffect(Value):
    """Effect of a lesson since it was kept."""

    times: int
    """Number of attempts that its refusal has sent back since."""
    remove: bool
    """True if there was none for 90 days."""


def judge(lesson: str, repository: str, kept_at: float, found: Iterable[Occurrence], now: float) -> LessonEffect:
    """Return how often the refusal of a kept lesson has recurred, and whether to propose removal."""
    back = {(each.run, each.node, each.attempt): each.at for each in found
            if each.at > kept_at and each.subject.id_in(repository) == lesson}
    return LessonEffect(len(back), now - max(back.values(), default=kept_at) > QUIET)


def check_text(text: str) -> str:
    """Return the user's wording of a lesson; UsageError unless it is one line of at most 300 characters."""
    line = spell_hidden(clean(text))
    if not line or len(line) > MOST_CHARACTERS or len(text.strip().splitlines()) != 1:
        raise UsageError(f"a lesson is one line of at most {MOST_CHARACTERS} characters; shorten --text")
    return line


def clean_wording(text: str) -> str:
    """Return an agent's wording of a lesson as one line without imports, headings, comments or code blocks.

    '' if there is none, or if it is too long.
    """
    # Only paired single backticks: otherwise text that looks like code to us could render as text, and its `@path` be
    # imported. A comment would hide all following lessons.
    line = re.sub("`+", "`", spell_hidden(clean(text))).replace("<!--", "<! --").lstrip(_BEGINS_BLOCK)
    if line.count("`") % 2:
        line = line.replace("`", "'")
    pieces = line.split("`")  # every second part is code
    pieces[::2] = [_IMPORT.sub(lambda found: f"`{found[0]}`", piece) for piece in pieces[::2]]
    line = "`".join(pieces)
    return line if len(line) <= MOST_CHARACTERS else ""


def add_line(text: str, line: str) -> str:
    """Return a file's text with a lesson as its last line; unchanged if it already has the line."""
    entry, end = f"- {line}", "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    if entry in lines:
        return text
    gap = end if lines and lines[-1].strip() and not lines[-1].startswith("- ") else ""
    return f"{text}{end if text and not text.endswith(chr(10)) else ''}{gap}{entry}{end}"


def remove_line(text: str, line: str) -> str:
    """Return a file's text without a lesson's line, and without resulting blank lines at the end."""
    lines = text.splitlines(keepends=True)
    kept = [each for each in lines if each.rstrip("\r\n") != f"- {line}"]
    while len(kept) < len(lines) and kept and not kept[-1].strip():
        kept.pop()
    return "".join(kept)
