"""Strategies of other merge queues as published, in simulated time: a gate run takes one unit, landing nothing.

- One by one: merge, test, land or reject (a plain loop).
- bors: the batch of all that wait is tested; if it is red, it is split in two, each of which waits as a batch again; a
  batch of one that is red is rejected. One batch at a time. Source: README of bors-ng, "How it works", and its manual,
  https://bors.tech/documentation/: batches, bisected on failure. `fixed batches` limits them to eight, as
  `max_batch_size` does.
- Zuul, dependent pipeline: each change is tested on all those ahead of it, as if they passed. If one fails, those
  behind it are tested again without it. The window starts with 20 changes, grows by one with each that lands and halves
  with each that fails, down to three. Source: https://zuul-ci.org/docs/zuul/latest/gating.html and `window` in
  https://zuul-ci.org/docs/zuul/latest/config/pipeline.html.
- GitHub, grouped queue: each pull request gets a group of its own, which holds those ahead, too; `build concurrency` of
  them are tested at a time; a failing one is removed, and the groups behind it are built again. Source:
  https://docs.github.com/repositories/configuring-branches-and-merges-in-your-repository/configuring-pull-request-merges/managing-a-merge-queue.
  Its concurrency is the number of gates here, and all checks take equally long.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from merge_odds import World

ZUUL_WINDOW, ZUUL_FLOOR = 20, 3
FIXED_BATCH = 8


@dataclass
class Outcome:
    """End of a drain: time in gate runs, and who was rejected."""

    now: float = 0.0
    tree: int = 0
    """What has landed, one bit for each."""
    rejected: set[int] = field(default_factory=set)


def bors(largest: int | None = None) -> Callable[[World, int, random.Random], Outcome]:
    """Return the strategy with batches of at most `largest` entries (None: all that wait)."""
    def drain(world: World, _gates: int, dice: random.Random) -> Outcome:
        done, size = Outcome(), largest or world.entries
        batches = [list(range(world.entries))[start:start + size] for start in range(0, world.entries, size)]
        while batches:
            batch = batches.pop(0)
            done.now += 1
            tree = reduce(or_, (1 << number for number in batch), done.tree)
            if _is_green(world, tree, dice):
                done.tree = tree
            elif len(batch) == 1:
                done.rejected.add(batch[0])
            else:
                batches[:0] = [batch[:len(batch) // 2], batch[len(batch) // 2:]]
        return done

    return drain


def pipeline(window: int | None) -> Callable[[World, int, random.Random], Outcome]:
    """Return the optimistic strategy: a window that grows and halves, or (None) all gates always."""
    def drain(world: World, gates: int, dice: random.Random) -> Outcome:
        done, waiting, width = Outcome(), list(range(world.entries)), window or gates
        while waiting:
            done.now += 1
            tree = done.tree
            for number in waiting[:min(gates, width)]:
                tree |= 1 << number
                waiting.remove(number)
                if not _is_green(world, tree, dice):  # those behind it were tested with it
                    done.rejected.add(number)
                    width = max(ZUUL_FLOOR, width // 2) if window else gates
                    break
                done.tree = tree
                width = width + 1 if window else gates
        return done

    return drain


def _is_green(world: World, tree: int, dice: random.Random) -> bool:
    return world.is_good(tree) and dice.random() >= world.flake


STRATEGIES = {"one by one": bors(1), "bors, all that wait": bors(), f"fixed batches of {FIXED_BATCH}, bisected":
              bors(FIXED_BATCH), "Zuul, optimistic pipeline": pipeline(ZUUL_WINDOW),
              "GitHub, grouped queue": pipeline(None)}
"""Name → strategy; those of one batch at a time use one gate of however many there are."""
