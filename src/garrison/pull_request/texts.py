"""Texts of a run's pull request: title, garrison's section of the body, answers, markers. Pure.

garrison writes between two markers and never outside them, so other text stays; if the markers are removed, it
writes no more. Names, reports and answers come from agents, and are made inert (`tame`): they read as Markdown, but
mention nobody, close nothing, fetch nothing and command nothing, on any forge. Paths of the machine are left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from garrison.agents.quotation import mention, quote
from garrison.forge.marker import make_marker
from garrison.merge.explanation import describe_change
from garrison.system.terminal_text import clean_lines, spell_hidden
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.ends import LandingNote

BEGIN, END = "<!-- garrison:begin -->", "<!-- garrison:end -->"
MAX_TITLE = 120
MAX_ROWS = 60
"""Nodes listed in the section."""
MAX_NOTE = 4000
"""Characters of a node's own report."""
MAX_REPLY = 4000
MAX_STAT = 4000
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_LIVE = re.compile(r"@\w|[#!&%$]\d|~[A-Za-z]|\bGH-\d|://|\bmailto:|\bwww\.", re.IGNORECASE)
"""Parts of a word that make a forge link or notify: mentions, references in their forms, addresses."""
_WORD = re.compile(r"(?<!\S)([(\[{*_\"'>]*)(\S*?)([.,;:!?)\]}*_\"']*)(?!\S)")
_SPECIAL = str.maketrans({"\\": "\\\\", "<": "&lt;", "&": "&amp;", "[": "\\[", "`": "\\`", "$": "\\$"})
_COMMAND = re.compile(r"(\s*)([/#]|={3,}\s*$|-{3,}\s*$)")
"""Start of a line that is a heading, a rule, or a command of the forge (`/merge`)."""
_PLACE = re.compile(r"(?<![\w.:/~-])~?/(?:[\w.+@-]+/)+(?=[\w.+@-])")
_HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_DRAFT = re.compile(r"\s*(?:\[?(?:draft|wip)\]?\s*[:\-]?\s+|\[(?:draft|wip)\]|\(draft\)|(?:draft|wip):)", re.IGNORECASE)


class NodeSummary(Value):
    """A node in the section."""

    node: str
    label: str
    status: str
    attempt: int
    notes: str = ""
    """Report of its agent: what it changed and why."""


class RunSummary(Value):
    """A run in title and section."""

    run: str
    goal: str
    nodes: Sequence[NodeSummary]
    gate: str = ""
    usd: float = 0.0
    calls: int = 0
    closes: str = ""
    """Line that links an issue, '' for none."""
    title: str = ""
    """Title of its issue, '' for none."""
    stat: str = ""
    """Diffstat of the whole change."""
    base: str = ""
    tests: int = 0
    """Tests that the gate counted, if its output shows that."""
    seconds: float = 0.0
    """Time that the gate took."""
    is_tested: bool = False
    """True if the gate has passed on the present commits."""
    name: str = ""
    """Name by which a comment addresses garrison."""
    changes: tuple[LandingNote, ...] = ()
    """Findings for the user on the whole change."""


def marker_of(run: str, given_up: int = 0) -> str:
    """Return the marker of a run's request, or of the one that replaces number `given_up`."""
    return make_marker("pull-request", run, *([f"after-{given_up}"] if given_up else []))


def answer_marker(run: str, comment: str) -> str:
    return make_marker("answer", run, comment)


def failure_marker(run: str, key: str) -> str:
    return make_marker("failed", run, key)


# ---- hostile text ----------------------------------------------------------------------------------------------------


def tame(text: str, limit: int = MAX_NOTE) -> str:
    """Return an agent's Markdown, made inert: paragraphs, lists, emphasis and code stay, but nothing acts."""
    lines, fence, left = list[str](), "", limit
    mark = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))  # ~~~ is not code on every forge
    for raw in clean_lines(text):
        line = spell_hidden(raw).rstrip()
        left -= len(line) + 1
        if left < 0:
            lines += [*([mark] if fence else []), "", "…"]
            return "\n".join(lines).strip("\n")
        found = _FENCE.match(line)
        if fence:
            closes = found is not None and line.strip() == found[1] and found[1].startswith(fence)
            lines.append(mark if closes else line)
            fence = "" if closes else fence
        elif found is not None:
            fence = found[1]
            lines.append(mark)  # without a language: some are rendered, as diagrams or maps
        else:
            lines.append(_tame_line(line))
    return "\n".join([*lines, *([mark] if fence else [])]).strip("\n")


def _tame_line(line: str) -> str:
    """Return a line outside a code block: code stays, active parts become code, the rest is escaped."""
    line, parts, at = _without_places(line), [], 0
    for code in _CODE.finditer(line):
        parts += [_escape(line[at:code.start()]), code[0]]
        at = code.end()
    text = _join([*parts, _escape(line[at:])])
    heading = re.match(r"\s*#{1,6}\s+(.*?)\s*#*$", text)
    if heading is not None:
        return f"**{heading[1]}**" if heading[1] else ""
    return _COMMAND.sub(r"\1\\\2", text, count=1) if _COMMAND.match(text) else text


def _escape(text: str) -> str:
    """Return a piece without code, escaped; a word that would act becomes code, with everything attached to it."""
    parts, at = list[str](), 0
    for word in _WORD.finditer(text):
        if _LIVE.search(word[2]):
            parts += [text[at:word.start(2)].translate(_SPECIAL), f"`{word[2].replace('`', '')}`"]
            at = word.end(2)
    return _join([*parts, text[at:].translate(_SPECIAL)])


def _join(parts: Sequence[str]) -> str:
    """Join pieces of a line: backticks of two pieces must not become one run, which would end the code."""
    joined = ""
    for part in filter(None, parts):
        joined += (" " if joined.endswith("`") and part.startswith("`") else "") + part
    return joined


def _without_places(text: str) -> str:
    """Return a text without the folders of absolute paths, which belong to the run's machine."""
    return _PLACE.sub("", text)


# ---- the texts -------------------------------------------------------------------------------------------------------


def write_title(summary: RunSummary) -> str:
    """Return the title: the issue's, else the first line of the goal, else the label of the only node, else the run's
    id."""
    labels = [node.label for node in summary.nodes]
    text = summary.title or summary.goal.strip().partition("\n")[0] or (
        labels[0].partition("\n")[0] if len(labels) == 1 else "")
    text = _DRAFT.sub("", text, count=1) if _DRAFT.match(text) else text  # a forge would keep it a draft
    return mention(text.strip(), MAX_TITLE).strip("`") or f"Run {summary.run}"


def write_section(summary: RunSummary) -> str:
    """Return garrison's section, with its markers: what changed and why, how it was tested, how to continue."""
    nodes = summary.nodes[:MAX_ROWS]
    lines = list[str]()
    if len(summary.nodes) == 1:
        lines += [tame(nodes[0].notes), ""]
    for each in nodes if len(summary.nodes) > 1 else ():
        again = f", attempt {each.attempt}" if each.attempt > 1 else ""
        lines += [f"- **{_words(each.label)}** (`{each.node}`{again}, {each.status})", ""]
        if notes := tame(each.notes):
            lines += ["\n".join(f"  {line}".rstrip() for line in notes.split("\n")), ""]
    first, _, more = summary.goal.strip().partition("\n")
    task = summary.goal if len(first) > MAX_TITLE else more.strip()  # the title has the rest
    if task and not summary.closes:
        lines += ["<details><summary>The task</summary>", "", tame(task), "", "</details>", ""]
    lines += [summary.closes, ""] if summary.closes else []
    lines += [quote(summary.stat, MAX_STAT), ""] if summary.stat else []
    lines += ["**Look at**: " + "; ".join(map(_look_at, summary.changes)), ""] if summary.changes else []
    lines += [_tested(summary), "", _how_to_talk(summary), "", f"<sub>Made by garrison, run `{summary.run}`" + (
        f": {summary.calls} model call{'s' * (summary.calls != 1)}, ${summary.usd:.2f}" if summary.calls else "")
        + ".</sub>"]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n").replace("<!--", "&lt;!--")
    return f"{BEGIN}\n{text}\n{END}"  # a quoted marker must not end the section


def _look_at(change: LandingNote) -> str:
    names, words = change.names[:3], describe_change(change._replace(names=()))
    more = f" and {change.number - len(names):,} more" if change.number > len(names) else ""
    return f"{words}: {', '.join(mention(each, MAX_TITLE) for each in names)}{more}" if names else words


def _words(label: str) -> str:
    return _escape(" ".join(_without_places(label.partition("\n")[0])[:MAX_TITLE].split())) or "a task"


def _tested(summary: RunSummary) -> str:
    if not summary.gate:
        return "**Tests**: none, this run has no gate."
    if not summary.is_tested:
        return f"**Tests**: {mention(_without_places(summary.gate))} is running; this is a draft until it has passed."
    figures = [*([f"{summary.tests} test{'s' * (summary.tests != 1)}"] if summary.tests else []),
               *([f"{summary.seconds:.0f} s"] if summary.seconds >= 1 else [])]
    how = f" ({', '.join(figures)})" if figures else ""
    base = f" with `{summary.base}`" if summary.base else ""
    return f"**Tests**: {mention(_without_places(summary.gate))} passed{how} on the merge{base}."


def _how_to_talk(summary: RunSummary) -> str:
    name = f", or write `@{summary.name} …`" if summary.name else ""
    return (f"**To have it changed**: comment on a line, request changes in a review{name}. An agent makes the change "
            "and replies. You can also push your own commits to this branch. Other comments are shown to the agents, "
            "but start no work.")


def write_failure(why: str, help_: str) -> str:
    """Return the comment that tells reviewers that the run failed, and how to continue on the run's machine."""
    return (f"The run failed, so this is a draft again and needs no review now.\n\n{tame(why, MAX_NOTE)}\n\n"
            f"You can push commits that fix it to this branch. On the machine where the run was started, {help_}.")


def write_reply(words: str, commit: str, to: str = "", about: str = "") -> str:
    """Return the answer to a comment: the agent's words, and the commit with the change, '' for none.

    Args:
        to: the author of a comment on the whole, whose answer has no thread; '' for one on a line.
        about: that comment.
    """
    begin = next((line for line in about.splitlines() if line.strip() and not line.lstrip().startswith(">")), "")
    head = f"In reply to {mention(to)} ({mention(begin, MAX_TITLE)}):" if to and begin else ""
    text = tame(words, MAX_REPLY)
    if not text and not commit:
        text = "Nothing was changed for it, and the agent gave no reason."
    return "\n\n".join(filter(None, (head, text, f"Changed with {commit}." if commit else "")))


def put_section(body: str, section: str) -> str:
    """Return `body` with `section` in place of garrison's; unchanged if one of its markers was removed."""
    body = body.replace("\r\n", "\n")
    begin, end = body.find(BEGIN), body.find(END)
    if begin < 0 or end < begin:
        return body
    return body[:begin] + section + body[end + len(END):]


def is_addressed(text: str, name: str) -> bool:
    """Return whether a comment mentions a name (`@garrison`) in its author's own words: not in code, not in quoted
    text, and not as a part of an address."""
    called = re.compile(rf"(?<![\w@/.+-])@{re.escape(name)}(?![\w@-]|[./]\w)", re.IGNORECASE)
    fence = ""
    for line in _HIDDEN.sub("", text).splitlines():
        found = _FENCE.match(line)
        if found is not None and not fence:
            fence = found[1]
        elif fence:
            fence = "" if found is not None and line.strip() == found[1] and found[1].startswith(fence) else fence
        elif not line.lstrip().startswith(">") and called.search(_CODE.sub("` `", line)):
            return True
    return False
