"""Render `garrison status` for people: views of runs become lines. Pure.

Everything a view holds goes through `span` or `wrapped`, which let only words pass. The first line of a run is its
summary; the last ones say what failed and where to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from garrison.cli.render import Line, Span, fit, raw, span, table, wrapped
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.views.limits import Limit, span_of
from garrison.views.node_state import first_line
from garrison.views.node_view import FailedNode, NodeView
from garrison.views.run_view import RunView

STYLES: Mapping[str, str] = {
    "landed": "good", "skipped": "dim", "landing": "due", "working": "busy", "failed": "bad", "waiting": "dim",
    "parked": "due", "done": "good", "running": "busy", "new": "dim", "stopped": "due", "corrupt": "bad",
    "alive": "good", "starting": "busy", "dead": "bad", "lapsed": "bad", "lingering": "bad", "elsewhere": "due",
}
"""State → style."""
BLOCKS: Mapping[str, str] = {"landed": "█", "landing": "▓", "working": "▒", "failed": "!", "waiting": "░",
                             "parked": "p", "skipped": "-"}
"""Place of a node → its part of the bar; each is distinct without colours."""
WORDS: Mapping[str, str] = {"landing": "waiting to land"}
"""Place of a node → its words in the legend, where they are not the place itself."""
BAR = 30
"""Columns of a progress bar, at most."""
RUNS = ("RUN", "STATUS", "PROGRESS", "PIPELINE", "STARTED", "REPOSITORY", "REASON")
NODES = ("NODE", "STATUS", "PHASE", "ATTEMPT", "STARTS", "AGE", "DOING")
LAYERS = ("LAYER", "STARTS", "STATUS", "VERDICT", "PHASE", "PID", "BEAT", "WHY")
LIMITS = ("LEVEL", "LIMIT", "USED", "SET BY", "OF")


def overview(views: Sequence[RunView], columns: int | None) -> list[Line]:
    """Return a line a run."""
    rows = [(span(view.run_id, "head"), _state(view.headline), span(view.progress), span(view.pipeline_id),
             span(format_age(view.age_s) and f"{format_age(view.age_s)} ago"), span(view.repo),
             span(first_line(view.reason))) for view in views]
    return table(RUNS, rows, columns, least=12)


def in_full(view: RunView, columns: int | None, *, with_limits: bool = False) -> list[Line]:
    """Return everything about one run, which was read with details."""
    assert view.details is not None
    sections = [list(_head(view, columns)), _nodes(view.details.nodes, columns), _layers(view, columns),
                *(list(_failure(view, node, columns)) for node in view.details.failed),
                limits(view.details.limits, columns) if with_limits else []]
    lines: list[Line] = []
    for section in sections:
        lines += [*([[]] if lines and section else []), *section]
    return lines


def _head(view: RunView, columns: int | None) -> Iterator[Line]:
    yield from wrapped(summary(view), columns, STYLES.get(view.headline, "head"))
    if view.total:
        yield _bar(view.counts, view.total, columns)
    if view.details and view.details.paused:
        reason, detail = view.details.paused
        yield from wrapped(f"the merge queue is paused ({reason}): {first_line(detail)}", columns, "due")
    for gate in view.gates:
        yield from wrapped(f"{gate.node} {gate.summary()}", columns, "due")
    if view.hint:
        yield from wrapped(view.hint, columns, "due")
    for problem in view.problems:
        yield from wrapped(problem, columns, "bad")


def summary(view: RunView) -> str:
    """Return a run in one sentence."""
    reason = f"; {first_line(view.reason)}" if view.reason else ""
    return f"run {view.run_id}: {view.headline}, {view.progress}{reason}"


def _bar(counts: Mapping[str, int], total: int, columns: int | None) -> Line:
    room = BAR if columns is None else min(BAR, max(8, columns // 3))
    line = [Span(BLOCKS[place] * cells, STYLES[place]) for place, cells in shares(counts, total, room).items()]
    line.append(Span("  " + ", ".join(f"{count} {WORDS.get(place, place)}" for place, count in counts.items()
                                      if count)))
    return fit(line, columns)


def shares(counts: Mapping[str, int], total: int, room: int) -> dict[str, int]:
    """Return how many of `room` columns each place takes: all are used, and no place that has nodes is left out if
    there is room for all."""
    found = {place: count * room // total for place, count in counts.items()}
    for place, count in counts.items():
        if count and not found[place]:
            found[place] = 1
    while (over := sum(found.values()) - room) != 0:
        most = max(found, key=lambda place: (found[place], place == "landed"))
        found[most] -= 1 if over > 0 else -1
    return found


def _nodes(nodes: Sequence[NodeView], columns: int | None) -> list[Line]:
    if not nodes:
        return []
    longest = 48 if columns is None else max(12, columns // 4)
    rows = [(Span(terminal_text.fit(terminal_text.clean(node.node), longest)), _state(node.place), span(node.phase),
             span(f"{node.journaled.attempt}/{node.attempts}"), span(_starts(node)), span(format_age(node.since_s)),
             span(_doing(node), "bad" if node.place == "failed" else "")) for node in nodes]
    return table(NODES, rows, columns)


def _doing(node: NodeView) -> str:
    """Return what a node is doing, when a parked one's probe is due, and how long its agent has been silent."""
    doing, left = node.doing, node.parking.probe_in_s if node.parking else None
    if left is not None:
        doing = doing.replace("parked:", f"parked, probe {f'in {format_age(left)}' if left else 'due'}:", 1)
    return doing + (node.signs.words() if node.signs else "")


def _starts(node: NodeView) -> str:
    """Return how often a node's runner and agent were started, `1+2`; '' before the first start."""
    found = node.incarnations
    return f"{found['runner']}+{found['agent']}" if any(found.values()) else ""


def _layers(view: RunView, columns: int | None) -> list[Line]:
    rows = [(span(layer.agent), span(layer.incarnation), span(layer.status), _state(layer.verdict),
             span(layer.phase), span(layer.pid), span(format_age(layer.beat_age_s)),
             span(first_line(layer.why) if layer.verdict != "alive" or layer.stopped else ""))
            for layer in view.layers]
    return table(LAYERS, rows, columns, least=16) if rows else []


def _failure(view: RunView, node: FailedNode, columns: int | None) -> Iterator[Line]:
    why = first_line(node.reason) or "no reason was recorded"
    yield from wrapped(f"{node.node} failed in attempt {node.attempt}: {why}", columns, "bad", "  ")
    for line in terminal_text.clean_lines(node.tail)[-5:]:
        yield fit(raw("    " + line.expandtabs()), columns)
    look = f"look: garrison logs {node.node} --run {view.run_id}"
    yield [Span("  "), *fit(raw(look), None if columns is None else columns - 2)]
    yield [Span("  "), *raw(terminal_text.clean(node.folder), "dim")]


def limits(rows: Sequence[Limit], columns: int | None) -> list[Line]:
    """Return the table of the limits that nest, and of the timeouts."""
    cells = [(span(row.level, "head"), span(span_of(row.limit) if row.unit == "seconds" else str(row.limit)),
              span(_used(row.used)), span(row.set_by, "dim"), span(row.text)) for row in rows]
    return table(LIMITS, cells, columns)


def _used(used: Mapping[str, int], most: int = 2) -> str:
    """Return who has used how much, the largest first."""
    ordered = sorted(used.items(), key=lambda item: (-item[1], item[0]))
    largest = ", ".join(f"{name.partition('@')[0]} {count}" for name, count in ordered[:most])
    return largest + (f", {len(ordered) - most} more" if len(ordered) > most else "")


def _state(word: str) -> Span:
    return span(word, STYLES.get(word, ""))


def changes(old: RunView | None, new: RunView) -> list[str]:
    """Return what happened to a run between two views, a line each; without an old one all there is."""
    before = {node.node: _node_line(node) for node in old.details.nodes} if old and old.details else {}
    lines = [summary(new)] if old is None or summary(old) != summary(new) else []
    if new.hint and (old is None or old.hint != new.hint):
        lines.append(new.hint)
    lines += [f"{gate.node} {gate.summary()}" for gate in new.gates if old is None or gate not in old.gates]
    lines += [problem for problem in new.problems if old is None or problem not in old.problems]
    nodes = new.details.nodes if new.details else []
    return lines + [line for node in nodes if before.get(node.node) != (line := _node_line(node))]


def _node_line(node: NodeView) -> str:
    phase = f", {node.phase}" if node.phase else ""
    attempt = f", attempt {node.journaled.attempt}" if node.journaled.attempt > 1 else ""
    return f"{node.node}: {node.place}{phase}{attempt}" + (f": {node.doing}" if node.doing else "")
