"""`python -m tests.simulator --seeds 100000|A..B [--jobs N]`, or `--seed N [--trace]` to replay one.

A seed that fails is printed with the command that replays it; progress is printed to stderr every ten seconds.
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

PROGRESS_SECONDS = 10.0
"""Seconds between two lines of progress."""


def seeds(text: str) -> range:
    """Return the first N seeds for `N`, those from A to B for `A..B`; ValueError otherwise."""
    first, dots, last = text.partition("..")
    return range(int(first), int(last) + 1) if dots else range(int(text))


def run_seed(seed: int, *, flows: bool = False) -> tuple[int, int, tuple[str, ...], str]:
    """Return (seed, steps, statuses of its runs, why it failed or '')."""
    try:
        outcome = simulate(seed, flows=flows)
    except Failed as error:
        return seed, 0, (), error.why
    return seed, outcome.steps, outcome.statuses, ""


def replay(seed: int, *, trace: bool, flows: bool = False) -> int:
    """Run one seed again, and print its trace to stdout; return the exit code."""
    try:
        outcome = simulate(seed, tracing=trace, flows=flows)
    except Failed as error:
        print("\n".join(error.trace))
        print(error)
        return 1
    print(f"seed {seed}: {' and '.join(outcome.statuses)} after {outcome.steps} steps")
    return 0


def main() -> int:
    """Run many seeds, or replay one; return 1 if any broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator",
                                     description="simulate runs that are disturbed, with the real decisions")
    parser.add_argument("--seeds", type=seeds, default=range(200), metavar="N|A..B",
                        help="the first N seeds, or those from A to B (200)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes in parallel (all cores)")
    parser.add_argument("--seed", type=int, help="replay this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    parser.add_argument("--flows", action="store_true", help="graphs that branch, loop and ask, instead of dags")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed, trace=options.trace, flows=options.flows)
    option = " --flows" if options.flows else ""
    began, ends, steps, failures = time.monotonic(), Counter[str](), 0, list[int]()
    printed = began
    with ProcessPoolExecutor(min(options.jobs, os.cpu_count() or 1)) as pool:
        for done, (seed, took, statuses, why) in enumerate(pool.map(
                partial(run_seed, flows=options.flows), options.seeds, chunksize=5 if options.flows else 20), 1):
            steps += took
            if time.monotonic() - printed > PROGRESS_SECONDS:
                printed = time.monotonic()
                print(f"{done} of {len(options.seeds)} seeds, {done / (printed - began):.0f}/s, {len(failures)} failed",
                      file=sys.stderr, flush=True)
            ends.update(statuses)
            if why:
                failures.append(seed)
                print(f"seed {seed}: {why}\n  replay: python -m tests.simulator --seed {seed} --trace{option}",
                      flush=True)
    spent = time.monotonic() - began
    runs = ", ".join(f"{number} {status}" for status, number in sorted(ends.items()))
    count = len(options.seeds)
    print(f"{count} seeds in {spent:.1f} s ({count / spent:.0f}/s), {steps} steps; runs: {runs}; "
          f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
