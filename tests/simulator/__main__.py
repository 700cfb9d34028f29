"""`python -m tests.simulator --seeds 100000|A..B [--jobs N]`, or `--seed N [--trace]` to replay one.

Whoever fails is told with the command that replays it; how far it is stands on the standard error every ten seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulator.simulation import Failed, simulate

TELL = 10.0
"""Seconds between two lines about how far it is."""


def seeds(text: str) -> range:
    """`N` → the first N, `A..B` → from A up to and with B; ValueError otherwise."""
    first, dots, last = text.partition("..")
    return range(int(first), int(last) + 1) if dots else range(int(text))


def one(seed: int, *, flows: bool = False) -> tuple[int, int, tuple[str, ...], str]:
    """(seed, steps, statuses, what went wrong or '')."""
    try:
        outcome = simulate(seed, flows=flows)
    except Failed as error:
        return seed, 0, (), error.why
    return seed, outcome.steps, outcome.statuses, ""


def replay(seed: int, *, trace: bool, flows: bool = False) -> int:
    """Run one seed again; its trace goes to the standard output."""
    try:
        outcome = simulate(seed, tracing=trace, flows=flows)
    except Failed as error:
        print("\n".join(error.trace))
        print(error)
        return 1
    print(f"seed {seed}: {' and '.join(outcome.statuses)} after {outcome.steps} steps")
    return 0


def main() -> int:
    """Run many seeds, or replay one; 1 if any broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description="simulate the pure decisions")
    parser.add_argument("--seeds", type=seeds, default=range(200), metavar="N|A..B",
                        help="so many from 0, or from A up to and with B (200)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side (all cores)")
    parser.add_argument("--seed", type=int, help="replay this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything")
    parser.add_argument("--flows", action="store_true", help="graphs that branch, loop and ask instead of dags")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed, trace=options.trace, flows=options.flows)
    how = " --flows" if options.flows else ""
    began, ends, steps, failures = time.monotonic(), Counter[str](), 0, []
    told = began
    with ProcessPoolExecutor(min(options.jobs, os.cpu_count() or 1)) as pool:
        for done, (seed, took, statuses, why) in enumerate(pool.map(
                partial(one, flows=options.flows), options.seeds, chunksize=5 if options.flows else 20), 1):
            steps += took
            if time.monotonic() - told > TELL:
                told = time.monotonic()
                print(f"{done} of {len(options.seeds)} seeds, {done / (told - began):.0f}/s, {len(failures)} failed",
                      file=sys.stderr, flush=True)
            ends.update(statuses)
            if why:
                failures.append(seed)
                print(f"seed {seed}: {why}\n  again: python -m tests.simulator --seed {seed} --trace{how}", flush=True)
    spent = time.monotonic() - began
    runs = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    many = len(options.seeds)
    print(f"{many} seeds in {spent:.1f} s ({many / spent:.0f}/s), {steps} steps; runs: {runs}; "
          f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
