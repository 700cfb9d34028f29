"""One seed: make a world, disturb it, let it calm down, and check that everything has ended as it should."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulator import chaos, flows
from tests.simulator.chaos import Chaos
from tests.simulator.violation import Violation
from tests.simulator.world import Fate, Journal, Run, World

from garrison.merge.records import QueueResumed, StatusChanged
from garrison.node.policy import CANCELLED
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.records.run import Task

NODES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
KINDS = ("fail", "setup", "nothing", "acceptance", "conflict", "gate")
DISTURBED = 4000
"""Steps of the disturbances, at most."""
CALM = 12000
"""Steps within which a run must end once nothing disturbs it, if its agents are quick."""
ROUNDS = 4
"""Factor of that for a graph with loops, whose nodes have as many more attempts."""
SLOW = 100.0
"""Seconds a unit of work for which a run gets as many steps again: its processes observe all the while."""


@dataclass(frozen=True)
class Outcome:
    """How a seed ended."""

    seed: int
    steps: int
    statuses: tuple[str, ...]


class Failed(Exception):
    """A seed that broke a rule, with its trace where one was asked for."""

    def __init__(self, seed: int, why: str, trace: list[str] | None) -> None:
        super().__init__(f"seed {seed}: {why}")
        self.seed, self.why, self.trace = seed, why, trace or []


def simulate(seed: int, *, tracing: bool = False, flows: bool = False) -> Outcome:
    """Run one seed to its end; Failed if a rule was broken or it got stuck. `flows`: graphs that branch and loop."""
    world = World(seed, tracing=tracing)
    try:
        return _simulate(world, seed, walks=flows)
    except Failed:
        raise
    except Violation as error:
        raise Failed(seed, str(error), world.trace) from error
    except Exception as error:  # an error that a broken rule leads to is that seed's finding, too
        raise Failed(seed, f"{type(error).__name__}: {error}", world.trace) from error


def _simulate(world: World, seed: int, *, walks: bool) -> Outcome:
    rng = world.rng
    for number in range(1 if rng.random() < 0.8 else 2):
        _walk(world, f"run-{number + 1}") if walks else _launch(world, rng, f"run-{number + 1}")
    for run in world.runs.values():
        run.lands = seed % 3 == 2
    disturb = Chaos(world, rng.choice([0, 1, 2, 3, 5, 8, 13]), rng.choice([8, 25, 60, 120]))
    steps = 0
    while steps < DISTURBED and (disturb.left or disturb.hunted or disturb.scripts):
        if not world.tick() and not (disturb.scripts and disturb.revive()):
            break
        disturb.between()
        world.target.step()
        steps += 1
    steps += _calm(world)
    for run in world.runs.values():
        world.check.final(run)
    return Outcome(seed, steps, tuple(world.status(run) for run in world.runs))


def _launch(world: World, rng: random.Random, run: str) -> None:
    names = NODES[: rng.randint(1, len(NODES))]
    predecessors: dict[str, tuple[str, ...]] = {"start": (), "exit": names}
    fates, tasks, initial = {}, {}, {}
    for place, name in enumerate(names):
        before = tuple(other for other in names[:place] if rng.random() < 0.35)
        predecessors[name] = before or ("start",)
        fates[name] = fate = _fate(rng)
        skip = rng.random() < 0.03
        tasks[name] = Task(run, name, 1, setup="s" if fate.kind == "setup" or rng.random() < 0.2 else None,
                           acceptance="a" if skip or fate.kind == "acceptance" or rng.random() < 0.3 else None,
                           skip_agent=skip, allow_empty=skip or fate.units % 2 == 0,
                           rework=rng.choice(["fresh", "fresh", "merge"]))
        if skip:
            initial[name] = "impl_complete"
            fates[name] = Fate("success" if fate.kind == "fail" else fate.kind, until=fate.until)
        elif rng.random() < 0.02:
            initial[name] = rng.choice(["validated", "failed"])
    plan = _dag(names, predecessors, initial)
    world.runs[run] = Run(run, plan, fates, tasks, rng.randint(1, 3), Journal(run), rng.choice([0, 1, 2, 2]))
    world.check.replay()
    chaos.start(world, run, resume=False)


def _walk(world: World, run: str) -> None:
    flows.launch(world, run)
    world.check.replay()
    chaos.start(world, run, resume=False)


def _dag(names: tuple[str, ...], predecessors: dict[str, tuple[str, ...]], initial: dict[str, str]) -> RunPlan:
    nodes = [f"{name} [status={initial.get(name, 'pending')}]" for name in names]
    edges = [f"{before} -> {name}" for name, all_ in predecessors.items() for before in all_]
    return plan_run(parse("digraph { flow=dag start [shape=Mdiamond] exit [shape=Msquare] " + "; ".join(
        [*nodes, *edges]) + "}"))


def _fate(rng: random.Random) -> Fate:
    kind = rng.choice(KINDS) if rng.random() < 0.2 else "success"
    crashes = rng.choice([1, 2, 3, 6, 7, 8, 10**6]) if rng.random() < 0.1 else 0
    pace = rng.choice([300.0, 1500.0]) if rng.random() < 0.08 else 3.0
    return Fate(kind, rng.randint(0, 3), crashes, rng.choice([1, 1, 2, 10**6]), pace, rng.random() < 0.1)


def _calm(world: World) -> int:
    """Let the runs end undisturbed; return the steps. What was stopped continues, a timer keeps the launchers alive."""
    for proc in world.procs.values():
        if proc.stopped_until < 1e11 and proc.kind != "decoy":  # what waits for ever still does
            proc.stopped_until = min(proc.stopped_until, world.t + 1.0)
            proc.ready_at = min(proc.ready_at, proc.stopped_until) if proc.quiet_since is not None else proc.ready_at
    world.note("=== calm")
    next_check = world.t
    slow = sum(fate.pace // SLOW for run in world.runs.values() for fate in run.fates.values())
    limit = int(CALM * (1 + slow) * (ROUNDS if world.has_flows else 1))
    for steps in range(limit):
        if not world.busy() or world.t >= next_check:  # the timer fires once a minute
            next_check = world.t + 60.0
            world.liveness.check(world.t)
            if not _attend(world) and not world.busy():
                return steps
        world.tick()
        world.target.step()
    left = ", ".join(proc.name for proc in world.procs.values())
    statuses = "; ".join(f"{run} is {world.status(run)} {world.check.shadows[run].statuses}" for run in world.runs)
    raise Violation(f"stuck after {limit} calm steps: {statuses}; left are {left}")


def _attend(world: World) -> bool:
    """Start what a timer and a user would; return False if everything has ended."""
    is_unfinished = False
    _attend_queue(world)
    for run in world.runs.values():
        status = world.status(run.id)
        if status == "failed" and run.retries < 1 and not world.check.shadows[run.id].over and not world.busy():
            run.retries += 1  # a user fixes why its nodes were parked, once
            chaos.start(world, run.id, resume=True)
            is_unfinished = True
            continue
        if status == "failed" and not run.again and not world.busy() and any(
                node.kind == CANCELLED for node in world.check.shadows[run.id].nodes.values()):
            run.again = True  # a user wants what was cancelled after all
            chaos.start(world, run.id, resume=True, again=True)
            is_unfinished = True
            continue
        if (status in ("done", "failed") or flows.is_out_of_time(world, run.id)) and not world.busy():
            continue
        is_unfinished = True  # also with a parked guardian: a user fixes the cause, and resumes
        flows.answer(world, run.id)
        flows.answer_agents(world, run.id)
        for who in world.check.shadows[run.id].held:
            chaos.guide(world, run.id, "unpark", who)
        if not world.has_launcher(run.id) and status not in ("done", "failed"):
            run.resumes += 1
            chaos.start(world, run.id, resume=True)
        elif any(proc.stopped_until > 1e11 for proc in world.procs.values() if proc.kind == "supervised"):
            chaos.start(world, run.id, resume=False)
    return is_unfinished


def _attend_queue(world: World) -> None:
    """Do what a user does: repair a target that made the queue pause, resume a queue that does not resume by itself,
    and release what is held."""
    if world.queue.pause and world.history[-1] in world.broken:
        world.history.append("repaired")
    elif world.queue.pause and not world.queue.pause.retry_after and world.queue_lock is None:
        world.append_merge(world.person(next(iter(world.runs))), QueueResumed("a user looked"))
        world.sync_merge()
    for entry in [entry for entry in world.queue.entries.values() if entry.status == "held"]:
        if world.queue_lock is None:
            world.append_merge(world.person(next(iter(world.runs))), StatusChanged((entry.id,), "queued"))
            world.sync_merge()
