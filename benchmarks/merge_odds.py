"""Average time of a drain: many draws of bad entries, judged by the real decisions in simulated time.

No git and no clock. A gate run takes `run` seconds whatever else runs, a landing `land`; which
prefixes are tested, what lands and what is rejected is decided by the queue's own pure functions. One draw of a few bad
entries says little about their rate: with 1 % of 40, two thirds of the draws have none and the others 2.5 % or more.
"""

from __future__ import annotations

import random

from garrison.merge import batch
from garrison.merge.verdicts import VerdictCache


def drained(entries: int, bad: set[int], width: int, run: float = 1.0, land: float = 0.06) -> float:
    """Seconds until the last entry is judged, `width` gates at a time; exactly the bad ones are rejected."""
    verdicts, now, seq = VerdictCache(), 0.0, 0
    waiting, rejected = list(range(entries)), set[int]()
    line: list[int] = []
    landed: tuple[int, ...] = ()
    running: dict[str, tuple[float, list[int]]] = {}
    verdicts.green[_tree(landed), "k"] = None
    while waiting or line:
        if not line:
            count = batch.choose_batch_size(verdicts.rejections, len(waiting), [run] if seq else [], width=width)
            line, waiting = waiting[:count], waiting[count:]
            verdicts.forget_base()
        trees = [_tree((*landed, *line[:index])) for index in range(len(line) + 1)]
        names = [str(number) for number in line]
        evidence = verdicts.evidence("k", set(running))
        red = batch.shortest_red(trees, evidence)
        if 0 < red < len(line):
            waiting[:0], line = line[red:], line[:red]
            continue
        step, seq = batch.decide_next(names, trees, evidence, width=width), seq + 1
        if isinstance(step, batch.RunGates):
            wanted = {trees[count] for count in step.wanted}
            running = {tree: one for tree, one in running.items() if tree in wanted}
            running |= {trees[count]: (now + run, line[:count]) for count in step.start}
            tree, (now, tested) = min(running.items(), key=lambda one: one[1])
            del running[tree]
            verdicts.record(tree, "k", "red" if bad.intersection(tested) else "green", tuple(map(str, tested)), seq)
            continue
        assert not isinstance(step, batch.PauseQueue), "a base that passes is no reason to pause"
        count = step.count if isinstance(step, batch.Land) else 1
        if isinstance(step, batch.Land):
            landed, now = (*landed, *line[:count]), now + land
        else:
            rejected.add(line[0])
        line = line[count:]
        for _ in range(count):
            verdicts.record_judgement(rejected=isinstance(step, batch.Reject))
        verdicts.forget_base()
    assert rejected == bad, "judged wrongly"
    return now


def ratio(entries: int, rate: float, width: int, draws: int, run: float = 1.0, merge: float = 0.03) -> float:
    """Return how many times as long the one-by-one loop takes for the same draws; `merge`: its own seconds an entry."""
    ours = 0.0
    for draw in range(draws):
        dice = random.Random(f"{rate} {draw}")
        ours += drained(entries, {number for number in range(entries) if dice.random() < rate}, width, run)
    return draws * entries * (run + merge) / ours


def _tree(landed: tuple[int, ...]) -> str:
    """Return a name for the tree that holds these."""
    return ",".join(map(str, landed))
