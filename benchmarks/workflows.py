"""Cost of a workflow's step and a session's turn, without tools and model, compared with LangGraph, in one run.

    .venv/bin/python benchmarks/workflows.py [--steps 1000] [--turns 50] [--rounds 3] [--json]
                                             [--no-peers | --no-fetch | --peers PYTHON]

Rows: `step` (a chain of tool calls, each taking the result of the one before), `turn` (a message through classify,
recall, mode, model, one call of a tool, model, format, memory, checkpoint; model and tool answer at once), `resume`
(killed within the middle step, restarted: seconds to its next step). Everything survives a power cut: LangGraph
with its SQLite checkpointer and durability="sync". Rounds are interleaved; medians are printed, and CPU time
(start-up included), which load distorts less. `workflows_step.py` is the process that is started.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine import PEERS, peers
from table import Table

STEP = Path(__file__).with_name("workflows_step.py")
ENGINES = ("garrison", "langgraph")
RUN_SECONDS = 900


def ran(python: str, *words: object) -> dict[str, Any]:
    """Return what a process printed of its run; {} of one that was to kill itself, RuntimeError when it failed."""
    done = subprocess.run([python, str(STEP), *map(str, words)], capture_output=True, text=True, timeout=RUN_SECONDS,
                          check=False)
    if "--kill-at" in words:
        return {}
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "no reason given").splitlines()[-1][:160])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measured(table: Table, row: str, pythons: dict[str, str], count: int, rounds: int, root: Path) -> None:
    """Add a row for each engine: milliseconds and CPU milliseconds for each of `count`."""
    said: dict[str, list[dict[str, Any]]] = {}
    for turn in range(rounds):
        for engine, python in pythons.items():
            folder = root / f"{row}-{engine}-{turn}"
            folder.mkdir()
            found = ran(python, engine, row, count, folder)
            assert found["number"] == count, found
            said.setdefault(engine, []).append(found)
    middle = {engine: statistics.median(one["seconds"] / count * 1e3 for one in found)
              for engine, found in said.items()}
    for engine, ms in middle.items():
        cpu = statistics.median(one["cpu_s"] / count * 1e3 for one in said[engine])
        beside = f", {middle['langgraph'] / ms:.1f} x faster than LangGraph" if (
            engine == "garrison" and "langgraph" in middle) else ""
        table.add(row, f"{engine}, {count:,} of them", f"{ms:.2f} ms each, {cpu:.2f} ms of CPU{beside}", ms=ms,
                  cpu_ms=cpu, disk_kib=said[engine][-1]["disk_kib"], rss_mib=said[engine][-1]["rss_mib"])


def resuming(table: Table, pythons: dict[str, str], steps: int, root: Path) -> None:
    """Seconds from the start of a process to the step in which the one before was killed."""
    for engine, python in pythons.items():
        folder = root / f"killed-{engine}"
        folder.mkdir()
        ran(python, engine, "step", steps, folder, "--kill-at", steps // 2)
        found = ran(python, engine, "step", steps, folder, "--resume")
        right = found["run"] == steps - steps // 2 + 1 and found["number"] == steps
        table.add("resume", f"{engine}, killed within step {steps // 2:,} of {steps:,}",
                  f"{found['first_s']:.2f} s to its next step" + ("" if right else f" (wrong: {found})"), **found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--turns", type=int, default=50)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", action="store_true", dest="as_json")
    options.add_argument("--no-peers", action="store_true")
    options.add_argument("--no-fetch", action="store_true")
    options.add_argument("--peers", metavar="PYTHON", help="an environment that has langgraph already")
    given = options.parse_args()
    table = Table(given.as_json, (8, 44))
    with table.machine(), tempfile.TemporaryDirectory(
            prefix="garrison-workflows-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        pythons = {"garrison": sys.executable}
        if given.peers:
            pythons["langgraph"] = given.peers
        elif not given.no_peers:
            wanted = {"langgraph": PEERS["langgraph"]}
            pythons |= peers(table, root, fetch=not given.no_fetch, wanted=wanted)
        measured(table, "step", pythons, given.steps, given.rounds, root)
        measured(table, "turn", pythons, given.turns, given.rounds, root)
        resuming(table, pythons, given.steps, root)


if __name__ == "__main__":
    main()
