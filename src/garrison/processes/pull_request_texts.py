"""Texts of a run's pull request: title, garrison's section of the body, markers. Pure.

garrison writes between two markers and never outside them, so what people add stays; if they remove the markers, it
writes no more. Names and summaries come from agents, and are quoted: they cannot end the section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents.quotation import MAX_MENTIONED, mention, quote
from garrison.forge.marker import make_marker
from garrison.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

BEGIN, END = "<!-- garrison:begin -->", "<!-- garrison:end -->"
MAX_TITLE = 120
MAX_ROWS = 60
"""Nodes that the section lists."""
MAX_NOTE = 1500
"""Characters of a node's own report."""


@frozen
class NodeSummary:
    """A node, as the section tells of it."""

    node: str
    label: str
    status: str
    attempt: int
    notes: str = ""
    """Report and evidence of its agent."""


@frozen
class RunSummary:
    """A run, as title and section tell of it."""

    run: str
    goal: str
    nodes: Sequence[NodeSummary]
    gate: str = ""
    usd: float = 0.0
    calls: int = 0
    closes: str = ""
    """Line that links an issue, '' for none."""


def marker_of(run: str) -> str:
    """Return the marker of a run's pull request."""
    return make_marker("pull-request", run)


def answer_marker(run: str, comment: str) -> str:
    """Return the marker of the answer to a comment."""
    return make_marker("answer", run, comment)


def write_title(summary: RunSummary) -> str:
    """Return the title: the first line of the goal, else the label of the only node, else the run's id."""
    labels = [node.label for node in summary.nodes]
    text = summary.goal.strip().partition("\n")[0] or (labels[0].partition("\n")[0] if len(labels) == 1 else "")
    return mention(text, MAX_TITLE).strip("`") or f"Run {summary.run}"


def write_section(summary: RunSummary) -> str:
    """Return garrison's section, with its markers."""
    goal = quote(summary.goal, MAX_NOTE)
    lines = [f"Made by garrison, run `{summary.run}`.", *([goal] if goal else []),
             *([summary.closes] if summary.closes else []), "",
             "| node | task | attempts | state |", "| --- | --- | --- | --- |",
             *(f"| `{each.node}` | {_cell(each.label)} | {each.attempt} | {each.status} |"
               for each in summary.nodes[:MAX_ROWS]), ""]
    for each in summary.nodes[:MAX_ROWS]:
        if notes := quote(each.notes, MAX_NOTE):
            lines += [f"<details><summary>Report of <code>{each.node}</code></summary>\n", notes, "", "</details>", ""]
    lines.append(f"Tested by {mention(summary.gate)} on the merge with the base." if summary.gate else
                 "This run has no gate: nothing of it was tested by garrison.")
    if summary.calls:
        lines.append(f"{summary.calls} model calls, ${summary.usd:.2f}.")
    text = "\n".join(lines).replace("<!--", "&lt;!--")  # a quoted marker must not end the section
    return f"{BEGIN}\n{text.rstrip()}\n{END}"


def _cell(text: str) -> str:
    return mention(text.partition("\n")[0], MAX_MENTIONED).replace("|", "\\|")


def put_section(body: str, section: str) -> str:
    """Return `body` with `section` in the place of garrison's; unchanged if people removed one of its markers."""
    body = body.replace("\r\n", "\n")
    begin, end = body.find(BEGIN), body.find(END)
    if begin < 0 or end < begin:
        return body
    return body[:begin] + section + body[end + len(END):]
