"""Set-ups: what a kept one saves, compared with running it for each worktree and with a copy, in one run.

    .venv/bin/python benchmarks/setups.py [--rows layer,second,ten] [--files N] [--agents N] [--seconds S] [--json]

Rows: `layer` (a start in the sandbox with a layer of N files under its worktree: overlay, copy; bar: 50 ms more for the
overlay), `second` (from `garrison launch` to its agent's first line in a repository whose set-up made N files, first
and second launch; bar: 1 s for the second), `ten` (N agents with a set-up of S seconds: set-ups that ran, and the time
until all agents work; bar: one set-up, S + 5 s). Each launch has a plain HOME with the default home and trees.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from table import Table

from garrison.sandbox import layers
from garrison.sandbox.confine import confine
from garrison.sandbox.layers import LayerMethod
from garrison.sandbox.place import Mode, Network, Place, Rights, Role
from support import PROGRAM, git, make_repository

ROWS = ("layer", "second", "ten")
SIZE = 17_000
"""Bytes of a file: 30,000 of them are 500 MB."""
SECOND = 1.0
"""Seconds to the first line of an agent of the second launch."""
MAKE = """python3 - <<'END'
import os
for number in range({files}):
    folder = f"node_modules/p{{number // 100}}"
    os.makedirs(folder, exist_ok=True)
    open(f"{{folder}}/f{{number}}.js", "w").write("x" * {size})
END
date +%s%N > node_modules/stamp"""


class Bench:
    """A user with a repository, below a folder of its own."""

    def __init__(self, root: Path, arguments: argparse.Namespace, table: Table) -> None:
        self.root, self.arguments, self.table = root, arguments, table
        self.user, self.repo = root / "user", root / "user/project"
        self.user.mkdir()
        make_repository(self.repo)
        (self.repo / ".gitignore").write_text("node_modules/\n")
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-qm", "ignore")
        self.home = self.user / ".local/state/garrison"
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.user), "LANG": "C.UTF-8",
                    "GARRISON_HOME": str(self.home)}  # from a checkout it would be the checkout's

    def layer(self) -> None:
        """Start a program with a layer under its worktree."""
        lower = self.root / "lower"
        lower.mkdir()
        subprocess.run(["sh", "-c", MAKE.format(files=self.arguments.files, size=SIZE)], cwd=lower, check=True)
        rights = Rights(Mode.BUBBLEWRAP, Network.NONE)
        took = {}
        for name, under in (("none", ()), ("overlay", (lower,))):
            tree = self.root / f"trees/{name}"
            tree.mkdir(parents=True)
            place = Place(Role.AGENT, rights, tree, self.root / f"trees/.{name}.sandbox", under_worktree=under)
            times = []
            for _ in range(10):
                begun = time.monotonic()
                confined = confine(["/bin/true"], self.env, place)
                subprocess.run(confined.argv, env=dict(confined.env), check=True)
                times.append(1000 * (time.monotonic() - begun))
            took[name] = min(times)
        copy = self.root / "trees/copy"
        copy.mkdir()
        begun = time.monotonic()
        layers.copy_tree(lower, copy, LayerMethod.COPY)
        copied = 1000 * (time.monotonic() - begun)
        way = layers.way_at(self.root).way
        more = took["overlay"] - took["none"]
        self.table.add("layer", f"{self.arguments.files} files, {way}", f"{more:.1f} ms more", milliseconds=more)
        self.table.add("layer", f"{self.arguments.files} files, copied", f"{copied:.0f} ms", milliseconds=copied)

    def second(self) -> None:
        """Launch twice, the second time with what the first one's set-up left."""
        setup = MAKE.format(files=self.arguments.files, size=SIZE)
        first, second = (self._launch(f"second-{number}", setup, 1)[0] for number in (1, 2))
        self.table.add("second", "the first launch", f"{first:.2f} s to its agent's first line", seconds=first)
        size, verdict = self.arguments.files * SIZE / 1e6, "ok" if second <= SECOND else "MISSED"
        self.table.add("second", f"the second launch, {size:.0f} MB kept",
                       f"{second:.2f} s to its agent's first line; bar {SECOND:g} s: {verdict}", seconds=second,
                       megabytes=size)

    def ten(self) -> None:
        """Launch many agents at once."""
        agents, seconds = self.arguments.agents, self.arguments.seconds
        setup = f"sleep {seconds}; mkdir node_modules; date +%s%N > node_modules/stamp"
        last, stamps = self._launch("ten", setup, agents)
        self.table.add("ten", f"{agents} agents, a set-up of {seconds} s",
                       f"all work after {last:.1f} s, {len(stamps)} set-up{'s' * (len(stamps) != 1)}", seconds=last)

    def _launch(self, run: str, setup: str, agents: int) -> tuple[float, set[str]]:
        """Launch a run; return the seconds until its last agent's first line, and the stamps that set-ups made."""
        graph = self.root / f"{run}.dot"
        work = "date +%s.%N; cat node_modules/stamp; sleep 1"
        nodes = "".join(
            f'  n{number} [shape=box, allow_empty=true, command="{work}"];\n  start -> n{number} -> exit;\n'
                        for number in range(agents))
        ends = "start [shape=Mdiamond]; exit [shape=Msquare];"
        graph.write_text(f'digraph g {{\n  flow=dag; goal="g"; {ends}\n{nodes}}}\n')
        begun = time.time()
        done = subprocess.run(
            [*PROGRAM, "launch", str(graph), "--run", run, "--setup", setup, "--no-gate", "--max-agents", str(agents),
             "--terminal", "process"], env=self.env, cwd=self.repo, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"the launch failed:\n{done.stdout}{done.stderr}")
        outputs = [path.read_text().split() for path in self.home.glob(f"runs/{run}/**/output.log")]
        return max(float(words[0]) for words in outputs) - begun, {words[1] for words in outputs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--files", type=int, default=30_000)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    table = Table(given.json, (8, 32))
    with tempfile.TemporaryDirectory(prefix="garrison-bench-") as folder, table.machine():
        bench = Bench(Path(folder), given, table)
        rows = {"layer": bench.layer, "second": bench.second, "ten": bench.ten}
        for row in given.rows.split(","):
            rows[row]()


if __name__ == "__main__":
    main()
