"""Trials of a project's candidates, in order until one passes: on the target's tip, as a launch would run them.

The decisions are pure: `find_passing` gets the trial itself, the clock and the PATH as functions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from garrison.errors import ForeignImports, PreflightRed
from garrison.merge.config import QueueConfig
from garrison.merge.failing_tests import find_failing
from garrison.merge.preflight import preflight
from garrison.merge.queue import MergeQueue
from garrison.project.ecosystems import CommandPair
from garrison.system.terminal_text import clean_lines
from garrison.values import Value, replace

SETUP, GATE = "set-up", "gate"
"""Part of a trial that can fail."""
MAX_LEFT_OUT, MIN_RATIO = 10, 20
"""Tests, or test files, failing on the target that a gate may leave out; how many must pass for each."""
MAX_CAUSE = 200
"""Shown characters of a log's line."""
MAX_ADDITIONS = 6
"""Maximum number of times that a candidate is extended by packages missing in its log."""
_COUNTS = re.compile(r"\b\d+ (?:failed|passed|errors?|skipped)\b|Ran \d+ tests?|\b\d+ tests?\b")
_REGISTRIES = (("pypi.org", "files.pythonhosted.org"), ("registry.npmjs.org",), ("registry.yarnpkg.com",),
               ("index.crates.io", "static.crates.io"), ("proxy.golang.org", "sum.golang.org"))
"""Hosts of each registry. They are refused only if the machine resolves them to its local network, and then all of one
registry."""
_RAN = re.compile(r"\b[1-9]\d* (?:passed|failed|xfailed|skipped)\b|^Ran [1-9]\d* tests?\b|\b[1-9]\d* tests? passed"
                  r"|\[ *100%\]",
                  re.MULTILINE)
"""Signs of Python's test runners that at least one test ran."""


_MISSES_MODULE = re.compile(r"No module named|ImportError|Cannot find (module|package)|fixture '\w+' not found")


@dataclass(frozen=True)
class TrialResult:
    """End of a trial."""

    passed: bool
    summary: str
    """One line for the user."""
    tail: tuple[str, ...] = ()
    """End of the log of a failed trial."""
    failed: str = ""
    """Failed part: `set-up` or `gate`."""
    failing: tuple[str, ...] = ()
    """Failed tests named in the log."""
    refused_hosts: tuple[str, ...] = ()
    """Hosts to which a failed set-up was denied access."""
    is_lost: bool = False
    """Set if there was no verdict: a signal ended it, or its disk was full."""
    absent: tuple[str, ...] = ()
    """Missing programs that prevented every trial."""
    log: str = field(default="", repr=False)
    """Whole output of the failed part, or of a passing gate."""


class Attempt(Value):
    """Candidate and the result of its trial."""

    candidate: CommandPair
    result: TrialResult


class TrialMeans(Value):
    """Dependencies of the search for a passing candidate."""

    try_one: Callable[[CommandPair, float], TrialResult]
    """Tries a candidate, with a time limit in seconds for each part."""
    missing_programs: Callable[[CommandPair], Sequence[str]]
    """Programs of a candidate that are not on the PATH."""
    extend: Callable[[CommandPair, str], CommandPair | None]
    """Candidate that adds what another lacked according to its log; None if there is none."""
    seconds: Callable[[], float]
    """Clock."""
    report: Callable[[str], None]


def find_passing(candidates: Sequence[CommandPair], means: TrialMeans, *, limit: float, end: float) -> Attempt:
    """Try candidates in order until one passes, reporting why others did not; return the one that came furthest.

    Args:
        candidates: at least one.
        limit: time limit in seconds of set-up and of gate.
        end: time by the clock of `means` after which no trial is started.
    """
    waiting, attempts, additions = list(candidates), list[Attempt](), 0
    absent: dict[str, None] = {}
    while waiting:
        candidate = waiting.pop(0)
        if candidate.setup and any(each.candidate.setup == candidate.setup and each.result.failed == SETUP
                                   for each in attempts):
            continue  # another gate with the same failing set-up
        if missing := means.missing_programs(candidate):
            if not absent.keys() >= set(missing):
                means.report(f"skipped {candidate.why}: {explain_absent(missing)}")
            absent.update(dict.fromkeys(missing))
            continue
        left = end - means.seconds()
        # the first candidate is tried in any case, so that there is a result
        if attempts and left <= 0:
            means.report(f"the time for trials is up; {len(waiting) + 1} more ways were not tried; --timeout sets it")
            break
        result = _judge(candidate, means.try_one(candidate, min(limit, max(left, 1.0))))
        attempts.append(Attempt(candidate, result))
        if result.passed:
            return attempts[-1]
        means.report(f"{candidate.why}: {result.summary}{_cause(result)}")
        if why := _why_no_other_way(attempts):
            means.report(why)
            break
        if additions < MAX_ADDITIONS and (extended := means.extend(candidate, result.log)) is not None:
            additions += 1
            # next, since the log names exactly what was missing
            waiting.insert(0, extended)
    if not attempts:
        return Attempt(candidates[0], TrialResult(False, explain_absent(list(absent)), failed=SETUP,
                                                  absent=tuple(absent)))
    return _leave_out_failing(attempts, means, limit)


def _leave_out_failing(attempts: Sequence[Attempt], means: TrialMeans, limit: float) -> Attempt:
    """Return the attempt that came furthest, or an equal one that passes without a few failing tests."""
    best = max(attempts, key=_progress)
    for each in attempts:
        names = failing_few(each) if _progress(each) == _progress(best) else []
        if names:
            options = "".join(f" --deselect {shlex.quote(name)}" for name in names)
            reduced = replace(each.candidate, gate=each.candidate.gate + options)
            result = _judge(reduced, means.try_one(reduced, limit))
            if not result.passed:
                return best
            means.report(f"left out of the gate, since they already fail: {', '.join(names)}; fix them, then remove "
                         "--deselect from the gate")
            return Attempt(reduced, result)
    return best


def failing_few(attempt: Attempt) -> list[str]:
    """Return the failed tests, or their files if there are many, if a gate can leave them out; else none.

    They must be few among many. Only pytest's tests are deselected; a file that cannot be collected is not a test.
    """
    result = attempt.result
    passed, failed = (sum(map(int, re.findall(rf"\b(\d+) {what}\b", result.log))) for what in ("passed", "failed"))
    tests = dict.fromkeys(name.partition("[")[0] for name in result.failing)
    is_few = passed >= MIN_RATIO * max(failed, len(result.failing)) and all("::" in name for name in tests)
    if not is_few or not attempt.candidate.gate.endswith("pytest -q"):
        return []
    names = list(tests if len(tests) <= MAX_LEFT_OUT else dict.fromkeys(name.partition("::")[0] for name in tests))
    return names if len(names) <= MAX_LEFT_OUT else []


def _cause(result: TrialResult) -> str:
    """Return ': ' and the line of a log with the reason of a failure; '' if the summary names tests."""
    lines = [line.strip() for line in result.tail if line.strip()]
    if result.failing or not lines:
        return ""
    stated = [line for line in lines if re.match(r"(?i)(\S+ )?(error|fatal|failed)\b", line)
              and not re.match(r"npm (error|ERR!) (code|A complete log)", line)]
    return f": {stated[0] if stated else lines[-1]}"[:MAX_CAUSE]


def _judge(candidate: CommandPair, result: TrialResult) -> TrialResult:
    """Return a result, failed if a runner that should show its tests shows none."""
    if not result.passed or not (candidate.shows_tests and candidate.is_test) or _RAN.search(result.log):
        return result
    return TrialResult(False, "it passed, but its output shows no test that ran", failed=GATE, log=result.log)


def _why_no_other_way(attempts: Sequence[Attempt]) -> str:
    """Return why no other candidate can do better than the last one; '' if one might."""
    if attempts[-1].result.is_lost:
        return "no other way is tried: this one gave no verdict"
    if whole_registries(attempts[-1].result.refused_hosts):
        return "no other way is tried: it would be refused as well"
    candidate, result = attempts[-1].candidate, attempts[-1].result
    if not candidate.setup and result.failing and not _MISSES_MODULE.search(result.log):
        return "the tests fail, but not for something that a set-up could install; no other way is tried"
    if _is_repeated(attempts):
        return "the same tests fail in another environment, so the tests are to blame; no other way is tried"
    return ""


def explain_absent(programs: Sequence[str]) -> str:
    return f"{' and '.join(programs)} {'is' if len(programs) == 1 else 'are'} not on your PATH"


def whole_registries(refused: Sequence[str]) -> tuple[str, ...]:
    """Return all hosts of registries with a refused host; `refused` are hosts, possibly with ports."""
    names = {place.partition(":")[0] for place in refused}
    return tuple(host for registry in _REGISTRIES if names & set(registry) for host in registry)


def _is_repeated(attempts: Sequence[Attempt]) -> bool:
    """Return whether the last two gates named the same failing tests, while others passed."""
    results = [attempt.result for attempt in attempts[-2:]]
    return (len(results) == 2 and bool(results[0].failing) and results[0].failing == results[1].failing
            and all(re.search(r"\b[1-9]\d* passed\b|^ok ", result.log, re.MULTILINE) for result in results))


def _progress(attempt: Attempt) -> tuple[int, int]:
    """Return how far an attempt came: set-up failed, gate failed, tests ran; fewer failures are further."""
    result = attempt.result
    if result.refused_hosts or result.is_lost:
        return (3, 0)  # the first is tried first again
    if result.failed == SETUP:
        return (0, 0)
    return (2, -len(result.failing)) if result.failing and _COUNTS.search(result.log) else (1, 0)


# ---------------------------------------------------------------------------------------------------------- one trial


def try_gate(queue: MergeQueue, *, gate: str | None, setup: str | None, setup_key: Sequence[str], trees: Path,
             environment: Mapping[str, str], limit: float, progress: Callable[[str], None]) -> TrialResult:
    """Run set-up and gate once in a fresh slot; Refused if the repository does not allow that."""
    config = QueueConfig(gate, setup, no_gate=gate is None, timeout=limit, lock_files=tuple(setup_key))
    log = queue.folder / "logs" / "preflight-hand.log"
    # remove slots before and after: the output of an earlier set-up would hide what this one lacks
    queue.remove_idle_slots(trees)
    try:
        result = preflight(queue, config, trees=trees, environment=environment, limit_option="--timeout",
                           progress=progress)
    except PreflightRed as error:
        part = SETUP if error.result == "setup" else GATE
        where = log.with_suffix(".setup.log") if part == SETUP else log
        text = _read(where) or error.tail
        failing = () if part == SETUP else tuple(find_failing(text))
        return TrialResult(False, describe_failure(queue.target, error.reason, part, text, failing),
                           tuple(clean_lines(error.tail)), part, failing,
                           error.refused_hosts if part == SETUP else (), is_lost=error.result == "lost", log=text)
    except ForeignImports as error:
        return TrialResult(False, str(error), failed=GATE)
    finally:
        queue.remove_idle_slots(trees)
    return TrialResult(True, f"passed on {queue.target} in {result.seconds:.0f} s", log=_read(log))


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""


def describe_failure(target: str, reason: str, part: str, log: str, failing: Sequence[str] = ()) -> str:
    """Return in one line why a trial failed. Pure.

    Args:
        reason: reason of the verdict.
        part: failed part, set-up or gate.
        log: whole output of the gate.
    """
    if part == SETUP:
        return f"set-up fails on {target}: {reason}"
    if not failing:
        return f"the gate fails on {target}: {reason}"
    shown = ", ".join(failing[:3]) + (f" and {len(failing) - 3} more" if len(failing) > 3 else "")
    counts = next((", ".join(found) for line in reversed(log.splitlines())
                   if (found := _COUNTS.findall(line)) and "failed" in line), f"{len(failing)} failed")
    return f"your tests fail on {target}: {counts} ({shown})"
