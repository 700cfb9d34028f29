"""Figures that the README and the pages in docs quote: which program measures each, and where it is written.

A page's figures lie between `<!-- figures: NAME -->` and `<!-- /figures -->`: one sentence about the machine, then a
table. Each line of a table is text with places for figures; a line whose figures were not all measured stays as the
page has it. A part of a cell in brackets `[…]` is left out when its figure is missing, such as that of a peer.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 125
"""Characters of a line of the pages."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Program → the rows of its JSON."""


@dataclass(frozen=True)
class Figure:
    """One number: the first row of a program whose `row` and `what` match, and the key in it."""

    program: str
    row: str
    what: str
    """Regular expression that is searched in `what`."""
    key: str
    style: Callable[[float], str] = lambda value: f"{value:,.0f}"

    def of(self, rows: Rows) -> str | None:
        """Return the number as the page writes it; None if it was not measured."""
        for row in rows.get(self.program, ()):
            if row["row"] == self.row and re.search(self.what, row["what"]) and self.key in row:
                return self.style(float(row[self.key]))
        return None


@dataclass(frozen=True)
class Line:
    """Line of a table: cells with `{}` for each figure, in order."""

    cells: tuple[str, ...]
    figures: tuple[Figure, ...]

    @property
    def label(self) -> str:
        """Return the first cell, by which the line is found again in the page."""
        return self.cells[0]

    def text(self, rows: Rows) -> str | None:
        """Return the line in Markdown; None if a figure outside brackets was not measured."""
        found = [figure.of(rows) for figure in self.figures]
        cells = []
        for cell in self.cells:
            filled, found = _fill(cell, found)
            if filled is None:
                return None
            cells.append(filled)
        return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _fill(cell: str, found: list[str | None]) -> tuple[str | None, list[str | None]]:
    """Return a cell with its figures, and the figures that are left for the next cells."""
    parts = []
    for part in re.split(r"(\[[^\]]*\{\}[^\]]*\])", cell):
        count, is_optional = part.count("{}"), part.startswith("[") and "{}" in part
        mine, found = found[:count], found[count:]
        if None in mine:
            if not is_optional:
                return None, found
            continue
        text = part[1:-1] if is_optional else part
        parts.append(text.format(*mine) if count else text)
    return "".join(parts).strip(", ;"), found


def one(value: float) -> str:
    """Write a number with as many digits as it deserves: 7.8, 29, 1,008, 0.29."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def thousandth(value: float) -> str:
    """Write microseconds as milliseconds, or milliseconds as seconds."""
    return one(value / 1e3)


def tenth(value: float) -> str:
    """Write a number with one decimal."""
    return f"{value:.1f}"


def hundredth(value: float) -> str:
    """Write a number with two decimals."""
    return f"{value:.2f}"


def percent(value: float) -> str:
    """Write a share of a core in percent."""
    return f"{value * 100:.2f}"


def mebibytes(value: float) -> str:
    """Write bytes as MiB."""
    return f"{value / 2**20:.0f}"


def _respawn(name: str) -> Figure:
    return Figure("supervision", "mechanism", f"successor: {name}$", "median_ms", one)


def _queue(row: str, what: str, key: str, style: Callable[[float], str] = one) -> Figure:
    return Figure("merge_queue", row, what, key, style)


def _both(row: str, what: str) -> tuple[Figure, Figure]:
    """Median and 99th percentile."""
    return _queue(row, what, "median_ms"), _queue(row, what, "p99_ms")


def _step(engine: str) -> Figure:
    return Figure("engine", "durable", rf"^{engine}, a step of a chain", "us", thousandth)


def _crew(row: str, what: str, key: str, style: Callable[[float], str] = one) -> Figure:
    return Figure("supervision", row, what, key, style)


def _web(row: str, what: str, key: str, style: Callable[[float], str] = one) -> Figure:
    return Figure("web", row, what, key, style)


def _wait(row: str, what: str, key: str, style: Callable[[float], str] = one) -> Figure:
    return Figure("waits", row, what, key, style)


def _workflow(row: str, engine: str, *keys: str) -> tuple[Figure, ...]:
    return tuple(Figure("workflows", row, f"^{engine}", key, hundredth) for key in keys)


@dataclass(frozen=True)
class Block:
    """Table of figures in a page."""

    name: str
    page: str
    sentence: str
    """With `{machine}`: cores, kernel, load and commit."""
    heads: tuple[str, ...]
    lines: tuple[Line, ...]

    def render(self, rows: Rows, machine: str, old: str) -> tuple[str, list[str]]:
        """Return the block's text and the labels of the lines that stay as they are in `old`; the sentence stays, too,
        if all lines do."""
        kept, lines = [], []
        for line in self.lines:
            text = line.text(rows)
            if text is None:
                kept.append(line.label)
                text = next((row for row in old.splitlines() if row.startswith(f"| {line.label} |")), "")
            lines.append(text)
        sentence = self.sentence.format(machine=machine)
        if len(kept) == len(self.lines):
            return old, kept
        head = f"| {' | '.join(self.heads)} |".replace("|  |", "| |")
        if kept:
            earlier = f"easured earlier: {'; '.join(kept)}"
            sentence = f"{sentence[:-1]} (m{earlier}):" if sentence.endswith(":") else f"{sentence} M{earlier}."
        table = [head.replace("|  ", "| "), "|" + "---|" * len(self.heads), *filter(None, lines)]
        return "\n".join(["", *textwrap.wrap(sentence, WIDTH, break_on_hyphens=False), "", *table, "", ""]), kept


def replaced(text: str, name: str, inner: Callable[[str], str]) -> str:
    """Return a page's text with what is between the markers of a block replaced; ValueError without them."""
    pattern = re.compile(rf"(<!-- figures: {re.escape(name)} -->\n)(.*?)(<!-- /figures -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no figures: {name}")
    return pattern.sub(lambda found: f"{found[1]}{inner(found[2])}{found[3]}", text)


_FIRST_BYTE = tuple(_wait("first", what, "median_ms") for what in ("^garrison run", "^by hand"))

README = Block("readme", "README.md", "{machine} Each row names its command; run it to get your own figures.",
               ("", "garrison", "others", "command"), (
    Line(("`kill -9` of a trivial child → its successor", "{} ms",
          "[runit {}, ][s6 {}, ][pm2 {}, ][supervisord {}]", "`benchmarks/supervision.py`"),
         tuple(map(_respawn, ("garrison", "runit", "s6", "pm2", "supervisord")))),
    Line(("landing with an empty gate", "{} ms", "[agcoord {}]", "`benchmarks/merge_queue.py`"),
         (_queue("landing", "whole landing", "median_ms"), _queue("landing", "agcoord", "median_ms"))),
    Line(("40 branches, one bad, a gate of one second", "{} s", "one by one {} s", "`benchmarks/merge_queue.py`"),
         (_queue("drain", r"40 entries, gate 1 s, 1%", "seconds"),
          _queue("drain", r"40 entries, gate 1 s, 1%", "loop_seconds"))),
    Line(("a durable pipeline step", "{} ms", "[LangGraph with SQLite {}, ][DBOS {}]", "`benchmarks/engine.py`"),
         (_step("garrison"), _step("langgraph"), _step("dbos"))),
    Line(("`garrison run` → first byte of its agent", "{} ms", "worktree, tmux and bubblewrap by hand {}",
          "`benchmarks/waits.py`"), _FIRST_BYTE)))

WAITS = Block("waits", "docs/appendix.md", "{machine} `benchmarks/waits.py`:", ("", "garrison", "limit"), (
    Line(("`garrison run` → first byte of its agent", "{} ms", "by hand {}"), _FIRST_BYTE),
    Line(("`kill -9` of an orchestrator → its agent works again; of its runner too", "{} ms; {}", ""),
         tuple(_wait("kill", f"^kill -9 of {what}", "median_ms") for what in ("orchestrator", "runner"))),
    Line(("CPU of a node, 10 nodes; 100", "{} ms; {}", "by hand {}; {}"),
         tuple(_wait("node", f"^a node.*{who}$", key) for who in ("this", "by hand") for key in ("n10", "n100"))),
    Line(("memory of a chain with one agent; of each further node", "{} MiB; {}", ""),
         tuple(_wait("memory", what, "mib") for what in ("^a chain", "^each"))),
    Line(("CPU of a script's command", "{} ms", "Python with click and msgspec {}"),
         tuple(_wait("script", "^a command", key) for key in ("cpu_ms", "floor_ms"))),
    Line(("CPU of `garrison status`: 5 ended runs; 50; 500", "{} ms; {}; {}", ""),
         tuple(_wait("status", "ended runs", f"n{runs}") for runs in (5, 50, 500))),
    Line(("CPU of a landing: 10 entries waiting; 100; 1,000", "{} ms; {}; {}", ""),
         tuple(_wait("growth", "waiting", f"n{size}") for size in (10, 100, 1000))),
    Line(("10 entries landed before; 100; 1,000", "{} ms; {}; {}", ""),
         tuple(_wait("growth", "landed", f"n{size}") for size in (10, 100, 1000))),
    Line(("100 files in the repository; 1,000; 10,000", "{} ms; {}; {}", ""),
         tuple(_wait("growth", "files", f"n{size}") for size in (100, 1000, 10_000))),
    Line(("CPU of a guardian's turn for a signal: 10 nodes; 100; 1,000", "{} ms; {}; {}", ""),
         tuple(_wait("turn", "^a guardian", f"n{size}") for size in (10, 100, 1000))),
    Line(("in a sandbox: `git status`; a commit", "{} ms; {}", "outside {}; {}"),
         tuple(_wait("git", f"^{what}, {place}$", "least") for place in ("inside", "outside")
               for what in ("git status", "commit"))),
    Line(("second start with a kept set-up of 510 MB", "{} s", ""),
         (_wait("setup", "^the second launch", "seconds", hundredth),))))

MERGE_QUEUE = Block("merge queue", "docs/appendix.md",
                    "{machine} `benchmarks/merge_queue.py`, median and 99th percentile:",
                    ("", "garrison", "compared with"), (
    Line(("merge, commit and publish: 5,000 files; 50,000", "{}, {} ms; {}, {}",
          "`git merge` in a worktree: {} ms; {}"),
         (*_both("candidate", "candidate . publish, 5,000"), *_both("candidate", "candidate . publish, 50,000"),
          _queue("candidate", "git merge in a worktree, 5,000", "median_ms"),
          _queue("candidate", "git merge in a worktree, 50,000", "median_ms"))),
    Line(("a worktree to test in: 5,000 files; 50,000", "{}, {} ms; {}, {}", "`git worktree add`: {} s; {} s"),
         (*_both("candidate", "test tree ready, 5,000"), *_both("candidate", "test tree ready, 50,000"),
          _queue("candidate", "git worktree add, 5,000", "median_ms", thousandth),
          _queue("candidate", "git worktree add, 50,000", "median_ms", thousandth))),
    Line(("a whole landing with an empty gate", "{}, {} ms", "merging one by one: {}[; agcoord 0.2.2: {}]"),
         (*_both("landing", "whole landing"), _queue("landing", "one-by-one loop", "median_ms"),
          _queue("landing", "agcoord", "median_ms"))),
    Line(("40 entries, a gate of one second: 1 bad; 3; 7", "{} s; {}; {} ({} with `gate_cores` 1)",
          "one by one: {} s"),
         (*(_queue("drain", f"40 entries, gate 1 s, {rate}%", "seconds") for rate in (1, 5, 20)),
          _queue("drain", "the same with `--gate-cores 1`", "seconds"),
          _queue("drain", "40 entries, gate 1 s, 1%", "loop_seconds"))),
    Line(("the same in simulation, 400 draws: 1 % bad; 5 %; 20 %",
          "{}, {}, {} times as fast (two gates: {}, {}, {})", "one by one: 1"),
         tuple(_queue("drain", f"^{rate}% bad on the average of 400 draws{gates}", "ratio", tenth)
               for gates in ("$", " with") for rate in (1, 5, 20))),
    Line(("the same with failed runs repeated on both sides",
          "{}, {}, {} times as fast (two gates: {}, {}, {})", "one by one: 1"),
         tuple(_queue("drain", f"^{rate}% bad on the average, both repeat red runs{gates}", "confirmed_ratio", tenth)
               for gates in ("$", " with") for rate in (1, 5, 20))),
    Line(("good entries rejected by a gate that fails wrongly in 5 % of runs", "{} to {} %", "one by one: 5 %"),
         tuple(_queue("flaky", f"flaky, {rate}% bad", "share", lambda value: f"{value * 100:.3f}") for rate in (0, 5))),
    Line(("enqueue: 50 at once in process", "{}, {} ms", ""), _both("enqueue", "50 at once while a test runs, in")),
    Line(("`kill -9` of the processor → a new one has adopted the running test", "{}, {} ms", ""),
         _both("takeover", "successor has adopted"))))

SUPERVISION = Block("supervision", "docs/appendix.md", "{machine} `benchmarks/supervision.py`:", ("", ""), (
    Line(("`kill -9` of an orchestrator → its agent is at work again",
          "{} ms (worst of 10: {}); a cold start takes {}"),
         (*(_crew("felt", "kill -9 of orchestrator →", key) for key in ("median_ms", "worst_ms")),
          _crew("felt", "cold start", "cold_ms"))),
    Line(("of the agent's shell; of runner and orchestrator together", "{} ms ({}); {} ms ({})"),
         tuple(_crew("felt", what, key) for what in ("agent's shell", "runner and orchestrator")
               for key in ("median_ms", "worst_ms"))),
    Line(("`kill -9` of the guardian of 100 agents → a new one is ready",
          "{} ms ({}); {} lost, {} doubled, {} restarted in 10 kills"),
         (*(_crew("crew", "guardian → a new one", key) for key in ("median_ms", "worst_ms")),
          *(_crew("crew", "adoption: lost", key, lambda value: f"{value:.0f}")
            for key in ("lost", "doubled", "restarted")))),
    Line(("private memory of a node (runner and orchestrator)", "{} MiB"),
         (_crew("crew", "private memory of a node", "mib", tenth),)),
    Line(("100 idle agents", "{} % of a core"), (_crew("crew", "^100 idle agents: CPU", "cores", percent),))))

WEB = Block("web", "docs/appendix.md",
            "{machine} `benchmarks/web.py`, a run of 200 nodes of which 20 work:", ("", ""), (
    Line(("a record in a journal → the event at a client", "median {} ms, p99 {} ms"),
         (_web("event", "journal to client", "median_ms", tenth), _web("event", "journal to client", "p99_ms", tenth))),
    Line(("the server with 100 clients", "{} MiB in all; all have their snapshot within {} s"),
         (_web("crowd", "memory with 100 clients", "bytes", mebibytes),
          _web("crowd", "100 clients have their snapshot", "seconds"))),
    Line(("idle: no page open; one page open", "{} % of a core and {} MiB; {} %"),
         (_web("idle", "no page open", "percent", hundredth), _web("idle", "no page open", "bytes", mebibytes),
          _web("idle", "one page open", "percent", hundredth))),
    Line(("first visit of a browser: first paint; graph drawn", "{} ms; {} s"),
         (_web("paint", "first paint", "first_ms"), _web("paint", "first paint", "drawn_ms", thousandth)))))

WORKFLOWS = Block("workflows", "docs/appendix.md",
                  "{machine} `benchmarks/workflows.py`, beside LangGraph with its SQLite checkpointer:",
                  ("", "garrison", "LangGraph"), (
    Line(("a step of a chain of 1,000", "{} ms, {} of CPU", "[{} ms, {}]"),
         (*_workflow("step", "garrison", "ms", "cpu_ms"), *_workflow("step", "langgraph", "ms", "cpu_ms"))),
    Line(("a turn of a [session](sessions.md), besides its model", "{} ms, {} of CPU", "[{} ms, {}]"),
         (*_workflow("turn", "garrison", "ms", "cpu_ms"), *_workflow("turn", "langgraph", "ms", "cpu_ms"))),
    Line(("killed in step 500 of 1,000 → its next step", "{} s", "[{} s]"),
         (*_workflow("resume", "garrison", "first_s"), *_workflow("resume", "langgraph", "first_s")))))

BLOCKS = (README, WAITS, MERGE_QUEUE, SUPERVISION, WEB, WORKFLOWS)
