"""Pipeline engine, compared with a bare fsynced append, LangGraph and DBOS, in one run.

    .venv/bin/python benchmarks/engine.py [--steps 1000] [--rounds 3] [--nodes 10000] [--rows ROWS] [--json]
                                          [--no-peers | --no-fetch | --peers PYTHON]

Rows: `parse` (a large graph read, linted, compiled), `decide` (a step decided in memory), `durable` (a step that
survives a power cut, on a chain of 1,000 nodes and a cycle of 1,000 visits), `resume` (killed within step 500,
restarted). Bars: 10,000 nodes read and linted in under 10 s; a durable step at most 1.5 x a bare append with fdatasync
and at least 5 x faster than the faster peer. The peers come from the package index into a temporary environment:
LangGraph with its SQLite checkpointer and durability="sync" (a checkpoint is written before the next step), DBOS with
SQLite. Rounds are interleaved, so that load hits all alike; medians are printed, and CPU time where load would distort
a clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from table import Table

from garrison.pipeline.flow import Finished, FlowState, advance, begin
from garrison.pipeline.flow.program import Program, compile_graph
from garrison.pipeline.lint import lint
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.parser import parse
from garrison.pipeline.transforms import prepare

STEP = Path(__file__).with_name("engine_step.py")
PEERS = {"langgraph": ("langgraph", "langgraph-checkpoint-sqlite"), "dbos": ("dbos",)}
SHAPES = ("chain", "cycle")
INSTALL_SECONDS = 600
RUN_SECONDS = 600


# ---- in memory -------------------------------------------------------------------------------------------------------


def large(nodes: int) -> str:
    """Return a graph of that many nodes, each with a label, a prompt, a time-out, an edge onwards and one back."""
    lines = [f'n{at} [label="Node {at}", shape=box, prompt="Do \\"{at}\\" for $goal", timeout=900s];'
             for at in range(nodes)]
    for at in range(nodes - 1):
        lines.append(f'n{at} -> n{at + 1} [condition="outcome=success"];')
        lines.append(f'n{at} -> n{max(0, at - 1)} [condition="outcome=fail"];')
    return ("digraph large { goal=speed\nstart [shape=Mdiamond]; end [shape=Msquare]; start -> n0;\n"
            + "\n".join(lines) + f"\nn{nodes - 1} -> end }}")


def reading(table: Table, nodes: int) -> None:
    text = large(nodes)
    parse("digraph { a }")  # the grammar is built once per process
    times = [time.process_time()]
    graph = parse(text)
    times.append(time.process_time())
    found = lint(graph)
    times.append(time.process_time())
    compile_graph(prepare(graph))
    times.append(time.process_time())
    spent = [after - before for before, after in pairwise(times)]
    for what, seconds in zip(("read", "lint", "prepare and compile"), spent, strict=True):
        table.add("parse", f"{what} {nodes:,} nodes, {len(graph.edges):,} edges", f"{seconds:.2f} s of CPU",
                  cpu_s=seconds)
    table.add("parse", "read and lint together", f"{sum(spent[:2]):.2f} s of CPU", cpu_s=sum(spent[:2]), goal_s=10,
              findings=len(found))


def programs(steps: int) -> dict[str, Program]:
    """Return the two shapes as programs."""
    ends = "start [shape=Mdiamond] end [shape=Msquare]"
    names = [f"n{at}" for at in range(steps)]
    chain = f"digraph {{ {ends} {'; '.join(names)} start -> {' -> '.join(names)} -> end }}"
    cycle = (f'digraph {{ {ends} work; start -> work; work -> end [condition="context.n>={steps}"] '
             f'work -> work [condition="context.n<{steps}"] }}')
    return {"chain": compile_graph(parse(chain), max_steps=3 * steps),
            "cycle": compile_graph(parse(cycle), max_steps=3 * steps)}


def walked(program: Program) -> tuple[FlowState, int, float]:
    """Run in memory; return the last state, the number of steps and CPU seconds."""
    began = time.process_time()
    state, number = begin(program), 0
    while state.in_flight:
        place = next(iter(state.in_flight))
        number += 1
        advance(program, state, Finished(place, Outcome("success", context_updates={"n": number})))
    return state, number, time.process_time() - began


def deciding(table: Table, steps: int, rounds: int) -> None:
    for shape, program in programs(steps).items():
        taken = []
        for _ in range(rounds + 1):
            state, number, seconds = walked(program)
            assert (state.status, number) == ("done", steps), state.reason
            taken.append(seconds / number * 1e6)
        middle = statistics.median(taken[1:])
        table.add("decide", f"a step of a {shape} of {steps:,}", f"{middle:.0f} µs of CPU", us=middle)


# ---- on disk ---------------------------------------------------------------------------------------------------------


def bare(folder: Path, count: int, size: int) -> float:
    """Microseconds for an append of `size` bytes with fdatasync, nothing around it."""
    record = b"x" * (size - 1) + b"\n"
    descriptor = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    began = time.perf_counter()
    for _ in range(count):
        os.write(descriptor, record)
        os.fdatasync(descriptor)
    took = time.perf_counter() - began
    os.close(descriptor)
    return took / count * 1e6


def ran(python: str, engine: str, shape: str, steps: int, folder: Path, *more: str) -> dict[str, Any]:
    """Run a process of one engine and return what it printed of its run; RuntimeError when it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([python, str(STEP), engine, shape, str(steps), str(folder), *more], capture_output=True,
                          text=True, timeout=RUN_SECONDS, check=False)
    if "--kill-at" in more:
        return {}
    if done.returncode:
        raise RuntimeError(f"{engine}: {(done.stderr.strip() or 'no reason given').splitlines()[-1][:160]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def durable(table: Table, pythons: dict[str, str], steps: int, rounds: int, root: Path) -> None:
    said: dict[tuple[str, str], list[dict[str, Any]]] = {}
    appends: list[float] = []
    size = 300
    for turn in range(rounds):
        for shape in SHAPES:
            for engine, python in pythons.items():
                folder = root / f"{engine}-{shape}-{turn}"
                try:
                    found = ran(python, engine, shape, steps, folder)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    table.add("durable", f"{engine}, {shape}", f"left out: {error}")
                    continue
                assert (found["number"], found["run"]) == (steps, steps), found
                said.setdefault((engine, shape), []).append(found)
                if engine == "garrison":
                    size = max(64, (folder / "run/journal.jsonl").stat().st_size // steps)
                    appends.append(bare(folder, steps, size))
    base = statistics.median(appends)
    table.add("durable", f"a bare append of {size} bytes with fdatasync", f"{base:.0f} µs", us=base)
    middle = {key: statistics.median(one["seconds"] / steps * 1e6 for one in found) for key, found in said.items()}
    for (engine, shape), us in middle.items():
        others = [value for (other, same), value in middle.items() if same == shape and other != "garrison"]
        last = said[engine, shape][-1]
        words = f"{us:7.0f} µs, {us / base:5.2f} x bare"
        if engine == "garrison" and others:
            words += f", {min(others) / us:.1f} x faster than the faster peer"
        cpu = statistics.median(one["cpu_s"] for one in said[engine, shape])
        table.add("durable", f"{engine}, a step of a {shape} of {steps:,}", words, us=us, times_bare=us / base,
                  cpu_s=cpu, rss_mib=last["rss_mib"], disk_kib=last["disk_kib"])
    for (engine, shape), found in said.items():
        rss, disk = (statistics.median(one[key] for one in found) for key in ("rss_mib", "disk_kib"))
        table.add("memory", f"{engine}, {shape}", f"{rss:.0f} MiB at most, {disk:,.0f} KiB of files", rss_mib=rss,
                  disk_kib=disk)


def resuming(table: Table, pythons: dict[str, str], steps: int, root: Path) -> None:
    for shape in SHAPES:
        for engine, python in pythons.items():
            folder = root / f"{engine}-{shape}-killed"
            try:
                ran(python, engine, shape, steps, folder, "--kill-at", str(steps // 2))
                found = ran(python, engine, shape, steps, folder, "--resume")
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                table.add("resume", f"{engine}, {shape}", f"left out: {error}")
                continue
            right = found["number"] == steps and found["run"] == steps - steps // 2 + 1
            table.add("resume", f"{engine}, {shape}, killed within step {steps // 2}",
                      f"{found['first_s']:.2f} s to its next step, {found['run']} steps"
                      + ("" if right else f" (expected {steps - steps // 2 + 1}, number {found['number']})"), **found)


def peers(table: Table, root: Path, *, fetch: bool,
          wanted: Mapping[str, tuple[str, ...]] = PEERS) -> dict[str, str]:
    """Engine → the Python that has it; unavailable ones are left out and reported."""
    if not fetch:
        table.add("peers", "all", "left out: fetching is off (--no-fetch)")
        return {}
    python = root / "venv/bin/python"
    try:
        subprocess.run([sys.executable, "-m", "venv", str(root / "venv")], check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        table.add("peers", "all", f"left out: no virtual environment ({error})")
        return {}
    found = {}
    for engine, packages in wanted.items():
        try:
            done = subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], capture_output=True,
                                  text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            table.add("peers", engine, f"left out: not installed within {INSTALL_SECONDS} s")
            continue
        if done.returncode:
            table.add("peers", engine, f"left out: {(done.stderr.strip() or 'pip failed').splitlines()[-1][:120]}")
            continue
        found[engine] = str(python)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--nodes", type=int, default=10_000)
    options.add_argument("--rows", default="parse,decide,durable,resume")
    options.add_argument("--json", action="store_true", dest="as_json")
    options.add_argument("--no-peers", action="store_true")
    options.add_argument("--no-fetch", action="store_true")
    options.add_argument("--peers", metavar="PYTHON", help="an environment that has langgraph and dbos already")
    given = options.parse_args()
    rows = given.rows.split(",")
    table = Table(given.as_json, (8, 44))
    if "parse" in rows:
        reading(table, given.nodes)
    if "decide" in rows:
        deciding(table, given.steps, given.rounds)
    with table.machine(), tempfile.TemporaryDirectory(prefix="garrison-engine-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        pythons = {"garrison": sys.executable}
        if not given.no_peers and {"durable", "resume"} & {*rows}:
            pythons |= dict.fromkeys(PEERS, given.peers) if given.peers else peers(table, root,
                                                                                   fetch=not given.no_fetch)
        if "durable" in rows:
            durable(table, pythons, given.steps, given.rounds, root)
        if "resume" in rows:
            resuming(table, pythons, given.steps, root)


if __name__ == "__main__":
    main()
