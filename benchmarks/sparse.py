"""Sparse checkouts: the start of a node in a large repository, compared with one that has only the patterns' files.

    .venv/bin/python benchmarks/sparse.py [--files N] [--wanted N] [--rounds N] [--json]

The large one has N files, and a sparse checkout of the folder `src` with the wanted ones. Each round launches one node
in both, in turn, with a plain HOME and the default sandbox; a start is the time from the record that the node is active
to its command's first line. Bar: 1.3 times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from table import Table

from support import PROGRAM, git


def make(repo: Path, wanted: int, others: int) -> None:
    """Make a repository with `wanted` files in src/, and `others` elsewhere, of which none is checked out."""
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "main")
    for name, value in (("user.name", "A"), ("user.email", "a@x")):
        git(repo, "config", name, value)
    names = [f"src/d{number // 100}/f{number}" for number in range(wanted)]
    names += [f"other/d{number // 10_000}/d{number // 100}/f{number}" for number in range(others)]
    lines = ["commit refs/heads/main", "committer A <a@x> 1700000000 +0000", "data 5", "begin"]
    for name in names:
        lines += [f"M 100644 inline {name}", f"data {len(name)}", name]
    subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=repo, input="\n".join(lines) + "\n", text=True,
                   check=True)
    git(repo, "repack", "-adq")
    if others:
        git(repo, "sparse-checkout", "set", "src")
    git(repo, "reset", "-q", "--hard")
    assert sum(path.is_file() for path in (repo / "src").rglob("*")) == wanted
    assert not (repo / "other").exists()


def start(repo: Path, user: Path, run: str) -> float:
    """Run one node; return the seconds from its record to its command's first line."""
    graph, home = user / f"{run}.dot", user / "home"
    graph.write_text('digraph g { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare]; '
                     'n [shape=box, allow_empty=true, command="date +%s.%N"]; start -> n -> exit; }\n')
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(user), "LANG": "C.UTF-8", "GARRISON_HOME": str(home)}
    done = subprocess.run([*PROGRAM, "launch", str(graph), "--run", run, "--no-gate", "--terminal", "process"], env=env,
                          cwd=repo, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"the launch failed:\n{done.stdout}{done.stderr}")
    told = subprocess.run([*PROGRAM, "events", run, "--json"], env=env, cwd=repo, capture_output=True, text=True,
                          check=True).stdout
    events = [json.loads(line) for line in told.splitlines()]
    active = next(each for each in events if each["journal"] == "guardian" and each["kind"] == "node"
                  and each["data"].get("status") == "active")
    first = next(home.glob(f"runs/{run}/**/output.log")).read_text().split()[0]
    return float(first) - datetime.fromisoformat(active["at"]).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--wanted", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    table = Table(given.json, (8, 48))
    with tempfile.TemporaryDirectory(prefix="garrison-bench-") as folder, table.machine():
        user = Path(folder)
        make(user / "small", given.wanted, 0)
        make(user / "large", given.wanted, given.files - given.wanted)
        took: dict[str, list[float]] = {"small": [], "large": []}
        for number in range(given.rounds + 1):
            for name, times in took.items():
                seconds = start(user / name, user, f"{name}-{number}")
                if number:  # the first round warms the caches
                    times.append(seconds)
        small, large = (statistics.median(took[name]) for name in ("small", "large"))
        table.add("start", f"{given.wanted} files alone", f"{small:.2f} s", seconds=small)
        table.add("start", f"the same, sparse, of {given.files} files", f"{large:.2f} s, {large / small:.2f} times",
                  seconds=large, ratio=large / small)


if __name__ == "__main__":
    main()
