"""Suspects of red runs of real test runners, alone and through the queue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from merge_support import World, check

from garrison.merge.failing_tests import find_failures, read_reports
from garrison.merge.suspects import NAMED, UNRELATED, suspect
from garrison.records import journal

PROJECT = {
    "pkg/__init__.py": "", "pkg/net.py": "def port(text):\n    return int(text) + 1\n",
    "pkg/sum.py": "def add(a, b):\n    return a + b\n", "checks/__init__.py": "",
    "checks/test_net.py": ("import unittest\nfrom pkg.net import port\n\nclass Port(unittest.TestCase):\n"
                           "    def test_port(self):\n        self.assertEqual(port('80'), 80)\n"),
    "checks/test_sum.py": ("import unittest\nfrom pkg.sum import add\n\nclass Add(unittest.TestCase):\n"
                           "    def test_add(self):\n        self.assertEqual(add(1, 1), 2)\n")}
TOUCHED = {"net": ["pkg/net.py"], "check": ["checks/test_net.py"], "sum": ["pkg/sum.py"], "docs": ["README.md"]}


@pytest.mark.parametrize("words", [("unittest", "-q"), ("pytest", "-q", "-p", "no:cacheprovider", "checks"),
                                   ("pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "--no-summary",
                                    "--junitxml=junit.xml", "checks")],
                         ids=["unittest", "pytest", "junit"])
def test_real_runners_point_at_the_entry_at_fault(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, "-B", "-m", *words], cwd=tmp_path, capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done.stderr
    failures = find_failures(done.stdout + done.stderr).with_cases(read_reports(tmp_path, 0.0))
    assert any("test_port" in test for test in failures.tests)
    ratios = suspect(failures, TOUCHED)
    assert ratios["check"] == NAMED
    assert ratios["net"] > ratios["sum"] == ratios["docs"] == UNRELATED


def test_the_verdict_of_a_red_batch_says_who_is_suspect(tmp_path: Path) -> None:
    world = World(tmp_path, gate=f"{sys.executable} -B -m unittest -q")
    world.bounds = {"short_gate": 0.0}
    sound = {**PROJECT, "pkg/net.py": "def port(text):\n    return int(text)\n"}
    world.add("first", sound)
    world.drain()
    changes = {"docs": {"README.md": "read\n"}, "sum": {"pkg/sum.py": "def add(a, b):\n    return b + a\n"},
               "net": {"pkg/net.py": PROJECT["pkg/net.py"]}, "more": {"more.txt": "1\n"}}
    for node, files in changes.items():
        world.add(node, files)
    assert world.drained() == {
        "first": "landed", "docs": "landed", "sum": "landed", "net": "rejected", "more": "landed"}
    verdicts = [stored.data for stored in journal.read_all(world.queue.path) if stored.kind == "verdict"]
    red = next(data for data in verdicts if data["result"] == "red" and len(data["entries"]) == 4)
    assert any("test_port" in name for name in red["failing"])
    ratios = dict(zip((world.queue.entry(name).node for name in red["entries"]), red["suspicion"], strict=True))
    assert ratios["net"] == max(ratios.values()) > ratios["docs"]
    check(world)
