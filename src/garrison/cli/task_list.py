"""Lists of tasks (Markdown, or one per line), and the graph of the run that does them. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import TYPE_CHECKING

from garrison.errors import UsageError
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MAX_NAME = 32
"""Maximum length of a name made from a task's words."""
MAX_LABEL = 72
MAX_TASKS = 500
"""Maximum number of tasks of one run."""
MAX_BYTES = 4 << 20
"""Maximum size of a file with tasks."""
_MOST_OFFERS = 8
"""Maximum number of headings named in a message."""
_TERMINALS = ("start", "exit")
_ITEM = re.compile(r"(?P<indent> *)(?:[-*+]|(?P<number>\d{1,6})[.)])(?: +|$)(?:\[(?P<tick>.)\](?: +|$))?(?P<text>.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$")
_FENCE = re.compile(r" *(```|~~~)")
_ID = re.compile(r"(?:\*\*|`)?([A-Z][A-Z]{0,7}-?\d{1,6})\b(?:\*\*|`)?[:.]?")
_AFTER = re.compile(r"\s*\((?:after|depends on|needs)\s+([^()]+)\)\s*[.;]?\s*$", re.IGNORECASE)
_TICK = re.compile(r"\[(.)\](?: +|$)")
"""Box before a task of a list that is not Markdown."""
_BEFORE_TICK = re.compile(r"(?P<item>\s*(?:(?:[-*+]|\d{1,6}[.)])(?:[ \t]+|$))?)(?:\[\s\][ \t]*)?")
"""Prefix of a task's words, up to and including an empty box."""
_NESTED = 2
"""Minimum additional indent in columns of an item or line that belongs to an item."""


class ListedTask(Value):
    """Task of a list."""

    text: str
    """Its words and nested text, without tick and dependencies."""
    line: int
    """Number of its first line in the file, from 1."""
    marks: tuple[str, ...] = ()
    """Its names for other tasks: its number in the list, and an id such as T001 at its start."""
    ticked: bool = False
    after: tuple[str, ...] = ()
    """Names of the tasks that it waits for."""
    headings: tuple[str, ...] = ()
    """Headings above it, outermost first."""

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0]


@dataclass
class _Open:
    """Item being read."""

    task: ListedTask
    indent: int
    lines: list[str] = field(default_factory=list)
    blank: bool = False


def words_of(text: str) -> str:
    """Return a task's text for comparison: without case and layout."""
    return " ".join(text.split()).casefold()


def decode_text(data: bytes, source: str) -> str:
    """Return the content of a file with tasks; UsageError if it is not text, or too large."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{source} is larger than {MAX_BYTES >> 20} MiB; split it, or pass the file with the tasks")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not text in UTF-8; save it as UTF-8, or pass the file with the tasks") from error
    if "\0" in text:
        raise UsageError(f"{source} is not text: it has zero bytes; save it as UTF-8, or pass the file with the tasks")
    return text


def read_list(text: str) -> list[ListedTask]:
    """Return the tasks of a text, including ticked ones: the items of the outermost lists, else one per line."""
    return _read_items(text) or [
        _finish(ListedTask("", number, ticked=tick is not None and not tick[1].isspace()),
                [line[tick.end() if tick else 0:]], str(place))
        for place, (number, line, tick) in enumerate(
            ((number, line.strip(), _TICK.match(line.strip())) for number, line in enumerate(text.splitlines(), 1)
             if line.strip() and not line.lstrip().startswith(("#", "<!--"))), 1)]


def tick_tasks(data: bytes, landed: Collection[str], source: str) -> tuple[bytes, list[str]]:
    """Return a list with a tick at each open task whose words (`words_of`) have landed, and their titles. Pure.

    Everything else is unchanged, byte for byte. UsageError if the list is not text.
    """
    text = decode_text(data, source)
    # split lines like read_list: splitlines() also breaks at form feeds and U+2028
    lines, titles = text.splitlines(keepends=True), []
    for task in read_list(text):
        if not task.ticked and words_of(task.text) in landed:
            line = lines[task.line - 1]
            before = _BEFORE_TICK.match(line)
            lines[task.line - 1] = f"{before['item']}[x] {line[before.end():]}" if before else line
            titles.append(task.title)
    # restore a byte order mark, which decoding dropped
    return (data[:len(data) - len(text.encode())] + "".join(lines).encode() if titles else data), titles


def _read_items(text: str) -> list[ListedTask]:
    found: list[ListedTask] = []
    headings: list[tuple[int, str]] = []
    item: _Open | None = None
    place, fence = 0, ""

    def close() -> None:
        nonlocal item
        if item is not None:
            found.append(_finish(item.task, item.lines, *item.task.marks))
        item = None

    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.expandtabs(4).rstrip()
        indent = len(line) - len(line.lstrip())
        inside = item is not None and (indent >= item.indent + _NESTED or not line)
        opened = _FENCE.match(line)
        if fence or opened:
            # a fence ends only with its own mark
            fence = "" if fence and opened and opened[1] == fence else fence or (opened[1] if opened else "")
            if item is not None:
                item.lines.append(line)
            continue
        heading, entry = None if inside else _HEADING.match(line), None if inside else _ITEM.fullmatch(line)
        if heading:
            close()
            headings = [each for each in headings if each[0] < len(heading[1])] + [(len(heading[1]), heading[2] or "")]
            place = 0
        elif entry and (item is not None or indent < 2 * _NESTED):
            close()
            place += 1
            mark = str(place) if entry["number"] in (None, "1") else entry["number"]
            ticked = entry["tick"] is not None and not entry["tick"].isspace()
            item = _Open(ListedTask("", number, (mark,), ticked, headings=tuple(words for _, words in headings)),
                         indent, [entry["text"]])
        elif item is not None and (inside or not item.blank):
            item.lines.append(line)
        else:
            close()
        if item is not None:
            item.blank = not line
    close()
    return found


def _finish(task: ListedTask, lines: Sequence[str], *marks: str) -> ListedTask:
    """Return a task with its text: nested parts dedented, and without the words for its dependencies."""
    rest = [line for line in lines[1:] if line]
    margin = min((len(line) - len(line.lstrip()) for line in rest), default=0)
    first, after = lines[0].strip(), ()
    if waits := _AFTER.search(first):
        first, after = first[:waits.start()], tuple(re.findall(r"[\w-]+", re.sub(r"\band\b", " ", waits[1])))
    known = _ID.match(first)
    text = "\n".join([first, *(line[margin:] for line in lines[1:])]).strip()
    return replace(task, text=text, marks=(*marks, *([known[1]] if known else [])), after=after)


def choose_tasks(tasks: Sequence[ListedTask], sections: Sequence[str], source: str) -> list[ListedTask]:
    """Return the tasks of the requested sections, including ticked ones; UsageError if the choice is unclear."""
    if sections:
        wanted = {words.strip().lstrip("#").strip().casefold(): words for words in sections}
        chosen = [task for task in tasks if set(wanted) & {words.casefold() for words in task.headings}]
        missing = set(wanted) - {words.casefold() for task in tasks for words in task.headings}
        if missing:
            there = ", ".join(dict.fromkeys(f'"{words}"' for task in tasks for words in task.headings))
            raise UsageError(f"{source} has no list under \"{wanted[min(missing)]}\"; " + (
                f"there is {there}" if there else "its tasks are under no heading: leave out --section"))
        return chosen
    offers = offer_sections(tasks)
    if len(offers) > 1:
        named = [f'--section "{words}" ({count})' for words, count in offers.items()]
        more = f", or another of its {len(offers)} headings" * (len(offers) > _MOST_OFFERS)
        raise UsageError(f"{source} has tasks under several headings; pass {' or '.join(named[:_MOST_OFFERS])}{more}")
    return list(tasks)


def offer_sections(tasks: Sequence[ListedTask]) -> dict[str, int]:
    """Return the headings directly above open tasks, and last one above all of them, if any, each with the number of
    its open tasks; empty if there is no choice. Pure.

    A task above the first heading belongs to none.
    """
    open_ = [task for task in tasks if not task.ticked]
    own = Counter(task.headings[-1] if task.headings else "" for task in open_)
    if len(own) < 2:
        return {}
    top = {task.headings[0] if task.headings else "" for task in open_}
    whole = {min(top): len(open_)} if len(top) == 1 else {}
    return {words: count for words, count in ({**own, **whole}).items() if words}


def check_tasks(tasks: Sequence[ListedTask], source: str) -> None:
    """Check that these tasks can be one run; UsageError with the line and advice."""
    if len(tasks) > MAX_TASKS:
        raise UsageError(f"{source} lists {len(tasks):,} tasks; the maximum for one run is {MAX_TASKS}: split the "
                         "list, or choose a part with --section")
    seen: dict[str, ListedTask] = {}
    for task in (task for task in tasks if not task.ticked):
        if len(task.text) < 2:
            what = f"{task.text} is not a task" if task.text else "this task is empty"
            raise UsageError(f"{source}, line {task.line}: {what}; describe in words what to do, or remove it")
        other = seen.setdefault(words_of(task.text), task)
        if other is not task:
            raise UsageError(f"{source}, lines {other.line} and {task.line} are the same task; remove one of them")


def order_tasks(tasks: Sequence[ListedTask], open_: Collection[int], source: str, *, in_order: bool,
                busy: Mapping[int, str] = MappingProxyType({})) -> dict[int, tuple[int, ...]]:
    """Return, for each open task by its index in `tasks`, the open ones that it waits for.

    Ticked or landed tasks are done and block nothing; `busy`: tasks at work → run. UsageError for a missing or
    ambiguous name, for cycles, and for a task that waits for another run's.
    """
    places: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        for mark in task.marks:
            places.setdefault(mark.casefold(), []).append(place)
    waits: dict[int, tuple[int, ...]] = {}
    previous: tuple[int, ...] = ()
    for place in sorted({*open_, *busy}):
        if place in busy:
            previous = (place,) if in_order else ()
            continue
        named: list[int] = []
        for mark in tasks[place].after:
            found = places.get(mark.casefold(), [])
            if len(found) != 1 or found == [place]:
                which = "no other task of the list is" if found in ([], [place]) else "several tasks of the list are"
                raise UsageError(f"{source}, line {tasks[place].line}: it waits for {mark}, which {which}; name one by "
                                 "its number or id")
            named += found
        waits[place] = tuple(dict.fromkeys([each for each in named if each in open_ or each in busy] + list(previous)))
        if run := next((busy[each] for each in waits[place] if each in busy), ""):
            raise UsageError(f"{source}, line {tasks[place].line}: it waits for a task that run {run} is at work on; "
                             f"start it once that has landed: `garrison status {run} --watch` shows it")
        previous = (place,) if in_order else ()
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        lines = sorted({tasks[place].line for place in error.args[1]})
        raise UsageError(f"{source}: the tasks of lines {', '.join(map(str, lines))} wait for each other; remove one "
                         "(after …)") from error
    return waits


def task_name(task: str, taken: Collection[str] = ()) -> str:
    """Return an unused node name made from a task's first words. Pure."""
    plain = unicodedata.normalize("NFKD", task).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    name = ""
    for word in words:
        longer = f"{name}_{word}" if name else word[:MAX_NAME]
        if len(longer) > MAX_NAME:
            break
        name = longer
    if not name or not name[0].isalpha() or name in _TERMINALS:
        name = f"task_{name}".rstrip("_")
    number, made = 1, name
    while made in taken:
        number += 1
        made = f"{name}_{number}"
    return made


def task_label(task: str, *, whole: bool = False) -> str:
    """Return the label of a task's node: its first line, or all of it, shortened. Pure."""
    title = task if whole else task.partition("\n")[0]
    return title if len(title) <= MAX_LABEL else f"{title[:MAX_LABEL - 1]}…"


def name_tasks(texts: Sequence[str]) -> list[str]:
    """Return a node name for each task, made from its first words without an id such as T001. Pure."""
    names: dict[str, None] = {}
    for task in texts:
        known = _ID.match(task) if len(texts) > 1 else None
        title = task.partition("\n")[0] if len(texts) > 1 else task
        names[task_name(title[known.end():] if known else title, names)] = None
    return list(names)


def task_graph(tasks: Sequence[str], command: str | None = None, acceptance: str | None = None,
               waits: Sequence[Collection[int]] = (), name: str = "", *, allow_empty: bool = False,
               budget: str | None = None, best_of: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the graph of a run with a node for each task, in this order, and edges for dependencies. Pure.

    Args:
        waits: for each task the indexes of its dependencies; empty: no dependencies.
        name: name of the graph; default: the first node's.
        budget: US dollars that each task may spend, `none` for no limit.
        best_of: attributes that give each task candidates.
    """
    names = name_tasks(tasks)
    start, end = _TERMINALS
    nodes = {start: {"shape": "Mdiamond"}}
    edges = []
    ends = dict.fromkeys(names)
    for place, (node, task) in enumerate(zip(names, tasks, strict=True)):
        attributes = {"shape": "box", "label": task_label(task, whole=len(tasks) == 1), "prompt": task,
                      "command": command, "acceptance": acceptance, "allow_empty": "true" if allow_empty else "",
                      "budget": budget, **best_of}
        nodes[node] = {key: value for key, value in attributes.items() if value}
        before = [names[other] for other in waits[place]] if waits else []
        edges += [Edge(other, node) for other in before or [start]]
        for other in before:
            ends.pop(other, None)
    nodes[end] = {"shape": "Msquare"}
    return to_dot(Graph(id=name or names[0], attrs={"flow": "dag"},
                        nodes={node: Node(node, attrs) for node, attrs in nodes.items()},
                        edges=(*edges, *(Edge(node, end) for node in ends))))
