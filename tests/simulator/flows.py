"""Random graphs that branch, loop, run in parallel, retry and ask people; and a user who answers.

A graph is a sequence of blocks: a task (with retries), a loop with its test, parallel branches with a join, a gate with
two ways, a signal. Tasks fail as their fates say, so that loops end, are stuck, or run out of attempts.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulator.world import PERSON, PIPELINE, Fate, Journal, Run

from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.records.run import Task
from garrison.records.signals import Signal
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from tests.simulator.world import World

MAX_TASKS = 7
"""Tasks of a graph, about."""


class Graph:
    """A graph under construction."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.count = rng, 0
        self.lines, self.tasks = ["start [shape=Mdiamond]; exit [shape=Msquare];"], list[str]()
        self.retried: set[str] = set()

    def name(self, kind: str) -> str:
        """Return a new node's name."""
        self.count += 1
        return f"{kind}{self.count}"

    def task(self, attributes: str = "") -> str:
        """Add a task and return its name; the flow retries some."""
        name = self.name("t")
        self.tasks.append(name)
        options = []
        if self.rng.random() < 0.3:
            self.retried.add(name)
            options.append(f"max_retries={self.rng.randint(1, 2)}")
        if self.rng.random() < 0.1:
            options.append("on_error=continue")
        self.lines.append(f"{name} [{', '.join([attributes, *options]).strip(', ')}];")
        return name

    def edge(self, source: str, target: str, attributes: str = "") -> None:
        self.lines.append(f"{source} -> {target}" + (f" [{attributes}];" if attributes else ";"))

    def block(self, before: str, depth: int = 0) -> str:
        """Add one block after `before`; return the node at which it ends."""
        kinds = [self.plain, self.plain, self.loop, self.gate, self.signal, self.goal]
        return self.rng.choice([*kinds, self.fan, self.fan] if depth == 0 else kinds[:4])(before)

    def plain(self, before: str) -> str:
        """Add a task."""
        name = self.task()
        self.edge(before, name)
        return name

    def loop(self, before: str) -> str:
        """Add work and its test, which leads back to the work as long as it is red."""
        work, test, way, after = self.task(), self.task(), self.name("c"), self.name("c")
        self.lines += [f"{way} [shape=diamond];", f"{after} [shape=diamond];"]
        for source, target, outcome in ((before, work, ""), (work, test, ""), (test, way, ""), (way, work, "fail"),
                                        (way, after, "success")):
            self.edge(source, target, outcome and f'condition="outcome={outcome}"')
        return after

    def goal(self, before: str) -> str:
        """Add a goal that the run must have reached before it may end."""
        first = self.plain(before)
        goal, after = self.task(f"goal_gate=true, retry_target={first}"), self.name("c")
        self.lines.append(f"{after} [shape=diamond];")
        self.edge(first, goal)
        self.edge(goal, after)
        return after

    def gate(self, before: str) -> str:
        """Add a gate at which a user chooses one of two ways."""
        ask, yes, no, after = self.name("g"), self.task(), self.task(), self.name("c")
        late = ", timeout=5m, human.default_choice=Yes" if self.rng.random() < 0.3 else ""
        self.lines += [f"{ask} [shape=hexagon{late}];", f"{after} [shape=diamond];"]
        for source, target, how in ((before, ask, ""), (ask, yes, "label=Yes"), (ask, no, 'label="[N] No"'),
                                    (yes, after, ""), (no, after, "")):
            self.edge(source, target, how)
        return after

    def signal(self, before: str) -> str:
        """Add a node that waits for a signal from outside."""
        name = self.name("s")
        self.lines.append(f"{name} [type=wait.signal, signal=ready];")
        self.edge(before, name)
        return name

    def fan(self, before: str) -> str:
        """Add parallel branches and their join; now and then they share a task."""
        fan, join = self.name("p"), self.name("j")
        policy = self.rng.choice(["wait_all", "wait_all", "first_success", "k_of_n, join_k=1"])
        self.lines += [f"{fan} [shape=component, join_policy={policy}, max_parallel={self.rng.randint(1, 3)}];",
                       f"{join} [shape=tripleoctagon];"]
        self.edge(before, fan)
        shared = self.task() if self.rng.random() < 0.2 else ""
        for number in range(self.rng.randint(2, 3)):
            end = self.block(fan, 1)
            if shared and (number == 0 or self.rng.random() < 0.7):
                self.edge(end, shared)
            else:
                self.edge(end, join)
        if shared:
            self.edge(shared, join)
        return join


def make_graph(rng: random.Random) -> Graph:
    made, last = Graph(rng), "start"
    while len(made.tasks) < rng.randint(1, MAX_TASKS):
        last = made.block(last)
    made.edge(last, "exit")
    return made


def launch(world: World, run: str) -> None:
    """Add a run of such a graph."""
    rng, world.has_flows = world.rng, True
    made = make_graph(rng)
    late = random.Random(f"limit of {world.seed}, {run}")  # of its own: else every seed would play another world
    limit = f"max_pipeline_duration={late.choice([40, 120, 600])}s; " if late.random() < 0.15 else ""
    text = f"digraph {{ max_steps=60; {limit}" + " ".join(made.lines) + "}"
    plan: RunPlan = plan_run(parse(text))
    fates, tasks = {}, {}
    for name in made.tasks:
        fates[name] = fate = _fate(rng)
        tasks[name] = Task(run, name, 1, setup="s" if fate.kind == "setup" or rng.random() < 0.1 else None,
                           acceptance="a" if fate.kind == "acceptance" or rng.random() < 0.2 else None,
                           allow_empty=fate.units % 2 == 0, rework=rng.choice(["fresh", "fresh", "merge"]))
    world.note(text)
    world.runs[run] = Run(run, plan, fates, tasks, rng.randint(1, 3), Journal(run), rng.choice([0, 1, 2]))


def _fate(rng: random.Random) -> Fate:
    kind = rng.choice(("fail", "fail", "fail", "nothing", "acceptance", "conflict", "gate")) if rng.random() < 0.35 \
        else "success"
    return Fate(kind, rng.randint(0, 3), rng.choice([1, 2, 7]) if rng.random() < 0.08 else 0,
                rng.choice([1, 1, 2, 3, 10**6]), 300.0 if rng.random() < 0.08 else 3.0, rng.random() < 0.1)


def is_out_of_time(world: World, run: str) -> bool:
    """Return whether the time limit of its graph stopped a run; resuming it would only stop it again."""
    state, limit = world.check.shadows[run], world.runs[run].plan.max_seconds
    return state.status == "stopped" and limit is not None and bool(state.began) \
        and world.wall - from_iso(state.began) > limit


def answer(world: World, run: str) -> None:
    """Answer one of a run's gates, not always with a choice that it has, or give the signal that it waits for."""
    open_ = list(world.check.shadows[run].waits.values())
    if not open_:
        return
    gate = world.rng.choice(open_)
    place = gate.place if world.rng.random() < 0.9 else "elsewhere#1"
    if gate.kind == "signal":
        tell(world, run, "GUIDANCE", None, {"action": "signal", "name": gate.signal, "value": 1})
        return
    text = world.rng.choice(["Yes", "no", "n", "Perhaps", ""])
    tell(world, run, "INPUT_RESPONSE", gate.node, {"question_id": place, "text": text})


def answer_agents(world: World, run: str) -> None:
    """Answer all questions of a run's agents that its guardian has recorded."""
    for node, question in world.check.shadows[run].questions.items():
        tell(world, run, "INPUT_RESPONSE", node, {"question_id": question.id, "text": "yes"})


def tell(world: World, run: str, kind: str, node: str | None, payload: dict[str, object]) -> None:
    """Send a run's guardian a user's signal."""
    world.post(Signal(world.fresh(), PERSON, {"role": "guardian", "name": PIPELINE}, kind, run, world.now, node, 0,
                      payload))
