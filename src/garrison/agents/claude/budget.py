"""What sessions cost, and whether a limit is reached. The sums are pure; the files are read and appended to here alone.

`usage.jsonl` in an attempt's folder has one line for each answer of the model, written before that answer's tools run
(`kind: call`, by message id, estimated from its tokens), and one at each result (`kind: result`, what the CLI says the
session has cost since its beginning). A kill loses nothing but the answer that was under way. The CLI's total counts
over resumes, but a CLI that was killed takes what it had not told with it: so a session's cost is its highest total,
the estimates of what killed stretches did, and those of the calls that came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from garrison.agents.claude.attempt_files import append_line, read_lines

PRICES = {"opus": (5.0, 25.0), "sonnet": (3.0, 15.0), "haiku": (1.0, 5.0)}
"""US dollars for a million tokens, input and output, by a word of the model's name: estimates until the CLI tells."""
DEAREST = (15.0, 75.0)
"""For a model nobody knows: a limit errs on the safe side."""
_CACHE_WRITE, _CACHE_READ = 1.25, 0.1
"""What a token costs that is written to or read from the cache, as a part of an input token."""


@dataclass(frozen=True)
class Call:
    """One line of a usage file."""

    kind: str
    session: str
    at: str
    usd: float
    model: str = ""
    message: str = ""
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    stretch: str = ""
    """Which of the session's processes wrote it."""


@dataclass(frozen=True)
class Spent:
    """A sum."""

    usd: float = 0.0
    calls: int = 0
    input: int = 0
    output: int = 0


def estimate(model: str, usage: Mapping[str, Any]) -> float:
    """US dollars of one answer by its token counts, as the Messages API names them."""
    price_in, price_out = next((price for word, price in PRICES.items() if word in model.lower()), DEAREST)
    counts = [tokens(usage, name) for name in (
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")]
    tokens_in = counts[0] + counts[1] * _CACHE_WRITE + counts[2] * _CACHE_READ
    return (tokens_in * price_in + counts[3] * price_out) / 1e6


def call(session: str, at: str, message: str, model: str, usage: Mapping[str, Any], stretch: str = "") -> Call:
    """The line of one answer, by the token counts of the Messages API."""
    return Call("call", session, at, estimate(model, usage), model, message, tokens(usage, "input_tokens"),
                tokens(usage, "output_tokens"), tokens(usage, "cache_read_input_tokens"),
                tokens(usage, "cache_creation_input_tokens"), stretch)


def tokens(usage: Mapping[str, Any], name: str) -> int:
    """A count as it was told; 0 for what is no count: a proxy that tells nonsense must neither end a session nor give
    money back."""
    value = usage.get(name)
    return int(value) if isinstance(value, int | float) and 0 <= value < float("inf") else 0


def spent(calls: Iterable[Call]) -> Spent:
    """The sum of some lines, each session by what the CLI said last and what came after it."""
    known: dict[str, Call] = {}
    sessions: dict[str, list[Call]] = {}
    for one in calls:
        sessions.setdefault(one.session, []).append(one)
        if one.kind == "call":
            known[f"{one.session}/{one.message}"] = one
    usd = sum(_session_usd(lines) for lines in sessions.values())
    return Spent(usd, len(known), sum(one.input + one.cache_read + one.cache_write for one in known.values()),
                 sum(one.output for one in known.values()))


def spent_on(calls: list[Call], day: str) -> float:
    """US dollars of one day (2026-01-31, UTC): what was spent by its end, less what was spent before it."""
    until = [one for one in calls if one.at[:10] <= day]
    return spent(until).usd - spent(one for one in until if one.at[:10] < day).usd


def _session_usd(lines: list[Call]) -> float:
    told = lost = untold = 0.0
    after: dict[str, float] = {}
    stretch = ""
    for one in lines:
        if one.stretch != stretch:  # the one before ended without a word on these calls
            stretch, untold, after = one.stretch, untold + sum(after.values()), {}
        if one.kind == "call":
            after[one.message] = one.usd
            continue
        # A CLI that could end in order has put them into its total; one that was killed could not.
        lost += untold if one.usd - told - sum(after.values()) < untold / 2 else 0.0
        told, untold, after = max(told, one.usd), 0.0, {}
    return told + lost + untold + sum(after.values())


def read(path: Path) -> list[Call]:
    """The lines of one usage file; a torn last line is left out."""
    return [Call(**body) for body in read_lines(path)]  # a torn one is of an answer whose tools had not begun


def append(path: Path, call: Call) -> None:
    """Add a line."""
    append_line(path, vars(call))


def files_of(home: Path, run: str | None = None, node: str | None = None) -> Iterator[tuple[str, str, Path]]:
    """(run, node, file) of every usage file of the home, or of one run, or of one node of it."""
    root = home / "runs"
    for path in sorted(root.glob(f"{run or '*'}/nodes/{node or '*'}/**/claude/usage.jsonl")):  # a validator's too
        parts = path.relative_to(root).parts
        yield parts[0], parts[2], path


@dataclass(frozen=True)
class Limits:
    """The three limits in US dollars; None: none."""

    node: float | None = None
    run: float | None = None
    day: float | None = None


def reached(limits: Limits, node: float, run: float, day: float) -> str:
    """Which limit is reached by what was spent, in words; '' if none is."""
    for name, limit, used in (("node", limits.node, node), ("run", limits.run, run), ("day", limits.day, day)):
        if limit is not None and used >= limit:
            return f"${used:.2f} of the ${limit:.2f} for this {name} are spent"
    return ""


class Books:
    """Usage files, each read again only where it has grown."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, list[Call]]] = {}

    def read(self, path: Path) -> list[Call]:
        """The lines of one file."""
        size = path.stat().st_size
        known = self._seen.get(path)
        if known is None or known[0] != size:
            self._seen[path] = known = (size, read(path))
        return known[1]


class Meter:
    """What node, run and day have cost, read again only where a file has grown."""

    def __init__(self, home: Path, run: str, node: str, limits: Limits) -> None:
        self.home, self.run, self.node, self.limits = home, run, node, limits
        self._books = Books()

    def over(self, day: str) -> str:
        """Which limit is reached (`day` as 2026-01-31, UTC); ''."""
        if self.limits == Limits():
            return ""
        by_node, by_run, by_day = 0.0, 0.0, 0.0
        for run, node, path in files_of(self.home, None if self.limits.day is not None else self.run):
            calls = self._books.read(path)
            by_day += spent_on(calls, day)
            if run == self.run:
                used = spent(calls).usd
                by_run += used
                by_node += used if node == self.node else 0.0
        return reached(self.limits, by_node, by_run, by_day)
