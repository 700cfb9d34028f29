"""Suspects of a red run: tests and files in logs and reports of test runners, and the entries that they point at."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from garrison.merge import failing_tests
from garrison.merge.failing_tests import MAX_FILES, MAX_NAMES, Failures, find_failures
from garrison.merge.suspects import KNOWN_FLAKY, NAMED, NEAR, RELATED, UNRELATED, suspect

CARGO = """\
running 2 tests
test sum::tests::adds ... ok
test net::tests::parses ... FAILED

failures:

---- net::tests::parses stdout ----

thread 'net::tests::parses' (14511) panicked at src/net.rs:6:19:
assertion `left == right` failed
  left: 80
 right: 81
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/panicking.rs:689:5
   4: demo::net::tests::parses
             at ./src/net.rs:6:19

failures:
    net::tests::parses

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.07s

error: test failed, to rerun pass `--lib`
"""
"""Output of cargo 1.9x, shortened in the backtrace."""
GO = """\
--- FAIL: TestSum (0.00s)
    sum_test.go:8: got 3, want 2
FAIL
FAIL\texample.com/demo/sum\t0.002s
ok  \texample.com/demo/net\t0.003s
FAIL
"""
"""Output of go test, as its documentation has it."""
JUNIT = b"""<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="0" failures="1" skipped="0" tests="2" time="0.02">
<testcase classname="tests.test_net.TestPort" name="test_parses" file="tests/test_net.py" time="0.001">
<failure message="assert 80 == 81">def test_parses(self): ...</failure></testcase>
<testcase classname="tests.test_sum" name="test_adds" time="0.001" /></testsuite></testsuites>
"""


def test_cargo_and_go_point_at_their_files_and_packages() -> None:
    cargo = find_failures(CARGO)
    assert cargo.tests == ("net::tests::parses",)
    assert "src/net.rs" in cargo.files
    assert suspect(cargo, {"net": ["src/net.rs"], "sum": ["src/sum.rs"], "docs": ["README.md"]}) == {
        "net": NAMED, "sum": NEAR, "docs": UNRELATED}
    go = find_failures(GO)
    assert (go.tests, go.packages) == (("TestSum",), ("example.com/demo/sum",))
    assert suspect(go, {"sum": ["sum/sum.go"], "net": ["net/net.go"]}) == {"sum": RELATED, "net": UNRELATED}


@pytest.mark.parametrize(("output", "touched", "ratio"), [
    ("FAILED tests/test_net.py::test_x - AssertionError\n", "tests/test_net.py", NAMED),
    ("FAILED tests/test_net.py::test_x - AssertionError\n", "src/pkg/net.py", RELATED),
    ("FAILED tests/test_net.py::test_x - AssertionError\n", "tests/test_other.py", NEAR),
    ("FAILED tests/test_net.py::test_x - AssertionError\n", "docs/net/index.md", UNRELATED),
    ("src/pkg/core.py:12: AssertionError\n", "src/pkg/core.py", NAMED),
    ('  File "/slots/slot-0/src/pkg/core.py", line 3, in f\n', "src/pkg/core.py", NAMED),
    ("FAIL: test_x (tests.test_net.A.test_x)\nRan 3 tests in 0.1s\n", "tests/test_net.py", NAMED),
    ("FAIL: test_x (tests.test_net.A.test_x)\nRan 3 tests in 0.1s\n", "net.py", RELATED),
    ("thread 'x' panicked at src/lib.rs:10:5:\n", "crates/demo/src/lib.rs", NAMED),
    ("[ERROR]   com.acme.SumTest.adds:12 expected 3\n", "src/main/java/com/acme/Sum.java", RELATED),
    ("[ERROR]   com.acme.SumTest.adds:12 expected 3\n", "src/test/java/com/acme/SumTest.java", NAMED),
    ("src/a.ts(3,4): error TS2322\n", "src/a.ts", NAMED)])
def test_the_closer_an_entry_is_to_what_the_log_names_the_more_suspect(output: str, touched: str, ratio: float) -> None:
    failures = find_failures(output)
    other = {"other": ["src/pkg/core.py", "tests/test_net.py", "src/net.rs", "src/a.ts", "src/lib.rs",
                       "src/test/java/com/acme/SumTest.java"]}
    assert suspect(failures, {"it": [touched], **other})["it"] == ratio


def test_a_log_that_fits_no_entry_and_known_flaky_tests_accuse_none() -> None:
    assert suspect(find_failures("FAILED tests/test_net.py::test_x\n"), {"a": ["x.c"], "b": ["y.c"]}) == {}
    assert suspect(find_failures("it broke\n"), {"a": ["x.c"], "b": ["y.c"]}) == {}
    assert not find_failures("it broke\n")
    failures = find_failures("FAILED tests/test_net.py::test_x\nFAILED tests/test_net.py::test_y\n")
    touched = {"a": ["tests/test_net.py"], "b": ["y.c"]}
    both = suspect(failures, touched, ["tests/test_net.py::test_x", "tests/test_net.py::test_y"])
    assert both == {"a": KNOWN_FLAKY * NAMED, "b": KNOWN_FLAKY * UNRELATED}
    assert suspect(failures, touched, ["tests/test_net.py::test_x"])["a"] == NAMED
    assert suspect(failures, {"b": ["y.c"]}, failures.tests) == {"b": KNOWN_FLAKY}


def test_a_hostile_log_is_read_to_a_bound() -> None:
    began = time.process_time()
    failures = find_failures("".join(f"FAILED t{n}.py::x\n{'a/' * 100}b{n}.py:{n}\n" for n in range(3000)))
    assert (len(failures.tests), len(failures.files)) == (MAX_NAMES, MAX_FILES)
    for text in ("../" * 90 + "x", "a." * 140, "." * 290, 'File "' + "x" * 280, "-" * 299, "a:" * 140):
        find_failures(f"{text}\n" * 300)
    huge = "FAILED " + "a" * 1_000_000 + ".py::x\n"
    assert not find_failures(huge)
    many = {f"e{n}": [f"a/b{m}.py" for m in range(2000)] for n in range(32)}
    assert len(suspect(failures, many)) in (0, 32)
    assert time.process_time() - began < 20  # 1.5 s alone


def test_a_report_in_junit_xml_names_test_and_file() -> None:
    assert failing_tests.parse_report(JUNIT) == [("tests.test_net.TestPort.test_parses", "tests/test_net.py")]
    failures = Failures(("AssertionError",)).with_cases(failing_tests.parse_report(JUNIT))
    assert failures.tests[0] == "tests.test_net.TestPort.test_parses"
    assert suspect(failures, {"a": ["tests/test_net.py"], "b": ["tests/test_sum.py"]}) == {"a": NAMED, "b": NEAR}


@pytest.mark.parametrize("data", [
    b"", b"not xml", JUNIT[:-40], b"<a>" * 100_000, b"\xff\xfe<", b'<?xml version="1.0" encoding="no-such"?><a/>',
    b"<testsuite>" + b'<testcase name="x"><failure/></testcase>' * 10_000,
    b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;">]><testcase name="&d;"><failure/></testcase>',
    b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><testcase name="x"><failure/></testcase>'])
def test_a_hostile_report_is_read_as_far_as_possible(data: bytes) -> None:
    found = failing_tests.parse_report(data)
    assert len(found) <= failing_tests.MAX_CASES
    assert (b"DOCTYPE" in data) <= (not found)


def test_only_fresh_regular_files_are_read_as_reports(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_bytes(JUNIT)
    assert failing_tests.read_reports(tmp_path, time.time() + 60) == []  # older than the gate run
    assert len(failing_tests.read_reports(tmp_path, 0.0)) == 1
    (tmp_path / "junit.xml").rename(tmp_path / "kept")
    (tmp_path / "junit.xml").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "junit-pipe.xml")
    (tmp_path / "junit-folder.xml").mkdir()
    with (tmp_path / "junit-long.xml").open("wb") as file:
        file.truncate(failing_tests.MAX_BYTES + 1)
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    (outside / "surefire-reports").mkdir(parents=True)
    for name in ("a.xml", "surefire-reports/TEST-a.xml"):
        (outside / name).write_bytes(JUNIT)
    (tmp_path / "reports").symlink_to(outside)
    (tmp_path / "target").symlink_to(outside)
    (tmp_path / "test-results").symlink_to("/proc/self/fd")
    assert failing_tests.read_reports(tmp_path, 0.0) == []
