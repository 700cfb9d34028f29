"""Failing tests: extract their names and files from the output of common test runners. Pure.

Unrecognised formats are left out; users still have the end of the output and the whole log.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from xml.parsers import expat

from garrison.system import untrusted
from garrison.system.terminal_text import clean_lines
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_NAMES = 20
"""Maximum number of failing tests named."""
MAX_NAME = 300
"""Maximum length of a line that is examined: names are shorter."""
MAX_FILES = 200
"""Maximum number of files taken from one output."""
# Every repetition is bounded: the tested branch writes these lines, and none may make a search slow.
_FILES = re.compile(r"""File "(?P<quoted>[^"\n]{1,250})", line \d"""
                    r"""|(?P<path>[\w@+./\\-]{1,200}\.[A-Za-z]\w{0,7})[:(]\d""")
"""Places in files: Python's tracebacks, or `path:12` and `path(12,` as nearly all other tools print."""
_PACKAGE = re.compile(r"(?:FAIL|---)\t(?P<package>[\w./~-]{1,200})(?:\t|$)")
"""Go package with a failed test."""


_COUNTS = re.compile(r"(?P<pytest>\d+) passed\b.* in [\d.]+ ?s|Ran (?P<unittest>\d+) tests? in "
                     r"|Tests:.*\b(?P<jest>\d+) passed|test result: ok\. (?P<rust>\d+) passed"
                     r"|Tests run: (?P<java>\d+),|# pass (?P<node>\d+)")
"""Final lines of test runners with the number of passed tests."""


def count_tests(output: str) -> int:
    """Return the number of tests of a green run, from the end of its output; 0 if unknown."""
    counts = [int(next(filter(None, found.groups()))) for line in clean_lines(output)
              if (found := _COUNTS.search(line)) is not None]
    return sum(counts)


class Failures(Value):
    """Failing tests, files and (Go) packages that a red run named, each once, in the order of the output."""

    tests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tests or self.files or self.packages)

    def with_cases(self, cases: list[tuple[str, str]]) -> Failures:
        """Return a copy with the (test, file) pairs of a report first, since they are more exact than the output."""
        tests = dict.fromkeys((*(test for test, _ in cases), *self.tests))
        files = dict.fromkeys((*(file for _, file in cases if file), *self.files))
        return Failures(tuple(tests)[:MAX_NAMES], tuple(files)[:MAX_FILES], self.packages)


class _Runner(NamedTuple):
    """Lines with which a test runner names a failed test; `sign` occurs in the output of this runner only."""

    name: str
    failed: re.Pattern[str]
    sign: re.Pattern[str] | None = None


def _runner(name: str, failed: str, sign: str = "") -> _Runner:
    return _Runner(name, re.compile(failed), re.compile(sign, re.MULTILINE) if sign else None)


_RUNNERS = (
    _runner("pytest", r"(?:FAILED|ERROR) (?P<test>\S+?(?:\.py|\.\w+(?=::))(?:::[^\[]*?(?:\[.*\])?)?)(?: -(?: .*)?)?$"),
    _runner("unittest", r"(?:FAIL|ERROR): (?P<test>\w+ \([\w.<>]+\))", r"^Ran \d+ tests? in "),
    _runner("cargo", r"test (?P<test>\S+) \.\.\. FAILED$"),
    _runner("go", r"\s*--- FAIL: (?P<test>\S+)"),
    _runner("jest", r"\s*● (?P<test>.+ › .+)$"),
    _runner("vitest", r"\s*FAIL\s+(?P<test>\S+ > .+)$"),
    _runner("node", r"\s*✖ (?P<test>.+?) \([\d.]+m?s\)$", r"^[ \t]*ℹ fail \d"),
    _runner("mocha", r"\s+\d+\) (?P<test>[^:]+)$", r"^[ \t]*\d+ failing$"),
    _runner("tap", r"\s*not ok \d+(?: -)? (?P<test>.+?)(?: #.*)?$"),
    _runner("rspec", r"rspec (?P<test>\./\S+)"),
    _runner("maven", r"\[ERROR\]\s+(?P<test>[\w$]+(?:\.[\w$]+)+:\d+)"),
    _runner("gradle", r"(?P<test>\S+ > .+) FAILED$"),
    _runner("ctest", r"\s*\d+ - (?P<test>\S+) \((?:Failed|Timeout|SEGFAULT|Not Run|Child aborted)\)"),
    _runner("dotnet", r"\s*Failed (?P<test>\S+) \[[^\]]*m?s\]$"),
    _runner("phpunit", r"\d+\) (?P<test>\w[\w\\]*::\w+)"),
    _runner("exunit", r"\s*\d+\) (?P<test>test .+ \([\w.]+\))$"),
)


def find_failing(output: str) -> list[str]:
    """Return the names of failed tests in the order of the output, each once, at most `MAX_NAMES`."""
    runners = [runner for runner in _RUNNERS if runner.sign is None or runner.sign.search(output)]
    names: dict[str, None] = {}
    for line in _lines_of(output):
        for runner in runners:
            if found := runner.failed.match(line):
                names[found["test"].strip()] = None
                break
    return [name for name in names if name][:MAX_NAMES]


def find_failures(output: str) -> Failures:
    """Return everything that the output of a red run names."""
    files: dict[str, None] = {}
    packages: dict[str, None] = {}
    for line in _lines_of(output):
        for found in _FILES.finditer(line):
            files[found["quoted"] or found["path"]] = None
        if found_package := _PACKAGE.match(line):
            packages[found_package["package"]] = None
    return Failures(tuple(find_failing(output)), tuple(files)[:MAX_FILES], tuple(packages)[:MAX_FILES])


def _lines_of(output: str) -> list[str]:
    """Return the lines whose length fits a name."""
    return [line for line in clean_lines(output) if 3 < len(line) <= MAX_NAME]


# ---- junit -----------------------------------------------------------------------------------------------------------

# JUnit XML: read failed tests from the reports that a gate wrote into its worktree, without trusting them.
#
# The tested branch controls the content: only regular files newer than the run are read, up to a bound, and documents
# that define entities are skipped.

PLACES = ("junit*.xml", "*-junit.xml", "*_junit.xml", "test-results.xml", "test-results/*.xml", "reports/*.xml",
          "test-reports/*.xml", "target/surefire-reports/TEST-*.xml", "target/nextest/*/junit.xml",
          "build/test-results/*/TEST-*.xml")
"""Default or customary paths of reports, relative to the worktree."""
MAX_REPORTS = 50
"""Maximum number of reports read."""
MAX_BYTES = 4 << 20
"""Maximum size of all reports together; a larger one is skipped."""
MAX_CASES = 200
"""Maximum number of failed test cases taken from one report."""
_MAX_LOOKED_AT, _MAX_LISTED = 2000, 20_000
_MAX_TEXT = 300


class _Refused(Exception):
    """The document must not be read further."""


def read_reports(folder: Path, since: float) -> list[tuple[str, str]]:
    """Return (test, file) of the failed test cases in the reports below `folder` that are not older than `since`.

    The test is `classname.name`; the file is empty where the report names none.
    """
    found: list[tuple[str, str]] = []
    left = MAX_BYTES
    for data in _read_files(folder, since):
        left -= len(data)
        if left < 0:
            break
        found += parse_report(data)
    return found


def _read_files(folder: Path, since: float) -> Iterator[bytes]:
    """Yield the content of fresh regular files; skip links, pipes, devices and files that are too large."""
    read = 0
    for looked_at, name in enumerate(name for place in PLACES for name in untrusted.match(folder, place, _MAX_LISTED)):
        if read == MAX_REPORTS or looked_at == _MAX_LOOKED_AT:
            return
        with suppress(untrusted.UnsafeFile, OSError):
            if data := untrusted.read(folder, name, MAX_BYTES, since=since):
                read += 1
                yield data


def parse_report(data: bytes) -> list[tuple[str, str]]:
    """Return (test, file) of the failed test cases of one report, as far as it can be read."""
    failed: list[tuple[str, str]] = []
    case: dict[str, str] = {}

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "testcase":
            case.clear()
            case.update(attributes)
        elif name in ("failure", "error") and case:
            test = ".".join(filter(None, (case.get("classname", ""), case.get("name", ""))))
            failed.append((test[:_MAX_TEXT], case.get("file", "")[:_MAX_TEXT]))
            case.clear()
            if len(failed) == MAX_CASES:
                raise _Refused

    def refuse(*_: object) -> None:
        raise _Refused

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    with suppress(expat.ExpatError, _Refused, ValueError, LookupError):  # cut off, or no report
        parser.Parse(data, True)
    return [pair for pair in failed if pair[0]]
