"""Four Claude nodes in parallel at one budget of the run: what they spend, and by how much they exceed it together.

    .venv/bin/python benchmarks/claude_budget.py [BUDGET]

Runs itself inside garrison.testing.isolation: the real CLI, a scripted model that works for ever, no network. Each call
costs more than the one before it, as in a real session.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from claude import LONG, PROGRAM, Bench
from garrison.agents.conversation.files import AttemptFiles
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Turn, Usage, say, use

NODES = "abcd"


def answer(asked: Request) -> Turn:
    """Play the model: another command for ever, at a price that grows with the session."""
    spoken = asked.spoken
    return say(use("Bash", command=f"echo {spoken} > out.txt"), usage=Usage(5_000 + 1_000 * spoken, 300))


def measure(root: Path, budget: float) -> None:
    """Run them until all wait for the budget, and print what was spent."""
    with ModelServer(answer) as server:
        bench = Bench(root, server)
        home = root / "home"
        home.mkdir()
        (home / "config.toml").write_text(f"[agents.claude]\nbudget_run = {budget}\nstarts = 4\n")
        graph = root / "four.dot"
        graph.write_text("digraph four { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; node [agent=claude]; "
                         + "".join(f'{name} [prompt="Work."]; start -> {name} -> exit; ' for name in NODES) + "}")
        child = subprocess.Popen([*PROGRAM, "launch", str(graph), "--target-dir", str(bench.repo), "--run", "r",
                                  "--gate", "true", "--terminal", "process", "--max-agents", "4"], env=bench.env,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        files = [AttemptFiles(home / f"runs/r/nodes/{name}/1") for name in NODES]
        end = time.monotonic() + 4 * LONG
        while not all(kinds[-1:] == ["budget"] for kinds in ([ending.kind for ending in each.read_endings()]
                                                             for each in files)):
            if time.monotonic() > end:
                raise SystemExit("they spent no budget in time; the machine may be too busy")
            time.sleep(0.1)
        rows = json.loads(subprocess.run([*PROGRAM, "cost", "r", "--by", "run", "--json"], env=bench.env, check=True,
                                         capture_output=True).stdout)
        subprocess.run([*PROGRAM, "stop", "r"], env=bench.env, check=True, capture_output=True)
        child.wait(LONG)
    last = max((record["usd"] for each in files for record in map(json.loads, each.usage.read_text().splitlines())
                if record["kind"] == "call"), default=0.0)
    usd = rows[0]["usd"]
    print(f"budget ${budget:.2f}: ${usd:.4f} spent in {rows[0]['calls']} calls by {len(NODES)} nodes; over by "
          f"${max(0.0, usd - budget):.4f}, one call cost up to ${last:.4f}")


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        sys.exit(subprocess.run([sys.executable, "-P", "-m", "garrison.testing.isolation", "--", sys.executable,
                                 __file__, "--inside", *sys.argv[1:]], check=False).returncode)
    amounts = [word for word in sys.argv[1:] if not word.startswith("--")]
    with tempfile.TemporaryDirectory(prefix="garrison-bench-", ignore_cleanup_errors=True) as folder:
        measure(Path(folder), float(amounts[0]) if amounts else 1.0)
