"""CooperBench replayed: real features that conflict, landed by garrison, a naive merge, and tests before the merge.

    .venv/bin/python benchmarks/cooperbench.py [--pairs N --seed S] [--minutes M] [--data DIR] [--only LIBRARY/TASK]
                                               [--phases control,calm,killed,crew] [--python PYTHON] [--table] [--json]

A pair of features of one task is a pipeline of two command agents that apply the gold patches; the gate runs the suites
of the features that are in the merged tree, each in files of its own (`cooperbench_data.py`). First come the controls:
a suite must be red on the base and green with its own feature, or its feature is left out and named. A suite counts as
red when three runs fail. Pairs are classed by their gold patches: `conflict` (git cannot merge them), `clean green`
(merged, both suites pass) and `clean red` (git merges them, each is green alone, together they are red). Every commit
that main ever had is judged by running the suites on it and by `garrison.testing.checker`. `killed` repeats all with
`kill -9` of a random process of the run every second; `crew` does all features of a task at once, all tasks together.

Results are appended to a file in `--state` (default build/cooperbench); a second call goes on where the first ended, in
the same random order. Without the dataset it says so and does nothing. No model is called.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cooperbench_data import Task, TaskRepository, Unusable, build, find_dataset, tasks
from cooperbench_run import KILLING, Crew, Suites, dump, one_by_one, play, suite_command
from table import Table

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("control", "calm", "killed", "crew")
CLASSES = ("conflict", "clean green", "clean red")
Pair = tuple[str, str]
LENIENT = "-W ignore::pytest.PytestDeprecationWarning"
"""Suites that make an error of every warning would be red for what a later pytest deprecates."""


@dataclass
class Bench:
    """State of one call: known results, and their place."""

    options: argparse.Namespace
    state: Path
    records: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    repositories: dict[str, TaskRepository] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        self.file = self.state / "results.jsonl"
        trees: dict[str, bool] = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:  # torn when it was killed
                continue
            if record["kind"] == "tree":
                trees[record["tree"]] = record["green"]
            else:
                self.records[tuple(record["key"])] = record
        self.gate = suite_command(self.options.python, self.options.pytest)
        self.suites = Suites(self.gate, self.state / "suites", trees,
                             lambda tree, green: dump(self.file, {"kind": "tree", "tree": tree, "green": green}))

    def once(self, kind: str, key: tuple[str, ...], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a known record, or measure and keep it."""
        full = (kind, *key)
        if full not in self.records:
            at = time.monotonic()
            found = {"kind": kind, "key": list(full), "at": commit(), **measure()}
            found["took"] = round(time.monotonic() - at, 1)
            dump(self.file, found)
            self.records[full] = found
        return self.records[full]

    def known(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of a kind."""
        return [record for key, record in self.records.items() if key[0] == kind]

    @property
    def late(self) -> bool:
        """Return whether nothing new should start."""
        limit = self.options.minutes
        return limit is not None and time.monotonic() - self.began > limit * 60

    def say(self, text: str) -> None:
        """Tell the progress."""
        if not self.options.quiet:
            print(f"[{time.monotonic() - self.began:5.0f} s] {text}", file=sys.stderr, flush=True)


def commit() -> str:
    """Return the commit that is measured."""
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() or "no commit"


# ------------------------------------------------------------------------------------------------------- controls


def control(bench: Bench, source: TaskRepository) -> None:
    """Run each suite on the base, with its own feature, and with all features."""
    for feature in source.task.features:
        if bench.late:
            return
        bench.say(f"control: {source.task.key} feature {feature.name}")
        bench.once("control", (source.task.key, feature.name), lambda name=feature.name: _control(bench, source, name))


def _control(bench: Bench, source: TaskRepository, name: str) -> dict[str, Any]:
    combined = source.merged("combined", f"suite/{name}") if source.has_combined else ""
    return {"base_red": not bench.suites.green(source.path, source.rev(f"suite/{name}")),
            "own_green": bench.suites.green(source.path, source.rev(f"feature/{name}")),
            "combined_green": bool(combined) and bench.suites.green(source.path, combined)}


def usable(bench: Bench, task: Task) -> set[str]:
    """Return the features whose suite can judge."""
    found = {name: bench.records.get(("control", task.key, name), {}) for name in (one.name for one in task.features)}
    return {name for name, record in found.items() if record.get("base_red") and record.get("own_green")}


def class_of(bench: Bench, source: TaskRepository, pair: Pair) -> str:
    """Return one of CLASSES, measured once."""
    def measure() -> dict[str, Any]:
        if not source.merged(*(f"gold/{name}" for name in pair)):
            return {"class": "conflict"}
        tree = source.merged(*(f"feature/{name}" for name in pair))
        return {"class": "clean green" if tree and bench.suites.green(source.path, tree) else "clean red"}

    return str(bench.once("class", (source.task.key, *pair), measure)["class"])


# ----------------------------------------------------------------------------------------------------------- pairs


def chosen_pairs(bench: Bench) -> list[tuple[TaskRepository, Pair]]:
    """Return the pairs of usable features in the order of the seed, at most `--pairs`."""
    found = [(source, pair) for source in bench.repositories.values() for pair in source.task.pairs()
             if set(pair) <= usable(bench, source.task)
             and bench.options.pair in (None, ",".join(pair))]
    random.Random(bench.options.seed).shuffle(found)
    return found[:bench.options.pairs]


def run_pairs(bench: Bench, mode: str) -> None:
    """Run each pair once in that mode."""
    pairs = chosen_pairs(bench)
    for number, (source, pair) in enumerate(pairs, 1):
        if bench.late:
            return
        kind = class_of(bench, source, pair)
        record = bench.once(mode, (source.task.key, *pair), lambda source=source, pair=pair: _run(
            bench, source, pair, mode))
        bench.say(f"{mode} {number} of {len(pairs)}: {source.task.key} {' and '.join(pair)} ({kind}): "
                  f"{len(record['landed'])} landed, {len(record['red'])} red on main, "
                  f"{len(record['findings'])} findings, {record['kills']} kills, {record['seconds']} s")


def _run(bench: Bench, source: TaskRepository, pair: Pair, mode: str) -> dict[str, Any]:
    features = tuple(one for one in source.task.features if one.name in pair)
    dice = random.Random(f"{bench.options.seed} {source.task.key} {pair}") if mode == "killed" else None
    crew = Crew(source, features, bench.state / "pair", bench.gate, killed=dice)
    try:
        play([crew])
        return crew.result(bench.suites)
    finally:
        crew.close()


def baseline(bench: Bench, *, tests_first: bool) -> dict[str, int]:
    """Merge the second branch of each pair that ran after the first; no test of the merged tree, or of each branch
    alone before."""
    counts = {"pairs": 0, "both green": 0, "red commits": 0, "left to a person": 0}
    for source, pair in chosen_pairs(bench):
        if ("calm", source.task.key, *pair) not in bench.records:
            continue
        counts["pairs"] += 1
        alone = [bench.suites.green(source.path, source.rev(f"feature/{name}")) for name in pair]
        if tests_first and not all(alone):
            continue
        tree = source.merged(*(f"feature/{name}" for name in pair))
        is_green = bool(tree) and bench.suites.green(source.path, tree)
        counts["both green"] += is_green
        counts["red commits"] += bool(tree) and not is_green
        counts["left to a person"] += not tree
    return counts


# ------------------------------------------------------------------------------------------------------------ crew


def run_crews(bench: Bench) -> None:
    """Do all features of each task one by one; then by a crew for each task, all tasks at the same time."""
    sources = [source for source in bench.repositories.values() if source.has_combined]
    for source in sources:
        if not bench.late:
            bench.say(f"one by one: {source.task.key}")
            bench.once("loop", (source.task.key,), lambda source=source: one_by_one(
                source, bench.state / "loop", bench.gate, bench.options.work))
    for mode in ("crew", "crew killed"):
        if bench.late or all((mode, source.task.key) in bench.records for source in sources):
            continue
        bench.say(f"{mode}: {sum(len(source.task.features) for source in sources)} features at once")
        crews = [Crew(source, source.task.features, bench.state / "crew" / source.task.key, bench.gate,
                      bench.options.work, random.Random(f"{source.task.key}") if mode != "crew" else None,
                      len(source.task.features), f"crew-{number}") for number, source in enumerate(sources)]
        try:
            play(crews)
            for source, crew in zip(sources, crews, strict=True):
                bench.records.pop((mode, source.task.key), None)
                bench.once(mode, (source.task.key,), lambda crew=crew: crew.result(bench.suites))
        finally:
            for crew in crews:
                crew.close()


# ----------------------------------------------------------------------------------------------------------- table


def show(bench: Bench, table: Table) -> bool:
    """Print what is known; return whether every promise held."""
    _show_controls(bench, table)
    holds = [_show_pairs(bench, table, mode) for mode in ("calm", "killed") if bench.known(mode)]
    for what, tests_first in (("naive merge", False), ("tests before the merge", True)):
        if bench.known("calm"):
            counts = baseline(bench, tests_first=tests_first)
            table.add("baseline", what, f"{counts['both green']} of {counts['pairs']} landed with both suites green, "
                      f"{counts['red commits']} red commits on main, {counts['left to a person']} left to a person",
                      **counts)
    _show_crews(bench, table)
    return all(holds) and all(not one["red"] and not one["findings"] for mode in ("crew", "crew killed")
                              for one in bench.known(mode))


def _show_controls(bench: Bench, table: Table) -> None:
    for source in bench.repositories.values():
        names = [one.name for one in source.task.features]
        able = usable(bench, source.task)
        known = {name: bench.records.get(("control", source.task.key, name)) for name in names}
        left = [f"{name} ({reason})" for name, reason in source.refused]
        for name, one in known.items():
            if one and name not in able:
                left.append(f"{name} ({'red with' if one['base_red'] else 'green without'} its own feature)")
        unsolved = [name for name, one in known.items() if one and name in able and not one["combined_green"]]
        count = len(names) + len(source.refused)
        table.add("control", source.task.key, f"{len(able)} of {count} features can be judged"
                  + (f"; left out: {', '.join(left)}" if left else "")
                  + (f"; red with the combined patch: {', '.join(unsolved)}" if unsolved else ""),
                  usable=len(able), left_out=left, unsolved=unsolved)


def _show_pairs(bench: Bench, table: Table, mode: str) -> bool:
    records = [(str(bench.records["class", *one["key"][1:]]["class"]), one) for one in bench.known(mode)]
    both = sum(one["green"] and len(one["landed"]) == 2 for _, one in records)
    red, findings = (sum(len(one[what]) for _, one in records) for what in ("red", "findings"))
    table.add(mode, "pairs landed with both suites green", f"{both} of {len(records)}", landed=both, pairs=len(records))
    table.add(mode, "red commits on main at any moment; findings of the checker", f"{red}; {findings}", red=red,
              findings=findings)
    for kind in CLASSES:
        some = [one for found, one in records if found == kind]
        good = sum(one["green"] and len(one["landed"]) == 2 for one in some)
        caught = sum(bool(one["rejections"] or one["conflicts"]) and not one["red"] for one in some)
        words = {"clean red": f"{caught} of {len(some)} caught, {good} landed green by rework"}.get(
            kind, f"{good} of {len(some)} landed")
        table.add(mode, kind, words, pairs=len(some), landed=good, caught=caught)
    answers = sorted(second for _, one in records for second in one["answers"])
    if answers:
        table.add(mode, "a conflict → its answer is queued", f"{statistics.median(answers):.1f} s median, "
                  f"{answers[-1]:.1f} s at most, of {len(answers)}", median_s=statistics.median(answers))
    spent = [one["seconds"] for _, one in records]
    table.add(mode, "a pair, launch to end", f"{statistics.median(spent):.1f} s median, {max(spent):.1f} s at most; "
              f"{sum(one['kills'] for _, one in records)} kills", median_s=statistics.median(spent))
    if mode == "killed":
        table.add(mode, f"killing ended after {KILLING:g} s; queues unpaused by a person",
                  f"{sum(one['kills_ended'] for _, one in records)}; "
                  f"{sum(one.get('unpaused', False) for _, one in records)}")
    for _, one in records:
        if one["red"] or one["findings"] or len(one["landed"]) < 2:
            table.add(mode, " ".join(one["key"][1:]), f"{one['status']}: landed {one['landed']}, red {one['red']}, "
                      f"{one['findings'][:2]} {one['failed']}")
    return not red and not findings and all(
        one["green"] and len(one["landed"]) == 2 for kind, one in records if kind == "clean green")


def _show_crews(bench: Bench, table: Table) -> None:
    for mode, words in (("loop", "one by one"), ("crew", "all at once"), ("crew killed", "all at once, killed")):
        records = bench.known(mode)
        if not records:
            continue
        spent = [one["seconds"] for one in records]
        total = sum(spent) if mode == "loop" else max(spent)
        counts = f"{sum(len(one['landed']) for one in records)} features of {len(records)} tasks in {total:.1f} s, " \
            f"{sum(one['gates'] for one in records)} gate runs"
        if mode != "loop":
            counts += f"; {sum(len(one['red']) for one in records)} red commits, " \
                f"{sum(len(one['findings']) for one in records)} findings, {sum(one['kills'] for one in records)} kills"
        table.add("crew", words, counts, seconds=total)
        for one in records:
            for finding in (*one.get("findings", ())[:3], *one.get("failed", {}).items()):
                table.add("crew", f"{mode}, {one['key'][1]}", f"{finding}")


# ------------------------------------------------------------------------------------------------------------ main


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", metavar="DIR", help="the dataset (default: $COOPERBENCH, or ../shared/cooperbench)")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "cooperbench", metavar="DIR",
                        help="where results and repositories are kept (build/cooperbench)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tasks, such as 'click/*' or 'click/task2800'")
    parser.add_argument("--pair", metavar="A,B", help="only this pair of features, of each task that --only leaves")
    parser.add_argument("--pairs", type=int, metavar="N", help="at most so many pairs, drawn by --seed (all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default=",".join(PHASES), help=f"which of {','.join(PHASES)} (all)")
    parser.add_argument("--work", type=float, default=2.0, help="seconds that an agent of a crew thinks (2)")
    parser.add_argument("--minutes", type=float, help="begin nothing new after so many minutes; the next call goes on")
    parser.add_argument("--python", default=sys.executable, help="interpreter with pytest and what the libraries need")
    parser.add_argument("--pytest", default=LENIENT, metavar="OPTIONS", help=f"more options of pytest ({LENIENT})")
    parser.add_argument("--table", action="store_true", help="measure nothing, print what is known")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    chosen = parser.parse_args()
    if unknown := set(chosen.phases.split(",")) - set(PHASES):
        parser.error(f"no such phase: {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    return chosen


def repositories(bench: Bench, found: Iterator[Task]) -> None:
    """Build the repositories of the chosen tasks; one without a base is named and left out."""
    for task in found:
        if not fnmatch(task.key, bench.options.only):
            continue
        try:
            bench.repositories[task.key] = build(task, bench.state / "tasks" / task.library / task.name)
        except (Unusable, RuntimeError) as error:
            bench.say(f"left out: {error}")


def main() -> int:
    """Measure what is missing and print the table; return 1 if a promise was broken."""
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run is ended on the way out
    try:
        dataset = find_dataset(chosen.data)
    except Unusable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0
    bench = Bench(chosen, chosen.state.resolve())
    table = Table(chosen.json, (9, 60))
    with table.machine():
        repositories(bench, tasks(dataset))
        if not bench.repositories:
            print(f"skipped: no task of {dataset} matches {chosen.only}", file=sys.stderr)
            return 0
        phases = () if chosen.table else chosen.phases.split(",")
        if "control" in phases:
            for source in bench.repositories.values():
                control(bench, source)
        for mode in ("calm", "killed"):
            if mode in phases:
                run_pairs(bench, mode)
        if "crew" in phases:
            run_crews(bench)
        holds = show(bench, table)
    return 0 if holds else 1


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; another call goes on where this one ended", file=sys.stderr)
        sys.exit(130)
