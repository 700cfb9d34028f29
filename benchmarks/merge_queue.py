"""Merge queue: garrison and its peers in one run, each figure with its bar.

    .venv/bin/python benchmarks/merge_queue.py [--quick] [--rows candidate,landing,…] [--no-peers] [--no-fetch] [--json]

Rows: `candidate` (merge, commit and publish, and a test tree made ready, at 5,000 and 50,000 files, beside `git merge`
in a worktree and a fresh worktree), `landing` (all that a landing costs beside its gate), `drain` (40 entries with a
gate of a second, at several rates of bad ones, beside the one-by-one loop, and beside one that repeats each red run, as
the queue does, before it rejects), `flaky` (good entries wrongly rejected, by
the functions that decide, without git), `enqueue` (50 at once while a test runs) and `takeover` (kill -9 of the
processor until its successor has adopted the running test). `python -m tests.queue_storm` is the row of kills.
Peers alternate, so that load hits all alike.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import merge_odds
from merge_peers import WHO, Agcoord, Loop, Missing, branches, by_shell, git, repository
from table import Table

from garrison.merge.config import QueueConfig
from garrison.merge.processor import MergeProcessor, StepResult
from garrison.merge.queue import MergeQueue, pin_ref
from garrison.merge.slots import acquire_slot
from garrison.system.environment import child_environment

ROWS = ("candidate", "landing", "drain", "flaky", "enqueue", "takeover")
FORK = multiprocessing.get_context("fork")
PATIENCE = 60.0
DRAWS = 400
"""Of which entries are bad, for the average."""


def timed(act: Callable[[], object]) -> float:
    """Milliseconds that it took."""
    at = time.perf_counter()
    act()
    return (time.perf_counter() - at) * 1e3


def p99(times: list[float]) -> float:
    """Return the value that 99 % are within; the worst of few."""
    return sorted(times)[max(0, round(len(times) * 0.99) - 1)] if len(times) > 100 else max(times)


def both(times: list[float]) -> str:
    """Median / p99."""
    return f"{statistics.median(times):8.1f} / {p99(times):.1f} ms"


# --------------------------------------------------------------------------------------------------------- a queue


class Ours:
    """Queue on a repository, processed in this process."""

    def __init__(self, root: Path, repo: Path, gate: str, shared: Path | None = None, **config: Any) -> None:
        self.home, self.repo, self.trees = root / "home", repo, root / "trees"
        if shared is not None:  # which the gate may write to from its sandbox
            self.home.mkdir(mode=0o700)
            (self.home / "config.toml").write_text(f'[sandbox]\nwrite = ["{shared}"]\n')
        self.queue = MergeQueue(self.home, repo, token="benchmark")
        self.queue.configure(QueueConfig(gate, None, False, 600.0, **config))

    def processor(self, token: str = "benchmark") -> MergeProcessor:
        """Return a processor that may take the queue."""
        return MergeProcessor(MergeQueue(self.home, self.repo, token=token), trees=self.trees,
                              environment=child_environment(os.environ))

    def drain(self, processor: MergeProcessor, *, until_landed: bool = False) -> None:
        """Work until nothing waits, or until the next landing."""
        until = time.monotonic() + 3600
        while time.monotonic() < until:
            done = processor.step()
            processor.heartbeat()
            if isinstance(done, StepResult):
                if until_landed and done.what == "landed":
                    return
                continue
            if done.kind == "empty":
                return
            if done.kind not in ("gate", "ref_locked"):
                raise RuntimeError(f"the queue stands still: {done.kind}: {done.text}")
            _sleep(done.fd)
        raise RuntimeError("the queue is not drained after an hour")

    def landed(self) -> int:
        """Entries that landed."""
        return sum(entry.status == "landed" for entry in self.queue.entries())


def _sleep(fd: int) -> None:
    import select

    poller = select.poll()
    if fd >= 0:
        poller.register(fd, select.POLLIN)
    poller.poll(200)


# ------------------------------------------------------------------------------------------------------- candidate


def candidate(root: Path, rounds: int, sizes: tuple[int, ...], table: Table) -> None:
    """Merge, commit, pin and publish without a checkout, against `git merge` in one; a slot against a new worktree."""
    medians: dict[int, float] = {}
    for size in sizes:
        repo = repository(root / f"r{size}", size)
        names = [f"b{number}" for number in range(rounds + 1)]
        branches(repo, names)
        git(repo, "branch", "theirs", "main")
        loop = Loop(repo, root / f"w{size}", lambda _: True)
        queue = MergeQueue(root / "home", repo)
        ours, theirs, ready, fresh = [], [], [], []
        slot = acquire_slot(queue.git, root / "trees" / queue.git.key)
        for number, name in enumerate(names):
            ours.append(timed(partial(_publish, queue, git(repo, "rev-parse", name))))
            theirs.append(timed(partial(git, loop.tree, "merge", "-q", "--no-ff", "-m", "m", name)))
            ready.append(timed(partial(slot.prepare, git(repo, "rev-parse", "main"))))
            if number % max(1, rounds // 3) == 0:
                fresh.append(_fresh(repo, root / f"fresh{number}"))
        ours, theirs, ready = ours[1:], theirs[1:], ready[1:]  # the first ones warm the caches
        slot.remove()
        slot.release()
        medians[size] = statistics.median(ours)
        ratio = statistics.median(theirs) / medians[size]
        files = f"{size:,} files"
        table.add("candidate", f"candidate + publish, {files} (bar ≤ 12 / 50 ms)", both(ours), files=size,
                  median_ms=medians[size], p99_ms=p99(ours))
        table.add("candidate", f"git merge in a worktree, {files}", f"{both(theirs)}, {ratio:.1f} x ours (bar ≥ "
                  f"{4 if size < 10_000 else 15} x)", files=size, median_ms=statistics.median(theirs), ratio=ratio)
        table.add("candidate", f"test tree ready, {files} (bar ≤ {30 if size < 10_000 else 250} ms)", both(ready),
                  files=size, median_ms=statistics.median(ready), p99_ms=p99(ready))
        table.add("candidate", f"git worktree add, {files}", f"{both(fresh)}, "
                  f"{statistics.median(fresh) / statistics.median(ready):.0f} x ours", files=size,
                  median_ms=statistics.median(fresh))
    if len(medians) > 1:
        grows = medians[sizes[-1]] / medians[sizes[0]]
        table.add("candidate", f"{sizes[0]:,} → {sizes[-1]:,} files (bar ≤ 1.5 x)", f"{grows:8.2f} x", ratio=grows)


def _publish(queue: MergeQueue, oid: str) -> None:
    git_, tip = queue.git, queue.git.branch_tip("main")
    assert tip
    tree = git_.merge_tree(tip, oid).tree
    assert tree
    commit = git_.commit_tree(tree, [tip, oid], "Merge\n", date=1_700_000_000)
    assert git_.make_ref(pin_ref("benchmark", "candidate"), commit)
    assert git_.update_ref("refs/heads/main", commit, tip, hooks=True)


def _fresh(repo: Path, tree: Path) -> float:
    took = timed(lambda: git(repo, "worktree", "add", "-q", "--detach", str(tree), "main"))
    git(repo, "worktree", "remove", "--force", str(tree))
    return took


# --------------------------------------------------------------------------------------------------------- landing


def landing(root: Path, rounds: int, peer: Callable[[], Agcoord] | None, table: Table) -> None:
    """From a waiting entry to a landed one with the gate `true`, one by one."""
    repos = [repository(root / name, 1000) for name in ("ours", "loop", "agcoord")]
    names = [f"b{number}" for number in range(rounds + 1)]
    for repo in repos:
        branches(repo, names)
    ours = Ours(root, repos[0], "true")
    loop = Loop(repos[1], root / "wl", by_shell("true"))
    processor = ours.processor()
    assert processor.acquire()
    processor.recover()
    took: dict[str, list[float]] = {"ours": [], "loop": []}
    for name in names:
        ours.queue.enqueue("r", name, 1, name)
        took["ours"].append(timed(lambda: ours.drain(processor, until_landed=True)))
        ours.drain(processor)  # what it learns once it is idle
        took["loop"].append(timed(lambda name=name: loop.land(name)))
    processor.close()
    assert ours.landed() == len(names)
    mine, loops = took["ours"][1:], took["loop"][1:]
    table.add("landing", "whole landing with gate `true` (bar ≤ 60 ms)", both(mine), median_ms=statistics.median(mine),
              p99_ms=p99(mine))
    table.add("landing", "merge-test-one-by-one loop", both(loops), median_ms=statistics.median(loops))
    if peer is None:
        return
    try:
        agcoord = peer()
    except Missing as error:
        table.add("landing", "agcoord 0.2.2", f"cannot be had: {error}")
        return
    try:
        other = Loop(repos[2], root / "wa", agcoord.gate("true"))
        times = [timed(lambda name=name: _must(other.land(name))) for name in names[:max(3, rounds // 4)]][1:]
        table.add("landing", "agcoord 0.2.2 (`agc full` as the loop's gate)",
                  f"{both(times)}, {statistics.median(times) / statistics.median(mine):.1f} x ours",
                  median_ms=statistics.median(times))
    except RuntimeError as error:
        table.add("landing", "agcoord 0.2.2", f"does not run here: {error}")
    finally:
        agcoord.close()


def _must(landed: bool) -> None:
    if not landed:
        raise RuntimeError("its gate did not pass")


# ----------------------------------------------------------------------------------------------------------- drain


def drain(root: Path, entries: int, seconds: float, rates: tuple[float, ...], rounds: int, table: Table) -> None:
    """Drain a queue in which all entries wait at the start; which are bad is drawn once for all peers.

    With the most bad ones also with a gate of one core, so that prefixes are tested in parallel. The average over many
    draws comes from the deciding functions alone, in gate runs.
    """
    bars = {0.0: ">= 5", 0.01: ">= 5", 0.05: ">= 2.5", 0.2: ">= 1.1"}
    for rate in rates:
        mine = theirs = confirmed = beside = 0.0
        bad_ones = 0
        for number in range(rounds):
            dice = random.Random(f"{rate} {number}")
            names = [f"b{place}" for place in range(entries)]
            bad = [name for name in names if dice.random() < rate]
            bad_ones += len(bad)
            folder = root / f"{rate}-{number}"
            mine += _drained(folder / "ours", names, bad, seconds)
            looped, repeats = _looped(folder / "loop", names, bad, seconds)
            theirs, confirmed = theirs + looped, confirmed + looped + repeats
            if rate == max(rates):
                beside += _drained(folder / "beside", names, bad, seconds, gate_cores=1)
        ratio, bar = theirs / mine, f" (bar {bars[rate]} x)" if rate in bars else ""
        table.add("drain", f"{entries} entries, gate {seconds:g} s, {rate:.0%} bad ({bad_ones} of {entries * rounds})",
                  f"{mine / rounds:8.1f} s, the loop {theirs / rounds:.1f} s: {ratio:.2f} x{bar}",
                  rate=rate, bad=bad_ones, seconds=mine / rounds, loop_seconds=theirs / rounds, ratio=ratio)
        table.add("drain", "beside a loop that repeats each red run",
                  f"{mine / rounds:8.1f} s, the loop {confirmed / rounds:.1f} s: {confirmed / mine:.2f} x",
                  rate=rate, loop_seconds=confirmed / rounds, confirmed_ratio=confirmed / mine)
        if beside:
            table.add("drain", f"the same with `--gate-cores 1` on {os.cpu_count()} cores",
                      f"{beside / rounds:8.1f} s: {theirs / beside:.2f} x", rate=rate, seconds=beside / rounds,
                      ratio=theirs / beside)
        for cores, width in (("", 1), (" with `--gate-cores 1` on 2 cores", 2)):
            average = merge_odds.ratio(entries, rate, width, DRAWS, seconds)
            table.add("drain", f"{rate:.0%} bad on the average of {DRAWS} draws{cores}",
                      f"{average:8.2f} x{bar}", rate=rate, width=width, ratio=average)
            confirms = merge_odds.ratio(entries, rate, width, DRAWS, seconds, confirms=True)
            table.add("drain", f"{rate:.0%} bad on the average, both repeat red runs{cores}", f"{confirms:8.2f} x",
                      rate=rate, width=width, confirmed_ratio=confirms)


def _gate(seconds: float) -> str:
    return f"sleep {seconds}; ! ls | grep -q '^bad-'"


def _drained(root: Path, names: list[str], bad: list[str], seconds: float, **config: Any) -> float:
    repo = repository(root / "r", 100)
    branches(repo, names, bad)
    ours = Ours(root, repo, _gate(seconds), **config)
    for name in names:
        ours.queue.enqueue("r", name, 1, name)
    processor = ours.processor()
    assert processor.acquire()
    processor.recover()
    took = timed(lambda: ours.drain(processor)) / 1e3
    processor.close()
    assert ours.landed() == len(names) - len(bad), "the queue judged wrongly"
    return took


def _looped(root: Path, names: list[str], bad: list[str], seconds: float) -> tuple[float, float]:
    """Return the seconds of the loop, and those in which it found entries red: the time to repeat these runs."""
    repo = repository(root / "r", 100)
    branches(repo, names, bad)
    loop = Loop(repo, root / "w", by_shell(_gate(seconds)))
    took = {True: 0.0, False: 0.0}
    landed: list[str] = []
    for name in names:
        begun = time.perf_counter()
        if is_landed := loop.land(name):
            landed.append(name)
        took[is_landed] += time.perf_counter() - begun
    assert len(landed) == len(names) - len(bad), "the loop judged wrongly"
    return sum(took.values()), took[False]


# ----------------------------------------------------------------------------------------------------------- flaky


def flaky(entries: int, wrong: float, table: Table) -> None:
    """Good and bad entries judged by a gate that is red on good trees at random; no git, no time."""
    for bad_rate in (0.0, 0.05):
        dice = random.Random(f"flaky {bad_rate}")
        bad = {number for number in range(entries) if dice.random() < bad_rate}
        rejected, runs = judged(entries, bad, wrong, dice)
        good = entries - len(bad)
        share = len(rejected - bad) / good
        table.add("flaky", f"good ones wrongly rejected, gate {wrong:.0%} flaky, {bad_rate:.0%} bad (bar ≤ 0.1 %)",
                  f"{share:8.3%} of {good:,}, {runs / entries:.2f} runs an entry; one by one: {wrong:.1%}, 1.00 runs",
                  share=share, entries=good, runs=runs / entries)


def judged(entries: int, bad: set[int], wrong: float, dice: random.Random) -> tuple[set[int], int]:
    """Entries that the decision rejects, and the gate runs that it took."""
    world = merge_odds.World(entries, frozenset(bad), (), wrong)
    drain = merge_odds.Drain(world, dice=dice, window=40).drain()
    return drain.rejected, drain.runs


def _tree(count: int, last: tuple[int, ...]) -> str:
    """Return a name for the tree of that many landed entries, the last of which are these."""
    return f"{count}:{last[-40:]}"


# --------------------------------------------------------------------------------------------------------- enqueue


def enqueue(root: Path, count: int, table: Table) -> None:
    """So many at once, as processes that have the queue open, without and with a test that runs, as commands, and one
    after another."""
    repo = repository(root / "r", 1000)
    names = [f"b{number}" for number in range(4 * count + 1)]
    branches(repo, names)
    alone = Ours(root / "alone", repo, "true")
    times = _at_once(alone, names[3 * count:-1])
    table.add("enqueue", f"{count} at once, no processor, in process (bar p99 ≤ 25 ms)", both(times),
              median_ms=statistics.median(times), p99_ms=p99(times))
    ours = Ours(root, repo, f"until test -e {root}/go; do sleep 0.05; done")
    ours.queue.enqueue("r", names[-1], 1, names[-1])
    worker = FORK.Process(target=_work, args=(ours,))
    worker.start()
    _until(lambda: any(entry.status == "testing" for entry in ours.queue.entries()), "a running test")
    try:
        times = _at_once(ours, names[:count])
        table.add("enqueue", f"{count} at once while a test runs, in process", both(times),
                  median_ms=statistics.median(times), p99_ms=p99(times))
        single = [timed(lambda name=name: _answered(_command(ours, name).wait()))
                  for name in names[2 * count:][:11]][1:]
        table.add("enqueue", "one command after another (bar p99 ≤ 150 ms)", both(single),
                  median_ms=statistics.median(single), p99_ms=p99(single))
        times = _commands_at_once(ours, names[count:2 * count])
        table.add("enqueue", f"{count} commands at once, {os.cpu_count()} cores", both(times),
                  median_ms=statistics.median(times), p99_ms=p99(times))
        running = sum(entry.status == "testing" for entry in ours.queue.entries())
        table.add("enqueue", "answered, and the test still runs", f"{len(ours.queue.entries()) - 1:8} of "
                  f"{3 * count + 11}, {running}")
    finally:
        (root / "go").touch()
        worker.kill()
        worker.join()
        processor = ours.processor()
        processor.acquire()
        processor.recover()
        processor.close(end_gate=True)


def _work(ours: Ours) -> None:
    processor = ours.processor("worker")
    assert processor.acquire()
    processor.recover()
    ours.drain(processor)


def _until(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"never: {what}")
        time.sleep(0.002)


def _at_once(ours: Ours, names: list[str]) -> list[float]:
    """Enqueue at once: all begin when a pipe is closed, and none ends before all have enqueued."""
    ready, said, through = FORK.Semaphore(0), FORK.SimpleQueue(), FORK.Event()
    starting, start = os.pipe()

    def one(name: str) -> None:
        queue = MergeQueue(ours.home, ours.repo, token=name)
        assert queue.git.key
        queue.enqueue("first", f"before_{name}", 1, name)  # a forked process copies most of its pages here

        os.close(start)
        ready.release()
        os.read(starting, 1)
        took = timed(lambda: queue.enqueue("r", name, 1, name))
        said.put(took)
        through.wait(PATIENCE)

    workers = [FORK.Process(target=one, args=(name,)) for name in names]
    for worker in workers:
        worker.start()
    for _ in names:
        ready.acquire()
    os.close(start)
    times = [said.get() for _ in names]
    through.set()
    for worker in workers:
        worker.join()
    os.close(starting)
    return times


def _command(ours: Ours, name: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-P", "-m", "garrison.cli.main", "merge-queue", "enqueue", name, name, "--repo-root",
             str(ours.repo), "--target", "main", "--home", str(ours.home)]
    # Compiled once, as with whoever has it installed; also where the environment says to compile it anew each time.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {**WHO, "PYTHONPYCACHEPREFIX": str(ours.home.parent / "compiled")}
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env=env)


def _answered(code: int) -> None:
    if code:
        raise RuntimeError(f"merge-queue enqueue ended with {code}")


def _commands_at_once(ours: Ours, names: list[str]) -> list[float]:
    at = time.perf_counter()
    left, times = [_command(ours, name) for name in names], []
    while left:
        for child in list(left):
            if child.poll() is not None:
                _answered(child.returncode)
                times.append((time.perf_counter() - at) * 1e3)
                left.remove(child)
        time.sleep(0.0005)
    return times


# -------------------------------------------------------------------------------------------------------- takeover


def takeover(root: Path, rounds: int, table: Table) -> None:
    """kill -9 of a processor whose gate runs, until the one that stood by has it; the gate must not be run again."""
    repo = repository(root / "r", 1000)
    branches(repo, ["one"])
    shared = root / "shared"
    shared.mkdir()
    ours = Ours(root, repo, f"echo run >> {shared}/runs; until test -e {shared}/go; do sleep 0.05; done", shared)
    ours.queue.enqueue("r", "one", 1, "one")
    first = FORK.Process(target=_work, args=(ours,))
    first.start()
    _until((shared / "runs").exists, "a running test")
    times = []
    for _ in range(rounds):
        adopted = FORK.Event()
        second = FORK.Process(target=_stand_by, args=(ours, adopted))
        second.start()
        time.sleep(0.3)
        at = time.perf_counter()
        first.kill()
        if not adopted.wait(PATIENCE):
            raise RuntimeError("nobody took over")
        times.append((time.perf_counter() - at) * 1e3)
        first.join()
        first = second
    (shared / "go").touch()
    _until(lambda: ours.landed() == 1, "the landing")
    first.kill()
    first.join()
    runs = (shared / "runs").read_text().count("run")
    table.add("takeover", "kill -9 → successor has adopted the test (bar ≤ 1 s)",
              f"{both(times)}, gate runs in {rounds} take-overs: {runs}", median_ms=statistics.median(times),
              p99_ms=p99(times), runs=runs)


def _stand_by(ours: Ours, adopted: Any) -> None:
    processor = ours.processor(f"p{os.getpid()}")
    while not processor.acquire():
        time.sleep(0.25)  # as the layer does
    processor.recover()
    if processor.gates.folders:
        adopted.set()
    ours.drain(processor)


# ------------------------------------------------------------------------------------------------------------ main


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="the figures of the merge queue, garrison beside its peers")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which: {','.join(ROWS)} (all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: a minute, else about seven")
    parser.add_argument("--rounds", type=int, default=1, help="drains a rate (1)")
    parser.add_argument("--rates", metavar="SHARES", help="of bad entries in the drains (0.01,0.05,0.2; quick 0,0.2)")
    parser.add_argument("--no-peers", action="store_true", help="without agcoord")
    parser.add_argument("--no-fetch", action="store_true", help="agcoord only if it is on the PATH")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    chosen = parser.parse_args()
    if unknown := set(chosen.rows.split(",")) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return chosen


def main() -> None:
    """Measure and print."""
    chosen = options()
    os.environ.update(WHO)
    rows, quick, table = chosen.rows.split(","), chosen.quick, Table(chosen.json, (10, 58))
    with table.machine(), tempfile.TemporaryDirectory(
            prefix="garrison-bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        if "candidate" in rows:
            candidate(root / "c", 20 if quick else 100, (5000,) if quick else (5000, 50_000), table)
        if "landing" in rows:
            peer = None if chosen.no_peers else lambda: Agcoord(root, fetch=not chosen.no_fetch)
            landing(root / "l", 10 if quick else 40, peer, table)
        if "drain" in rows:
            size, seconds, rates = (12, 0.4, (0.0, 0.2)) if quick else (40, 1.0, (0.01, 0.05, 0.2))
            rates = tuple(map(float, chosen.rates.split(","))) if chosen.rates else rates
            drain(root / "d", size, seconds, rates, chosen.rounds, table)
        if "flaky" in rows:
            flaky(3000 if quick else 100_000, 0.05, table)
        if "enqueue" in rows:
            enqueue(root / "e", 10 if quick else 50, table)
        if "takeover" in rows:
            takeover(root / "t", 3 if quick else 20, table)


if __name__ == "__main__":
    main()
