"""What a plan costs without its model.

    python benchmarks/plan.py

`garrison plan` in a repository of 1,000 files, with a planner that prints its plan at once: the whole command until it
waits for approval, with the copy of the repository, the sandbox, the checks, lint and this repository's history.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES, TASKS, ROUNDS = 1000, 12, 9
LIMIT = 0.5
"""Seconds that a plan may take without its model."""
SOURCE = Path(__file__).resolve().parents[1] / "src"


def make_repository(folder: Path) -> None:
    """Make a repository of small files with one commit."""
    for number in range(FILES):
        path = folder / f"part{number % 40}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 20)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"],
                  ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "Begin"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def main() -> int:
    """Measure and print; exit 1 above the limit."""
    with tempfile.TemporaryDirectory(prefix="garrison-plan-") as place:
        root = Path(place)
        (root / "repo").mkdir()
        make_repository(root / "repo")
        tasks = [{"name": f"task{number}", "title": f"Task {number}", "prompt": "Do it",
                  "files": [f"part{number}/*.py"], "needs": [{"task": "task0", "what": "it"}] if number else []}
                 for number in range(TASKS)]
        answer = json.dumps({"tasks": tasks, "check": "all is there"})
        environment = {**os.environ, "GARRISON_HOME": str(root / "home"), "HOME": place, "PYTHONPATH": str(SOURCE)}
        words = [sys.executable, "-P", "-m", "garrison.cli.main", "plan", "divide it", "--agent", "scripted",
                 "--command", f"echo '{answer}'"]
        times, before = list[float](), resource.getrusage(resource.RUSAGE_CHILDREN)
        for number in range(ROUNDS + 1):
            if number == 1:  # the first one looks for what is private in the folders of programs, once an hour
                times, before = [], resource.getrusage(resource.RUSAGE_CHILDREN)
            begun = time.perf_counter()
            done = subprocess.run(words, cwd=root / "repo", env=environment, capture_output=True, text=True,
                                  check=False)
            times.append(time.perf_counter() - begun)
            assert done.returncode == 3, done.stderr
        after, middle = resource.getrusage(resource.RUSAGE_CHILDREN), statistics.median(times)
        cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / ROUNDS
        print(f"a plan of {TASKS} tasks in a repository of {FILES:,} files, without its model: {middle:.2f} s "
              f"(of {ROUNDS}: {min(times):.2f} to {max(times):.2f}; CPU {cpu:.2f}; at most {LIMIT})")
        return int(middle > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
