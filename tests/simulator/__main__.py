"""`python -m tests.simulator --seeds 100000 [--start N] [--jobs N]`, or `--seed N [--trace]` to replay one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulator.simulation import Failed, simulate


def one(seed: int) -> tuple[int, int, tuple[str, ...], str]:
    """(seed, steps, statuses, what went wrong or '')."""
    try:
        outcome = simulate(seed)
    except Failed as error:
        return seed, 0, (), error.why
    return seed, outcome.steps, outcome.statuses, ""


def replay(seed: int, *, trace: bool) -> int:
    """Run one seed again; its trace goes to the standard output."""
    try:
        outcome = simulate(seed, tracing=trace)
    except Failed as error:
        print("\n".join(error.trace))
        print(error)
        return 1
    print(f"seed {seed}: {' and '.join(outcome.statuses)} after {outcome.steps} steps")
    return 0


def main() -> int:
    """Run many seeds, or replay one; 1 if any broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description="simulate the pure decisions")
    parser.add_argument("--seeds", type=int, default=200, help="how many (200)")
    parser.add_argument("--start", type=int, default=0, help="the first (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (1)")
    parser.add_argument("--seed", type=int, help="replay this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed, trace=options.trace)
    began, ends, steps, failures = time.monotonic(), Counter[str](), 0, []
    with ProcessPoolExecutor(min(options.jobs, os.cpu_count() or 1)) as pool:
        for seed, took, statuses, why in pool.map(one, range(options.start, options.start + options.seeds),
                                                  chunksize=20):
            steps += took
            ends.update(statuses)
            if why:
                failures.append(seed)
                print(f"seed {seed}: {why}", flush=True)
    spent = time.monotonic() - began
    told = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    print(f"{options.seeds} seeds in {spent:.1f} s ({options.seeds / spent:.0f}/s), {steps} steps; runs: {told}; "
          f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
