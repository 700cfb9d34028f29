"""Costs of sessions, from what they record for each response; `budget` limits them.

`usage.jsonl` in an attempt's folder has one line for each response of the model, written before that response's tools
run (`kind: call`, by message id, estimated from its tokens), and one for each result (`kind: result`, the CLI's own
total since the session started). A kill loses at most the response in progress. The CLI's total includes resumes, but a
killed CLI has not reported its whole cost. So a session's cost is its highest total, plus the estimates of calls from
killed connections, plus those of the calls after the last total.

Sessions outside runs (the butler and its specialists, garrison sessions, plans of workflows) write the same lines to
`usage/USE/NAME.jsonl` of the home (`budget.Purse`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from garrison.records.failover import EARLIER
from garrison.records.json_io import append_line, read_json, read_lines, write_json
from garrison.records.record import from_data
from garrison.values import Value, fields_of

PRICES_OF = "2026-11-29"
"""Day on which the tables were compared with the Claude CLI (2.1.330) and genai-prices (0.2.3)."""


class Price(NamedTuple):
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float


HIGHEST_PRICE = Price(15.0, 75.0, 1.5)
"""For a model of an unknown family: a limit errs on the safe side."""
PRICES: Mapping[str, Mapping[tuple[int, int], Price]] = {
    "opus": {(3, 0): HIGHEST_PRICE, (4, 0): HIGHEST_PRICE, (4, 1): HIGHEST_PRICE, **dict.fromkeys(
        ((4, 5), (4, 6), (4, 7), (4, 8), (5, 0)), Price(5.0, 25.0, 0.5)), (5, 5): Price(4.0, 20.0, 0.2)},
    "sonnet": {**dict.fromkeys(((3, 5), (3, 7), (4, 0), (4, 5), (4, 6)), Price(3.0, 15.0, 0.3)),
               (5, 0): Price(2.0, 10.0, 0.2), (5, 5): Price(2.0, 10.0, 0.1)},
    # Long prompts to the newest models cost more.
    "haiku": {(3, 5): Price(0.8, 4.0, 0.08), (4, 5): Price(1.0, 5.0, 0.1), (5, 5): Price(0.5, 2.5, 0.05)},
    "fable": {(5, 0): Price(10.0, 50.0, 1.0), (5, 1): Price(10.0, 50.0, 0.25), (5, 2): Price(8.0, 40.0, 0.2)},
    "mythos": {(5, 0): Price(10.0, 50.0, 1.0), (5, 1): Price(10.0, 50.0, 0.25), (5, 2): Price(8.0, 40.0, 0.2)}}
"""Family → version → price. An unknown version is priced as the most expensive of its family. These are estimates until
the CLI's total, which replaces them."""
_ALIASED = (4, 5)
"""Oldest version that a family alone may mean, as in `--model opus`: priced as the most expensive from there on."""
_NAMED = re.compile(rf"(?:(\d)(?:[-.](\d{{1,2}}))?-)?({'|'.join(PRICES)})"
                    r"(?:[-.@](\d)(?:[-.](\d{1,2})(?!\d))?(?!\d))?")
"""`claude-opus-4-1-20250805`, `claude-opus-4@20250514`, `claude-3-opus-20240229`, `sonnet`."""
OTHER_PRICES: Mapping[str, Mapping[tuple[int, int], Price]] = {
    "gpt": {(4, 1): Price(2.0, 8.0, 0.5), (5, 0): Price(1.25, 10.0, 0.125),
            (5, 1): Price(1.25, 10.0, 0.125), (5, 2): Price(1.75, 14.0, 0.175), (5, 3): Price(1.75, 14.0, 0.175),
            (5, 4): Price(5.0, 22.5, 0.5), (5, 5): Price(10.0, 45.0, 1.0)},
    "4o": {(4, 0): Price(2.5, 10.0, 1.25)}, "4o mini": {(4, 0): Price(0.15, 0.6, 0.075)},
    "gpt mini": {(4, 1): Price(0.4, 1.6, 0.1), (5, 0): Price(0.25, 2.0, 0.025),
                 (5, 1): Price(0.25, 2.0, 0.025), (5, 4): Price(0.75, 4.5, 0.075)},
    "gpt nano": {(4, 1): Price(0.1, 0.4, 0.025), (5, 0): Price(0.05, 0.4, 0.005), (5, 4): Price(0.2, 1.25, 0.02)},
    "gpt pro": {(5, 0): Price(15.0, 120.0, 15.0), (5, 2): Price(21.0, 168.0, 21.0), (5, 4): Price(60.0, 270.0, 60.0),
                (5, 5): Price(60.0, 270.0, 60.0)},
    "gpt luna": {(5, 6): Price(0.4, 1.8, 0.04), (6, 0): Price(0.2, 0.75, 0.02)},
    "gpt sol": {(5, 6): Price(8.0, 30.0, 0.8), (6, 0): Price(4.0, 15.0, 0.4), (6, 1): Price(4.0, 15.0, 0.2)},
    "gpt terra": {(5, 6): Price(4.0, 18.0, 0.4), (6, 1): Price(2.0, 7.5, 0.1)},
    "gpt astra": {(6, 0): Price(20.0, 75.0, 2.0)},
    "o": {(1, 0): Price(15.0, 60.0, 7.5), (3, 0): Price(2.0, 8.0, 0.5)},
    "o mini": {(1, 0): Price(1.1, 4.4, 0.55), (3, 0): Price(1.1, 4.4, 0.55), (4, 0): Price(1.1, 4.4, 0.275)},
    "o pro": {(1, 0): Price(150.0, 600.0, 150.0), (3, 0): Price(20.0, 80.0, 20.0)},
    "gemini pro": {(2, 5): Price(2.5, 15.0, 0.25), (3, 0): Price(4.0, 18.0, 0.4), (3, 1): Price(4.0, 18.0, 0.4)},
    "gemini flash": {(2, 5): Price(0.3, 2.5, 0.03), (3, 0): Price(0.5, 3.0, 0.05), (3, 5): Price(1.5, 9.0, 0.15),
                     **dict.fromkeys(((3, 6), (3, 7), (3, 8)), Price(1.5, 7.5, 0.15))},
    "gemini flash lite": {(2, 5): Price(0.1, 0.4, 0.01), (3, 1): Price(0.25, 1.5, 0.025),
                          (3, 5): Price(0.3, 2.5, 0.03)},
    "gemini argon": {(4, 0): Price(4.0, 20.0, 0.2)}}
"""The same for other vendors, by the words of a family's name; with the price of long prompts if they cost more."""
_OTHER = re.compile(r"(?:^|/)(?:(gpt|gemini)-(\d)(?:\.(\d{1,2}))?(o?)|(o)(\d))((?:-[a-z]+)*)(?![\w.])")
"""`gpt-5.1-codex-mini`, `openai/gpt-4o-2024-11-20`, `o3`, `gemini-2.5-flash-lite`."""
PROXY_SESSION = "proxy-"
"""Prefix of the session of what the proxy counts."""
CACHE_WRITE, CACHE_WRITE_HOUR = 1.25, 2.0
"""Price of a token written to the cache, for minutes or for an hour, relative to an input token."""
CACHED_FOR_AN_HOUR = "ephemeral_1h_input_tokens"
"""Count of the tokens written to the cache for an hour, included in those written; also below `cache_creation`."""


class UsageRecord(Value):
    """One line of a usage file."""

    kind: str
    """`call` or `result`."""
    session: str
    at: str
    usd: float
    model: str = ""
    message: str = ""
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    connection: str = ""
    """Start of the connection that wrote it; `stretch` in the file."""
    reported: bool = False
    """True for a call that the proxy saw and that the attempt's program also reports."""
    estimated: bool = False
    """True if the response did not report its tokens."""


class Spent(Value):
    """Sum of usage records."""

    usd: float = 0.0
    calls: int = 0
    input: int = 0
    output: int = 0


# ---- sums


def estimate(model: str, usage: Mapping[str, object]) -> float:
    """Return the cost of one response in US dollars by its token counts, named as in the Messages API."""
    price = price_of(model)
    counts = [token_count(usage, name) for name in (
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")]
    details = usage.get("cache_creation")
    long = max(token_count(each, CACHED_FOR_AN_HOUR) for each in (usage, details if isinstance(details, dict) else {}))
    tokens_in = counts[0] + counts[1] * CACHE_WRITE + min(long, counts[1]) * (CACHE_WRITE_HOUR - CACHE_WRITE)
    return (tokens_in * price.input + counts[2] * price.cache_read + counts[3] * price.output) / 1e6


def price_of(model: str) -> Price:
    """Return a model's price."""
    named = _NAMED.search(model.lower())
    if named is None:
        return _price_of_other(model.lower())
    versions = PRICES[named[3]]
    if (major := named[4] or named[1]) is None:
        return max(price for version, price in versions.items() if version >= _ALIASED)
    version = int(major), int((named[5] if named[4] else named[2]) or 0)
    return versions.get(version) or max(versions.values())


def _price_of_other(model: str) -> Price:
    """Return the price of another vendor's model: of the version that matches most words of its name."""
    named = _OTHER.search(model)
    if named is None:
        return HIGHEST_PRICE
    vendor, major, minor = named[1] or named[5], named[2] or named[6], named[3] or "0"
    vendor = f"{major}o" if named[4] else vendor
    words = {vendor, *named[7].split("-")}
    family = max((name for name in OTHER_PRICES if name.split()[0] == vendor and words >= set(name.split())),
                 key=lambda name: len(name.split()), default="")
    versions = OTHER_PRICES.get(family)
    if versions is None:
        return HIGHEST_PRICE
    return versions.get((int(major), int(minor))) or max(versions.values())


def token_count(usage: Mapping[str, object], name: str) -> int:
    """Return a count; 0 for anything else, so that nonsense from a proxy neither ends a session nor refunds money."""
    value = usage.get(name)
    return int(value) if isinstance(value, int | float) and 0 <= value < float("inf") else 0


def call_record(session: str, at: str, message: str, model: str, usage: Mapping[str, object],
                connection: str = "") -> UsageRecord:
    """Return the record of one response by its token counts, named as in the Messages API."""
    return UsageRecord("call", session, at, estimate(model, usage), model, message, token_count(usage, "input_tokens"),
                       token_count(usage, "output_tokens"), token_count(usage, "cache_read_input_tokens"),
                       token_count(usage, "cache_creation_input_tokens"), connection)


def total(records: Iterable[UsageRecord]) -> Spent:
    """Return the sum of some records, in the order they were written."""
    calls: dict[str, UsageRecord] = {}
    sessions: dict[str, list[UsageRecord]] = {}
    for record in records:
        sessions.setdefault(record.session, []).append(record)
        if record.kind == "call":
            calls[f"{record.session}/{record.message}"] = record
    usd = sum(_session_total(lines) for lines in sessions.values())
    return Spent(usd, len(calls), sum(call.input + call.cache_read + call.cache_write for call in calls.values()),
                 sum(call.output for call in calls.values()))


def total_of_day(records: list[UsageRecord], day: str) -> float:
    """Return the US dollars of one day (2026-01-31, UTC): spent by its end, less spent before it."""
    # Not the sum of the day's lines: a total of the CLI includes the cost of earlier days.
    until = [record for record in records if record.at[:10] <= day]
    return total(until).usd - total(record for record in until if record.at[:10] < day).usd


def _session_total(records: list[UsageRecord]) -> float:
    reported = lost = unreported = 0.0
    calls: dict[str, float] = {}
    connection = ""
    for record in records:
        if record.connection != connection:  # the previous one ended without reporting these calls
            connection, unreported, calls = record.connection, unreported + sum(calls.values()), {}
        if record.kind == "call":
            calls[record.message] = record.usd
            continue
        # A CLI that exited by itself has added them to its total; a killed one could not.
        lost += unreported if record.usd - reported - sum(calls.values()) < unreported / 2 else 0.0
        reported, unreported, calls = max(reported, record.usd), 0.0, {}
    return reported + lost + unreported + sum(calls.values())


# ---- files

STREAM = "stream"
"""Folder of an attempt with what its program prints as lines of JSON, and its usage file."""
_PLACES = ("claude", "validator/claude", STREAM, "remote", "network", "validator/network", f"{EARLIER}/*/claude",
           f"{EARLIER}/*/{STREAM}")
"""Folders with a usage file in an attempt's folder: of a session, a program's stream, the hosts that worked on it, the
proxy, and earlier agents."""


PIPELINES = "pipelines"
"""Prefix of the run in costs of `garrison pipeline run`, `pipelines/NAME`."""
PLANS, LESSONS = "plans", "lessons"
"""Folders of a home that are prefixes of the run in costs: of planning `plans/ID`, of wording lessons
`lessons/REPOSITORY`."""
GATES = "gates"
"""Folder of `usage` with the costs of each run's gates, which belong to no node: `gates/RUN/GATE/1/network`."""
OUTSIDE = "@"
"""Prefix of the run in costs outside runs, `@chat/default`; no run's name can start with it."""


def usage_files(home: Path, run: str | None = None, node: str | None = None) -> Iterator[tuple[str, str, Path]]:
    """Yield (run, node, file) of every usage file of the home, of one run, or of one node, its validator's included.

    Costs outside runs have `@USE` as the run and the session's name as the node. The run is `pipelines/NAME` for
    `garrison pipeline run`, `plans/ID` for a plan, `lessons/REPOSITORY` for lessons.
    """
    if run is None or run.startswith(OUTSIDE):
        use = "*" if run is None else run.removeprefix(OUTSIDE)
        for path in sorted((home / "usage").glob(f"{use}/{node or '*'}.jsonl")):
            yield f"{OUTSIDE}{path.parent.name}", path.stem, path
    if run is not None and run.startswith(OUTSIDE):
        return
    for place in (PLANS, LESSONS):
        if run is None or run.startswith(f"{place}/"):
            yield from _files_of_runs(home, run or f"{place}/*", node)
    if run is None or not run.startswith((f"{PIPELINES}/", f"{PLANS}/", f"{LESSONS}/")):
        yield from _files_of_runs(home / "runs", f"{run or '*'}/nodes", node)
        yield from _files_of_runs(home / "usage" / GATES, run or "*", node)
    if run is None or run.startswith(f"{PIPELINES}/"):
        yield from _files_of_runs(home / "usage", run or f"{PIPELINES}/*", node)


def spent_by(home: Path, run: str) -> float:
    """Return the known cost of a run, or of what has its place in `usage_files`, in US dollars."""
    return sum(total(read_usage(path)).usd for _, _, path in usage_files(home, run))


def _files_of_runs(root: Path, nodes: str, node: str | None) -> Iterator[tuple[str, str, Path]]:
    """Yield what `usage_files` does for the folders of nodes below those that match `nodes`."""
    # Not `**`: an attempt's folder may contain a home with everything that its programs have installed.
    found = [path for place in _PLACES for path in root.glob(f"{nodes}/{node or '*'}/*/{place}/usage.jsonl")]
    for path in sorted(found):
        parts = path.relative_to(root).parts
        if root.name == GATES:
            yield parts[0], parts[1], path
        else:
            yield (parts[0] if parts[1] == "nodes" else "/".join(parts[:2])), parts[2], path


def pipeline_account(home: Path, directory: Path) -> str:
    """Return the run's place in costs for `garrison pipeline run` in that directory, wherever it is."""
    real = directory.resolve()
    is_in_home = real.parent == (home / PIPELINES).resolve()
    name = re.sub(r"[^A-Za-z0-9._-]", "-", real.name)
    return f"{PIPELINES}/{name}" + ("" if is_in_home else f"-{sha256(os.fsencode(real)).hexdigest()[:6]}")


def read_usage(path: Path) -> list[UsageRecord]:
    """Return the records of one usage file that are in no other file.

    A torn last line is of a response whose tools had not started.
    """
    return [record for record in _read_all(path) if not record.reported]


def _read_all(path: Path) -> list[UsageRecord]:
    return [UsageRecord(**{("connection" if key == "stretch" else key): value for key, value in body.items()})
            for body in read_lines(path)]


_MARKS = frozenset({"reported", "estimated"})
"""Fields that are omitted from the file unless true."""


def append_usage(path: Path, record: UsageRecord) -> None:
    """Append one record."""
    append_line(path, {("stretch" if key == "connection" else key): value for key, value in fields_of(record).items()
                       if key not in _MARKS or value})


class UsageLog:
    """Writes the usage events of one connection to a session's usage file."""

    def __init__(self, path: Path, session: str) -> None:
        self._path, self._session = path, session
        self._connection = now()

    def record(self, event: Mapping[str, object]) -> None:
        """Append a `usage` or `result` event; other events are ignored."""
        if event["kind"] == "usage":
            append_usage(self._path, call_record(self._session, now(), str(event["message"]), str(event["model"]),
                                                 from_data(dict[str, object], event["usage"]), self._connection))
        elif event["kind"] == "result" and event.get("usd"):
            append_usage(self._path, UsageRecord("result", self._session, now(), from_data(float, event["usd"]),
                                                 connection=self._connection))


# ---- windows of a subscription

WINDOWS_FILE = "windows.json"
"""Next to a usage file: what is left of a subscription's windows, which count instead of dollars."""
_WINDOWS = {"five_hour": "5 h", "seven_day": "week", "seven_day_opus": "week of Opus",
            "seven_day_sonnet": "week of Sonnet"}
"""Window → its name."""


def note_window(folder: Path, kind: str, used: float | None, resets_at: float | None, status: str) -> None:
    """Note in an attempt's folder what the API says about a window of its subscription."""
    if kind not in _WINDOWS:
        return
    known = read_json(folder / WINDOWS_FILE)
    noted = {"used": used, "resets_at": resets_at, "status": status, "at": now()}
    write_json(folder / WINDOWS_FILE, {**(known if isinstance(known, dict) else {}), kind: noted})


def describe_windows(home: Path, run: str) -> str:
    """Return what is left of a run's subscription, as last reported: `5 h: 62 % used until 17:40 UTC, week: 12 % used`;
    '' for a run that pays by tokens."""
    latest: dict[str, Mapping[str, object]] = {}
    for _, _, path in usage_files(home, run):
        noted = read_json(path.with_name(WINDOWS_FILE))
        for kind, window in (noted.items() if isinstance(noted, dict) else ()):
            if kind in _WINDOWS and isinstance(window, dict) and str(window.get("at")) > str(
                    latest.get(kind, {}).get("at", "")):
                latest[kind] = window
    return ", ".join(_describe_window(name, latest[kind]) for kind, name in _WINDOWS.items() if kind in latest)


def _describe_window(name: str, window: Mapping[str, object]) -> str:
    used, resets_at = window.get("used"), window.get("resets_at")
    amount = f"{used:.0%} used".replace("%", " %") if isinstance(used, int | float) else \
        "used up" if window.get("status") == "rejected" else "not used up"
    if not isinstance(resets_at, int | float):
        return f"{name}: {amount}"
    until = datetime.fromtimestamp(resets_at, UTC)
    day = "" if until.date() == datetime.now(UTC).date() else f"{until:%a %d} "
    return f"{name}: {amount} until {day}{until:%H:%M} UTC"


class UsageCache:
    """Usage files, each read again only if it has grown."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[int, list[UsageRecord]]] = {}

    def read(self, path: Path) -> list[UsageRecord]:
        return [record for record in self.read_all(path) if not record.reported]

    def read_all(self, path: Path) -> list[UsageRecord]:
        """Return all records of one file."""
        size = path.stat().st_size
        cached = self._files.get(path)
        # Usage files only grow, so one of the same size has the same lines.
        if cached is None or cached[0] != size:
            self._files[path] = cached = (size, _read_all(path))
        return cached[1]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
