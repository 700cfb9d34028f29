"""Cost of best of 3 compared with three single nodes.

    python benchmarks/best_of.py [--work 5] [--rounds 3]

A run of three parallel nodes, each of which lands, and a run of one node with three candidates, of which one lands;
every agent works the same number of seconds. Whole runs, from the launch until they are done. What is added does not
depend on how long an agent works, so it is compared with nodes of three minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT, TYPICAL = 0.05, 180.0
"""Share that best of 3 may add to nodes of so many seconds."""
SOURCE = Path(__file__).resolve().parents[1] / "src"
ENDS = "start [shape=Mdiamond]; exit [shape=Msquare];"


def graphs(seconds: float) -> dict[str, str]:
    """Return the two graphs by name."""
    work = f"sleep {seconds}; echo $GARRISON_RUN > $GARRISON_NODE.txt; wc -c < $GARRISON_NODE.txt > size.txt"
    singles = "".join(f'n{one} [command="{work.replace(" > size.txt", "")}"]; start -> n{one} -> exit;'
                      for one in range(3))
    best = f'fix [command="{work}", best_of=3, judge=command, judge_command="cat size.txt"]; start -> fix -> exit;'
    return {"three nodes": f"digraph singles {{ flow=dag; {ENDS} {singles} }}",
            "best of 3": f"digraph best {{ flow=dag; {ENDS} {best} }}"}


def main() -> int:
    """Measure and print; exit 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="garrison-best-") as place:
        root = Path(place)
        (root / "repo").mkdir()
        (root / "repo/code.py").write_text("value = 1\n")
        for words in (["init", "-q", "-b", "main"], ["add", "-A"],
                      ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "Begin"]):
            subprocess.run(["git", *words], cwd=root / "repo", check=True)
        environment = {**os.environ, "GARRISON_HOME": str(root / "home"), "HOME": place, "PYTHONPATH": str(SOURCE)}
        times: dict[str, list[float]] = {name: [] for name in graphs(0)}
        for number in range(options.rounds):
            for name, text in graphs(options.work).items():  # in turn, so that both have the same load
                path = root / f"{name.replace(' ', '-')}-{number}.dot"
                path.write_text(text)
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-P", "-m", "garrison.cli.main", "launch", str(path), "--target-dir",
                                str(root / "repo"), "--gate", "test -f code.py", "--max-agents", "3", "--run",
                                f"{path.stem}"], env=environment, cwd=place, check=True, capture_output=True)
                times[name].append(time.perf_counter() - begun)
        middle = {name: statistics.median(taken) for name, taken in times.items()}
        for name, taken in times.items():
            print(f"{name}: {middle[name]:.1f} s (of {options.rounds}: {min(taken):.1f} to {max(taken):.1f})")
        added = middle["best of 3"] - middle["three nodes"]
        print(f"best of 3 adds {added:.1f} s, {added / TYPICAL:.1%} of nodes of {TYPICAL:g} s (at most {LIMIT:.0%})")
        return int(added / TYPICAL > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
