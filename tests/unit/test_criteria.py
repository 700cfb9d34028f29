"""Acceptance criteria of workflows and sessions, each with tests of its name."""

from __future__ import annotations

import re
from pathlib import Path

CRITERIA = {
    "ac_001": "a command becomes steps, state is kept across them, progress is reported, tools may be async",
    "ac_002": "tools of Python and of MCP servers, over stdio and HTTP; their failures are kept",
    "ac_003": "state on disk, resume after a failure or a kill, clean-up after success",
    "ac_004": "dependency order, real concurrency, results that flow, an end at a critical failure",
    "ac_005": "progress after each step, and a log of every call",
    "ac_006": "what is critical ends the workflow, what is not does not; partial results, what to do",
    "1a": "a turn goes through its whole graph", "1b": "the tool loop is a cycle, with its counts and its bound",
    "1c": "a heartbeat's mode routes", "1d": "the round trip of the context loses nothing",
    "1e": "node types, adapters, and what becomes of one that is missing or raises",
}
_NAME = re.compile(r"^(?:async )?def test_(ac_\d{3}|1[a-e])_", re.MULTILINE)


def test_each_criterion_has_tests_with_its_name() -> None:
    found = {name for path in Path(__file__).parents[1].rglob("test_*.py") for name in _NAME.findall(path.read_text())}
    assert CRITERIA.keys() - found == set(), "no test is called test_CRITERION_…"
