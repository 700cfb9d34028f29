"""JUnit XML: which tests failed, from the reports that a gate wrote into its worktree. Reads, never trusts.

A report is whatever the tested branch left there: only regular files that are newer than the run are read, to a bound,
and a document that defines entities is left out.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING
from xml.parsers import expat

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
_MAX_LOOKED_AT = 2000
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
    read = 0
    for looked_at, path in enumerate(path for place in PLACES for path in folder.glob(place)):
        if read == MAX_REPORTS or looked_at == _MAX_LOOKED_AT:
            return
        data = _read_file(path, since)
        if data:
            read += 1
            yield data


def _read_file(path: Path, since: float) -> bytes:
    """Return a fresh regular file's content; nothing for a link, a pipe, a device or a file that is too long."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES or status.st_ctime < since:
            return b""
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


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
