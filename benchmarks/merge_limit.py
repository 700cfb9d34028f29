"""How near the merge queue is to the limit of information, compared with its peers' strategies, in simulated time.

    .venv/bin/python benchmarks/merge_limit.py [--draws 400] [--gates 1,2,4,8,16] [--rates 0.5,…,30] [--flaky 0,1,5]
        [--tables limit,peers,small,nested,correlated,cost] [--processes 2] [--bits 60]

Which of n entries are bad, each with probability p, is H(p) = -p log2 p - (1-p) log2 (1-p) bits an entry, and a gate
run tells one at most: so n entries take n H(p) / k runs of time on k gates. A gate that is red on a good tree with
probability f tells only C(f) = log2(1 + (1-f) f^(f/(1-f))) bits (the capacity of a Z channel), so the limit is
n H(p) / (C(f) k). A draw is a queue with as many entries as hold `--bits` bits, all of which wait at the start.

Tables: `limit` (share of the limit that the real decision reaches, `merge_odds.Drain`), `peers` (the same for other
strategies, `merge_strategies`), `small` (queues of four, beside the best of all plans, `merge_best`), `nested` (queues
of twelve on one gate, beside the best nested plan for the same draws, which knows p and repeats red runs as the queue
does; the queue knows p, or 24 entries that were judged before, or nothing), `correlated` (entries that break each
other, and beliefs that are wrong) and `cost` (milliseconds a decision). The decision knows p and f, as it does after
some hundred judgements, and nothing else of the entries, except in `nested` and `correlated`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import merge_best
from merge_odds import Drain, World, draw
from merge_strategies import STRATEGIES

from garrison.merge.decision import Beliefs, FinishedRun, WaitingTree, decide, entropy

TABLES = ("limit", "peers", "small", "nested", "correlated", "cost")
RATES, FLAKY, GATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3), (0.0, 0.01, 0.05), (1, 2, 4, 8, 16)


def capacity(flake: float) -> float:
    """Return the bits that one run of a gate tells at most, if it is red on a good tree with that probability."""
    return math.log2(1 + (1 - flake) * flake ** (flake / (1 - flake))) if flake else 1.0


def limit(entries: int, rate: float, flake: float, gates: int) -> float:
    """Return the least average time of a drain, in gate runs."""
    return entries * entropy(rate) / capacity(flake) / gates


def queue_length(rate: float, bits: float) -> int:
    """Return how many entries contain so many bits."""
    return max(8, round(bits / entropy(rate)))


# --------------------------------------------------------------------------------------------------- share of the limit

Cell = tuple[float, float, int, int, float]
"""Rate, flake, gates, draws, bits."""


def share(cell: Cell) -> tuple[Cell, list[float], float, float]:
    """Return the share of each draw, the good ones rejected of all entries, and gate runs an entry."""
    rate, flake, gates, draws, bits = cell
    entries, shares, wrong, runs = queue_length(rate, bits), [], 0, 0
    for number in range(draws):
        world = draw(entries, rate, number, flake)
        drain = Drain(world, gates, land=0.0, dice=random.Random(number), beliefs=[rate] * entries,
                      has_history=True).drain()
        shares.append(limit(entries, rate, flake, gates) / drain.now)
        wrong += len(drain.rejected - world.bad)
        runs += drain.runs
    return cell, shares, wrong / draws / entries, runs / draws / entries


def print_limit(cells: Sequence[Cell], processes: int) -> None:
    """Print the share of the limit for each rate, flakiness and number of gates: the limit by the mean time, and p10.
    """
    print(f"{'gates':>5} {'bad':>6} {'flaky':>6} {'share: mean':>12} {'p10':>5} {'runs an entry':>14} "
          f"{'good rejected':>14}")
    with multiprocessing.Pool(processes) as pool:
        for (rate, flake, gates, _, _), shares, wrong, runs in pool.imap(share, cells):
            low = sorted(shares)[len(shares) // 10]
            mean = statistics.harmonic_mean(shares)
            print(f"{gates:5} {rate:6.1%} {flake:6.0%} {mean:12.0%} {low:5.0%} {runs:14.3f} {wrong:14.3%}", flush=True)


# ------------------------------------------------------------------------------------------------------------- peers


def print_peers(rates: Sequence[float], gates: Sequence[int], draws: int, bits: float) -> None:
    """Print the share of the limit of each peer's strategy, and the good entries that a flaky gate costs it."""
    print(f"{'strategy':28} {'gates':>5} " + " ".join(f"{rate:>7.1%}" for rate in rates) + "  good rejected, 5 % flaky")
    for name, strategy in STRATEGIES.items():
        for width in gates:
            cells, lost = [], 0.0
            for rate in rates:
                entries = queue_length(rate, bits)
                took = [strategy(draw(entries, rate, number), width, random.Random(number)).now
                        for number in range(draws)]
                cells.append(limit(entries, rate, 0.0, width) / statistics.mean(took))
            for number in range(draws):
                world = draw(200, 0.0, number, 0.05)
                lost += len(strategy(world, width, random.Random(number)).rejected) / 200 / draws
            print(f"{name:28} {width:5} " + " ".join(f"{cell:7.0%}" for cell in cells) + f"  {lost:8.2%}", flush=True)


# ------------------------------------------------------------------------------------------------------ small queues


def print_small(rates: Sequence[float]) -> None:
    """Print the average time for four entries over all sets of bad ones, next to the best plan's."""
    entries = 4
    print(f"{'gates':>5} {'bad':>6} {'ours':>6} {'best plan':>10} {'share':>6}")
    for gates in (1, 2, 4, 8, 16):
        for rate in rates:
            ours = 0.0
            for bad in range(2 ** entries):
                numbers = frozenset(number for number in range(entries) if bad >> number & 1)
                weight = rate ** len(numbers) * (1 - rate) ** (entries - len(numbers))
                drain = Drain(World(entries, numbers), gates, land=0.0, beliefs=[rate] * entries, has_history=True)
                ours += weight * drain.drain().now
            best = merge_best.least_time(entries, rate, gates)
            print(f"{gates:5} {rate:6.1%} {ours:6.2f} {best:10.2f} {best / ours:6.0%}", flush=True)


# -------------------------------------------------------------------------------------------------------- nested plan

NESTED_RATES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
NESTED_SHARE = 0.97
"""Share of the best nested plan that a queue reaches which knows how bad its entries are."""
JUDGED_BEFORE = 24


def print_nested(draws: int, processes: int) -> None:
    """Print how many times as long one by one takes, and which share of the best nested plan the queue reaches."""
    print(f"{'bad':>6} {'best plan':>10} {'rate known':>11} {'share':>6} {f'{JUDGED_BEFORE} judged':>10} {'share':>6} "
          f"{'nothing known':>14} {'share':>6}")
    with multiprocessing.Pool(processes) as pool:
        for rate, loop, best, *taken in pool.imap(nested, [(rate, draws) for rate in NESTED_RATES]):
            ways = " ".join(f"{loop / runs:{width}.2f} x {best / runs:6.1%}"
                            for width, runs in zip((9, 8, 12), taken, strict=True))
            verdict = "ok" if best / taken[0] >= NESTED_SHARE else "MISSED"
            print(f"{rate:6.1%} {loop / best:8.2f} x {ways} (bar {NESTED_SHARE:.0%}: {verdict})", flush=True)


def nested(cell: tuple[float, int]) -> tuple[float, ...]:
    """Return the rate, and the runs of all draws: one by one, of the best plan, and of the queue, by what it knows."""
    rate, draws = cell
    entries = 12
    plan = merge_best.NestedPlan(entries, rate)
    loop = best = known = told = fresh = 0
    for number in range(draws):
        world = draw(entries, rate, number)
        before = draw(JUDGED_BEFORE, rate, f"before {number}").bad
        history = [place in before for place in range(JUDGED_BEFORE)]
        loop += entries + len(world.bad)
        best += plan.count_runs(world.bad)
        known += Drain(world, beliefs=[rate] * entries).drain().runs
        told += Drain(world, judged=history).drain().runs
        fresh += Drain(world).drain().runs
    return rate, loop, best, known, told, fresh


# -------------------------------------------------------------------------------------------------------- correlated


def print_correlated(draws: int) -> None:
    """Print drains of 60 entries, 5 % bad, whose entries hang together, or of which false things are believed."""
    print(f"{'world, two gates':44} {'time':>6} {'landed':>7} {'most possible':>14}")
    for name, worlds in _worlds(draws):
        drains = [Drain(world, 2, land=0.0, dice=random.Random(number), beliefs=beliefs, has_history=True).drain()
                  for number, (world, beliefs) in enumerate(worlds)]
        most = statistics.mean(_most(world) for world, _ in worlds)
        print(f"{name:44} {statistics.mean(drain.now for drain in drains):6.1f} "
              f"{statistics.mean(len(drain.landed) for drain in drains):7.2f} {most:14.2f}", flush=True)


def _worlds(draws: int) -> Iterator[tuple[str, list[tuple[World, list[float] | None]]]]:
    entries, rate = 60, 0.05
    plain = [draw(entries, rate, number) for number in range(draws)]
    yield "independent; the rate is learned", [(world, None) for world in plain]
    yield "independent; the rate is known", [(world, [rate] * entries) for world in plain]
    yield "a good entry is red with each of ten others", [(_star(world, number), None)
                                                          for number, world in enumerate(plain)]
    yield "five pairs are red together", [(_pairs(world, number), None) for number, world in enumerate(plain)]
    yield "bad ones come ten in a row", [(_burst(world, number), None) for number, world in enumerate(plain)]
    yield "believed: bad 30 %, good 3 %", [(world, _believe(world, 0.3, 0.03)) for world in plain]
    yield "believed: bad 1 %, good 5 % (misleading)", [(world, _believe(world, 0.01, 0.05)) for world in plain]
    yield "believed: all 0.5 %", [(world, [0.005] * entries) for world in plain]
    yield "believed: all 30 %", [(world, [0.3] * entries) for world in plain]


def _believe(world: World, bad: float, good: float) -> list[float]:
    return [bad if number in world.bad else good for number in range(world.entries)]


def _star(world: World, seed: int) -> World:
    one, *others = random.Random(f"star {seed}").sample(range(world.entries), 11)
    return World(world.entries, world.bad, tuple((one, other) for other in others))


def _pairs(world: World, seed: int) -> World:
    drawn = random.Random(f"pairs {seed}").sample(range(world.entries), 10)
    return World(world.entries, world.bad, tuple(zip(drawn[::2], drawn[1::2], strict=True)))


def _burst(world: World, seed: int) -> World:
    dice = random.Random(f"burst {seed}")
    begin = dice.randrange(world.entries - 10)
    return World(world.entries, frozenset(range(begin, begin + 10)) if dice.random() < 0.3 else frozenset())


def _most(world: World) -> int:
    """Return how many entries can land: the pairs are disjoint, or all have one entry in common."""
    pairs = [pair for pair in world.pairs if not world.bad.intersection(pair)]
    common = set.intersection(*map(set, pairs)) if len(pairs) > 1 else set()
    return world.entries - len(world.bad) - (1 if common else len(pairs))


# -------------------------------------------------------------------------------------------------------------- cost


def print_cost(gates: Sequence[int]) -> None:
    """Print the processor time of one decision, with nothing known and with ten red groups."""
    print(f"{'waiting':>7} {'gates':>5} {'nothing known':>14} {'ten red groups':>15}")
    for waiting in (40, 128, 400):
        for width in gates:
            print(f"{waiting:7} {width:5} {_cost(waiting, width, 0):11.2f} ms {_cost(waiting, width, 10):12.2f} ms")


def _cost(count: int, gates: int, groups: int) -> float:
    waiting = [WaitingTree(str(number)) for number in range(count)]
    beliefs = Beliefs(dict.fromkeys((each.id for each in waiting), 0.05))
    size = min(12, count // max(1, groups))
    runs = [FinishedRun(tuple(str(number) for number in range(group * size, (group + 1) * size)), False)
            for group in range(groups)]
    took = []
    for _ in range(9):
        begun = time.process_time()
        decide(waiting, beliefs, runs, (), gates)
        took.append(time.process_time() - begun)
    return 1e3 * min(took)


# -------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description="the merge queue beside the limit of information")
    parser.add_argument("--draws", type=int, default=400, help="queues that are drawn for each figure (400)")
    parser.add_argument("--gates", default=",".join(map(str, GATES)), help="gates at a time (%(default)s)")
    parser.add_argument("--rates", default=",".join(f"{100 * rate:g}" for rate in RATES),
                        help="per cent of bad entries (%(default)s)")
    parser.add_argument("--flaky", default=",".join(f"{100 * flake:g}" for flake in FLAKY),
                        help="per cent of runs on good trees that are red (%(default)s)")
    parser.add_argument("--bits", type=float, default=60, help="bits in a queue (60)")
    parser.add_argument("--tables", default=",".join(TABLES), help="which (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="processes that compute (2)")
    chosen = parser.parse_args()
    gates = [int(word) for word in chosen.gates.split(",")]
    rates, flaky = ([float(word) / 100 for word in words.split(",")] for words in (chosen.rates, chosen.flaky))
    tables = chosen.tables.split(",")
    if unknown := set(tables) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    for table in tables:
        print(f"== {table}", flush=True)
        if table == "limit":
            print_limit([(rate, flake, width, chosen.draws, chosen.bits)
                         for flake in flaky for width in gates for rate in rates], chosen.processes)
        elif table == "peers":
            print_peers(rates, gates, chosen.draws, chosen.bits)
        elif table == "small":
            print_small([rate for rate in rates if rate >= min(0.05, max(rates))])
        elif table == "nested":
            print_nested(chosen.draws, chosen.processes)
        elif table == "correlated":
            print_correlated(chosen.draws)
        else:
            print_cost(gates)


if __name__ == "__main__":
    main()
