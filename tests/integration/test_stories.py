"""`benchmarks/stories.py`: what it counts on a small package, and that it finds its three stories in a real run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from stories import Call, Leg, Process, Story, read_processes  # noqa: E402  # from the folder above

PACKAGE = {
    "one.py": """
import os
from package import two
def numbers():
    yield two.leaf()
    yield two.leaf()
def fail():
    raise ValueError
def main():
    assert list(numbers()) == [1, 1]
    [two.leaf() for _ in range(2)]
    try:
        fail()
    except ValueError:
        two.leaf()
    import package.late
    if os.fork() == 0:
        two.leaf()
        os._exit(0)
    os.wait()
""",
    "two.py": "def leaf():\n    return 1\nvalue = leaf()\n",
    "late.py": "from package import two\nvalue = two.leaf()\n",
    "__init__.py": "",
}


def test_each_call_is_traced_once_with_its_caller_and_counted_and_none_that_an_import_makes(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "traces").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "package" / name).write_text(text)
    program = (f"import sys; sys.path[:0] = [{str(BENCHMARKS)!r}, {str(tmp_path)!r}]; import call_trace; "
               f"call_trace.start({str(tmp_path / 'traces')!r}, {str(tmp_path / 'package')!r}); "
               "from package import one; one.main()")
    subprocess.run([sys.executable, "-c", program], check=True)
    parent, child = traces = sorted(read_processes(tmp_path / "traces"), key=lambda process: process.at)
    calls = [(call.function, call.caller) for call in parent.calls]
    assert calls == [("main", None), ("numbers", "main"), ("leaf", "numbers"), ("leaf", "numbers"), ("leaf", "main"),
                     ("leaf", "main"), ("fail", "main"), ("leaf", "main")]
    assert [(call.file, call.function, call.caller_file, call.caller) for call in child.calls] == [
        ("two.py", "leaf", "one.py", "main")]
    assert child.ppid == parent.pid
    leg = Leg(parent, parent.calls[0].at, parent.calls[-1].at)
    figures = Story("", "", leg.calls(traces)).figures()
    assert {name: figures[name] for name in ("files", "rooms", "functions", "crossings", "jumps")} == {
        "files": 2, "rooms": 2, "functions": 4, "crossings": 2, "jumps": 5}


def test_a_leg_contains_the_calls_of_its_process_and_of_those_started_during_it() -> None:
    def process(pid: int, ppid: int, at: int, role: str) -> Process:
        return Process(pid, ppid, at, [], role, 1, [Call(at + 1, f"{pid}.py", "f", None, None)])

    runner, helper = process(1, 0, 0, "runner-work"), process(2, 1, 20, "runner-work")
    early, other = process(3, 1, 5, "runner-work"), process(4, 1, 20, "orchestrator-work")
    runner.calls.append(Call(15, "1.py", "g", None, None))
    calls = Leg(runner, 10, 30).calls([runner, helper, early, other])
    assert [(call.file, call.function) for call in calls] == [("1.py", "g"), ("2.py", "f")]


@pytest.mark.slow
def test_the_stories_of_a_real_node_are_found(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / "stories.py", "--json", "--keep", tmp_path / "kept"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout).values()
    assert list(found) == ["death", "merge", "signal"]
    for figures in found.values():
        assert len(figures["functions_of"]) == figures["files"] > 5
        assert figures["calls"] >= figures["jumps"] >= figures["crossings"] > 0
    assert any(file.startswith("supervise/") for file in found["death"]["functions_of"])
    assert any(file.startswith("merge/") for file in found["merge"]["functions_of"])
    assert "records/signals.py" in found["signal"]["functions_of"]
