"""`garrison status` for people: bodies of `status.gather` become lines. Pure.

The rule of this room: everything a body holds is shown through `span` or `wrapped`, which let only words pass. The
first line of a run says how it stands, the last ones what to do about what failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from garrison.cli.render import Line, Span, fit, raw, span, table, wrapped
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.views.heartbeats import silent
from garrison.views.limits import span_of
from garrison.views.node_state import first_line
from garrison.views.run_view import progress

COLOURS: Mapping[str, str] = {
    "merged": "good", "skipped": "dim", "landing": "due", "working": "busy", "failed": "bad", "waiting": "dim",
    "parked": "due", "done": "good", "running": "busy", "new": "dim", "stopped": "due", "corrupt": "bad",
    "alive": "good", "starting": "busy", "dead": "bad", "lapsed": "bad", "lingering": "bad", "elsewhere": "due",
}
"""Word → style."""
BLOCKS: Mapping[str, str] = {"merged": "█", "landing": "▓", "working": "▒", "failed": "!", "waiting": "░",
                             "parked": "p", "skipped": "-"}
"""Place of a node → its part of the bar; each can be told without colours."""
WORDS: Mapping[str, str] = {"merged": "merged", "landing": "waiting to land", "working": "working",
                            "failed": "failed", "waiting": "waiting", "parked": "parked", "skipped": "skipped"}
BAR = 30
"""Columns of a progress bar, at most."""
RUNS = ("RUN", "STATUS", "MERGED", "PIPELINE", "BEGUN", "REPOSITORY", "REASON")
NODES = ("NODE", "STATUS", "PHASE", "TRY", "LIVES", "AGE", "DOING")
LAYERS = ("LAYER", "LIFE", "STATUS", "VERDICT", "PHASE", "PID", "BEAT", "WHY")
LIMITS = ("LEVEL", "LIMIT", "USED", "SET BY", "OF")


def overview(bodies: Sequence[Mapping[str, Any]], columns: int | None) -> list[Line]:
    """A line a run."""
    rows = [(span(body["run_id"], "head"), _word(stands(body)), span(progress(body)), span(body["pipeline_id"]),
             span(format_age(body["age_s"]) and f"{format_age(body['age_s'])} ago"), span(body["repo"]),
             span(first_line(body["reason"]))) for body in bodies]
    return table(RUNS, rows, columns, least=12)


def whole(body: Mapping[str, Any], columns: int | None, *, with_limits: bool = False) -> list[Line]:
    """Everything about one run."""
    parts = [list(_head(body, columns)), _nodes(body, columns), _layers(body, columns),
             *(list(_failure(body, failed, columns)) for failed in body["failed"]),
             limits(body["limits"], columns) if with_limits else []]
    lines: list[Line] = []
    for part in parts:
        lines += [*([[]] if lines and part else []), *part]
    return lines


def _head(body: Mapping[str, Any], columns: int | None) -> Iterator[Line]:
    yield from wrapped(summary(body), columns, COLOURS.get(stands(body), "head"))
    if body["total"]:
        yield _bar(body["counts"], body["total"], columns)
    if body["queue"]:
        yield from wrapped(f"the merge queue is paused ({body['queue']['paused']}): "
                           f"{first_line(body['queue']['detail'])}", columns, "due")
    for gate in body["gates"]:
        yield from wrapped(f"{gate['node']} {gate['doing']}", columns, "due")
    if body["hint"]:
        yield from wrapped(body["hint"], columns, "due")
    for problem in body["problems"]:
        yield from wrapped(problem, columns, "bad")


def summary(body: Mapping[str, Any]) -> str:
    """A run in one sentence."""
    return (f"run {body['run_id']}: {stands(body)}, {progress(body)}" + ("" if body["adhoc"] else " merged")
            + (f"; {first_line(body['reason'])}" if body["reason"] else ""))


def stands(body: Mapping[str, Any]) -> str:
    """How a run stands, in one word: `waiting` if it runs, and only people and signals from outside are waited for."""
    return "waiting" if body["waiting"] else str(body["status"])


def _bar(counts: Mapping[str, int], total: int, columns: int | None) -> Line:
    room = BAR if columns is None else min(BAR, max(8, columns // 3))
    line = [Span(BLOCKS[place] * cells, COLOURS[place]) for place, cells in parts(counts, total, room).items()]
    line.append(Span("  " + ", ".join(f"{count} {WORDS[place]}" for place, count in counts.items() if count)))
    return fit(line, columns)


def parts(counts: Mapping[str, int], total: int, room: int) -> dict[str, int]:
    """How many of `room` columns each place takes: none is lost, and whatever there is has one if that can be."""
    shares = {place: count * room // total for place, count in counts.items()}
    for place, count in counts.items():
        if count and not shares[place]:
            shares[place] = 1
    while (over := sum(shares.values()) - room) != 0:
        most = max(shares, key=lambda place: (shares[place], place == "merged"))
        shares[most] -= 1 if over > 0 else -1
    return shares


def _nodes(body: Mapping[str, Any], columns: int | None) -> list[Line]:
    if not body["nodes"]:
        return []
    longest = 48 if columns is None else max(12, columns // 4)
    rows = [(Span(terminal_text.fit(terminal_text.clean(node["node"]), longest)), _word(node["place"]),
             span(node["phase"]), span(f"{node['attempt']}/{node['attempts']}"), span(_lives(node["lives"])),
             span(format_age(node["since_s"])),
             span(_doing(node) + silent(node.get("signs")), "bad" if node["place"] == "failed" else ""))
            for node in body["nodes"]]
    return table(NODES, rows, columns)


def _doing(node: Mapping[str, Any]) -> str:
    """What a node does, and how long it is to a parked one's probe."""
    left = (node.get("parked") or {}).get("probe_in_s")
    if left is None:
        return str(node["doing"])
    return str(node["doing"]).replace("parked:", f"parked, probe {f'in {format_age(left)}' if left else 'due'}:", 1)


def _lives(lives: Mapping[str, int]) -> str:
    """The lives of a node's runner and of its agent: `1+2`; '' before the first."""
    return f"{lives['runner']}+{lives['agent']}" if any(lives.values()) else ""


def _layers(body: Mapping[str, Any], columns: int | None) -> list[Line]:
    rows = [(span(layer["agent"]), span(layer["incarnation"]), span(layer["status"]), _word(layer["verdict"]),
             span(layer["phase"]), span(layer["pid"]), span(format_age(layer["beat_age_s"])),
             span(first_line(layer["why"]) if layer["verdict"] != "alive" or layer.get("stopped") else ""))
            for layer in body["layers"]]
    return table(LAYERS, rows, columns, least=16) if rows else []


def _failure(body: Mapping[str, Any], failed: Mapping[str, Any], columns: int | None) -> Iterator[Line]:
    why = first_line(failed["reason"]) or "no reason was recorded"
    yield from wrapped(f"{failed['node']} failed in attempt {failed['attempt']}: {why}", columns, "bad", "  ")
    for line in terminal_text.clean_lines(failed["tail"])[-5:]:
        yield fit(raw("    " + line.expandtabs()), columns)
    look = f"look: garrison logs {failed['node']} --run {body['run_id']}"
    yield [Span("  "), *fit(raw(look), None if columns is None else columns - 2)]
    yield [Span("  "), *raw(terminal_text.clean(failed["folder"]), "dim")]


def limits(rows: Sequence[Mapping[str, Any]], columns: int | None) -> list[Line]:
    """The table of the limits that nest, and of the time-outs."""
    cells = [(span(row["level"], "head"), span(_limit(row)), span(_used(row["used"])), span(row["set_by"], "dim"),
              span(row["text"])) for row in rows]
    return table(LIMITS, cells, columns)


def _limit(row: Mapping[str, Any]) -> str:
    return span_of(row["limit"]) if row["unit"] == "seconds" else str(row["limit"])


def _used(used: Mapping[str, int], most: int = 2) -> str:
    """Who has used how much, the largest first."""
    ordered = sorted(used.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{who.partition('@')[0]} {count}" for who, count in ordered[:most])
    return told + (f", {len(ordered) - most} more" if len(ordered) > most else "")


def _word(word: str) -> Span:
    return span(word, COLOURS.get(word, ""))


def changes(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    """What happened to a run between two looks, a line each; at first all there is."""
    before = {node["node"]: _told(node) for node in old["nodes"]} if old else {}
    lines = [summary(new)] if old is None or summary(old) != summary(new) else []
    if new["hint"] and (old is None or old["hint"] != new["hint"]):
        lines.append(new["hint"])
    lines += [f"{gate['node']} {gate['doing']}" for gate in new["gates"] if old is None or gate not in old["gates"]]
    lines += [problem for problem in new["problems"] if old is None or problem not in old["problems"]]
    return lines + [_told(node) for node in new["nodes"] if before.get(node["node"]) != _told(node)]


def _told(node: Mapping[str, Any]) -> str:
    phase = f", {node['phase']}" if node["phase"] else ""
    again = f", attempt {node['attempt']}" if node["attempt"] > 1 else ""
    return f"{node['node']}: {node['place']}{phase}{again}" + (f": {node['doing']}" if node["doing"] else "")


def one_line(text: str) -> str:
    """A text as one clean line."""
    return terminal_text.clean(text)
