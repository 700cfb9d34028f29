"""Mutation score of the simulator: `python -m tests.simulator_mutations [--seeds N] [--jobs N] [--only X] [--write]`.

Each planted bug of `tests.simulator.mutations` is applied in a scratch copy of the source. The simulator plays seeds
there until one breaks a rule: the first N, and every fourth of them with a graph that branches and loops, too. Exit
code 1 if fewer than 95 % are found, or if a seed breaks a rule without any bug: then none of it proves anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.planting import plant_all
from tests.proof_table import PAGE, insert
from tests.simulator.mutations import MUTATIONS, SHELLS, Mutation

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- planted bugs: python -m tests.simulator_mutations --write -->"
END = "<!-- end of the planted bugs -->"
WANTED = 0.95
"""Share of the bugs that must be found."""
FLOWS_EVERY = 4
"""Seeds of plain graphs for each one of a graph with flows."""
LIMIT = 1800.0
"""Seconds after which a bug counts as not found."""
PLAY = f"""
import json, sys
import garrison
from tests.simulator.simulation import Failed, simulate
assert garrison.__file__.startswith(sys.argv[1]), garrison.__file__
count = int(sys.argv[2])
for seed in range(count):
    for flows in (False, True) if seed % {FLOWS_EVERY} == 0 else (False,):
        try:
            simulate(seed, flows=flows)
        except Failed as error:
            print(json.dumps([seed, flows, error.why]))
            sys.exit(0)
print(json.dumps(None))
"""
"""Program of one scratch copy: prints the first seed that breaks a rule, whether it had flows, and why."""


@dataclass(frozen=True)
class Found:
    """What became of one bug: the seed that found it, and the rule that it broke; `seed` is None if none did."""

    mutation: Mutation
    seed: int | None
    flows: bool
    why: str
    seconds: float

    @property
    def line(self) -> str:
        """Return it as one line of the report."""
        if self.seed is None:
            return f"NOT FOUND  {self.mutation.name}: {self.mutation.what} ({self.why}, {self.seconds:.0f} s)"
        return (f"{self.seed:9}{'f' if self.flows else ' '} {self.mutation.name}: "
                f"{self.why.splitlines()[0][:150] if self.why else ''}")


def copy_source(target: Path) -> None:
    """Copy what the simulator imports."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", target / "src", ignore=ignore)
    shutil.copytree(ROOT / "tests/simulator", target / "tests/simulator", ignore=ignore)


def play(mutation: Mutation | None, count: int) -> tuple[list[object] | None, str]:
    """Run `count` seeds with a bug, or without one, in a scratch copy; return what was found, and the error if any."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder).resolve()
        copy_source(root)
        if mutation is not None:
            plant_all(mutation.plantings, root)
        environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run([sys.executable, "-c", PLAY, str(root), str(count)], cwd=root, env=environment,
                                  capture_output=True, text=True, check=False, timeout=LIMIT, start_new_session=True)
        except subprocess.TimeoutExpired:
            return None, "it did not end"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it died"])[-1][:200]
    found: list[object] | None = json.loads(done.stdout)
    return found, ""


def hunt(mutation: Mutation, count: int) -> Found:
    """Return which of `count` seeds finds a bug."""
    began = time.monotonic()
    found, why = play(mutation, count)
    spent = time.monotonic() - began
    if found is None:
        return Found(mutation, None, False, why or f"{count} seeds", spent)
    seed, flows, rule = found
    assert isinstance(seed, int)
    return Found(mutation, seed, bool(flows), str(rule), spent)


def report(results: Sequence[Found], count: int) -> str:
    """Return the score in words."""
    found = sum(result.seed is not None for result in results)
    return f"{found} of {len(results)} planted bugs found within {count} seeds ({found / len(results):.1%})"


def write(results: Sequence[Found], count: int) -> None:
    """Write the figure, the command, the commit and what was not found into docs/proof.md."""
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    lost = [result.mutation for result in results if result.seed is None]
    shells = sum(mutation in SHELLS for mutation in MUTATIONS)
    lines = [f"`python -m tests.simulator_mutations --seeds {count}` at `{commit}`: **{report(results, count)}**. "
             f"{shells} of them stand in the simulator's own processes, and show only that a wrong order of effects is "
             "found."]
    lines += ["", "Not found:", "", *(f"- `{mutation.name}`: {mutation.what}" for mutation in lost)] if lost else []
    PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), "\n".join(lines), BEGIN, END), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the bugs one by one; return 1 if too few are found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator_mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="seeds to try for each bug (400)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes in parallel (all cores)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this bug alone (repeatable)")
    parser.add_argument("--write", action="store_true", help="write the figure into docs/proof.md")
    options = parser.parse_args(arguments)
    chosen = [mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only]
    if unknown := set(options.only) - {mutation.name for mutation in chosen}:
        parser.error(f"no planted bug is called {', '.join(sorted(unknown))}")
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        unchanged = pool.submit(play, None, options.seeds)
        for done in as_completed([pool.submit(hunt, mutation, options.seeds) for mutation in chosen]):
            results.append(done.result())
            print(results[-1].line, flush=True)
    broken, why = unchanged.result()
    if broken or why:
        print(f"without any bug: {broken or why}; so what is found proves nothing", file=sys.stderr)
        return 1
    print(report(results, options.seeds))
    if options.write and not options.only:
        write(results, options.seeds)
    return 0 if sum(result.seed is not None for result in results) >= WANTED * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
