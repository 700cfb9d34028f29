"""JUnit XML: which tests failed, from the reports that a gate wrote into its worktree. Reads, never trusts.

A report is whatever the tested branch left there: only regular files that are newer than the run are read, to a bound,
and a document that defines entities is left out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from xml.parsers import expat

from garrison.system import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACES = ("junit*.xml", "*-junit.xml", "*_junit.xml", "test-results.xml", "test-results/*.xml", "reports/*.xml",
          "test-reports/*.xml", "target/surefire-reports/TEST-*.xml", "target/nextest/*/junit.xml",
          "build/test-results/*/TEST-*.xml")
"""Where test runners put their reports by default or by custom, relative to the worktree."""
MAX_REPORTS = 50
"""Reports that are read."""
MAX_BYTES = 4 << 20
"""Bytes of all reports together; a longer one is left out."""
MAX_CASES = 200
"""Failed test cases that are taken from one report."""
_MAX_LOOKED_AT, _MAX_LISTED = 2000, 20_000
_MAX_TEXT = 300


class _Refused(Exception):
    """The document is not one to read on."""


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
    """Yield the content of fresh regular files; of a link, a pipe, a device or a file that is too long nothing."""
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
