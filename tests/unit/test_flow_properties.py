"""Properties of every flow: random graphs with cycles, conditions, retries, gates, parallels and faults."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from flow_driver import OK, FlowRun, program_of, reloaded
from garrison.pipeline.flow import Finished, Restarted, Resumed, Visit, advance, begin, choose
from garrison.pipeline.flow.program import Program
from garrison.pipeline.outcome import FAIL, PARTIAL, RETRY, SKIPPED, STATUSES, SUCCESS, Outcome
from garrison.values import replace

SEEDS = st.integers(0, 2**40)
CONDITIONS = ["outcome=success", "outcome=fail", "outcome!=fail", "preferred_label=L1", "context.k>1", "context.k<2",
              "pass || context.k=0", "!(fail && context.k=1)"]


class Maker:
    """Writes a random graph: blocks in a row, a block being a node, a conditional or a parallel of rows."""

    def __init__(self, chance: random.Random, *, plain: bool = False) -> None:
        self.chance, self.plain = chance, plain
        self.lines: list[str] = []
        self.nodes: list[str] = []
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def maybe(self, share: float) -> bool:
        return not self.plain and self.chance.random() < share

    def node(self) -> str:
        name, attrs = self.name("n"), []
        for share, attr in [(.2, f"max_retries={self.chance.randint(1, 2)}"), (.15, "goal_gate=true"),
                            (.1, "on_error=continue"), (.1, "allow_partial=true"), (.05, "max_node_visits=3")]:
            if self.maybe(share):
                attrs.append(attr)
        if self.nodes and self.maybe(.2):
            attrs.append(f"retry_target={self.chance.choice(self.nodes)}")
        self.nodes.append(name)
        self.lines.append(f"{name} [shape={'diamond' if self.maybe(.2) else 'box'}, {', '.join(attrs)}]")
        return name

    def parallel(self, depth: int) -> tuple[str, str]:
        first, last = self.name("p"), self.name("f")
        policy = "all_success" if self.plain else self.chance.choice(
            ["wait_all", "all_success", "first_success", "quorum", "k_of_n, join_k=1"])
        more = self.chance.choice([", error_policy=fail_fast", ", error_policy=ignore"]) if self.maybe(.5) else ""
        limit = "" if self.plain else f", max_parallel={self.chance.randint(1, 3)}"
        self.lines += [f"{first} [shape=component, join_policy={policy}{more}{limit}]", f"{last} [shape=tripleoctagon]"]
        for _ in range(self.chance.randint(2, 3)):
            head, end = self.row(depth + 1, self.chance.randint(1, 2))
            self.lines += [f"{first} -> {head}", f"{end} -> {last}"]
        return first, last

    def row(self, depth: int, length: int) -> tuple[str, str]:
        """Blocks one after another; within the row edges jump back and forth."""
        names: list[str] = []
        head = end = ""
        for _ in range(length):
            one, other = self.parallel(depth) if depth < 2 and self.chance.random() < .25 else (self.node(),) * 2
            if head:
                self.edge(end, one, self.maybe(.3))
            head, end = head or one, other
            names.append(one)
        for name in names:
            if name.startswith("n") and self.maybe(.2):
                self.lines.append(f'{name} -> {name} [condition="outcome=fail", weight=1]')
            for _ in range(2):
                if name.startswith("n") and self.maybe(.3):
                    self.edge(name, self.chance.choice(names), conditional=True)
        return head, end

    def edge(self, source: str, target: str, conditional: bool) -> None:
        attrs = [f"label=L{self.chance.randint(0, 2)}"] if self.maybe(.3) else []
        if self.maybe(.2):
            attrs.append(f"weight={self.chance.randint(-1, 2)}")
        if conditional:
            attrs.append(f'condition="{self.chance.choice(CONDITIONS)}"')
            if self.maybe(.1):
                attrs.append("loop_restart=true")
        self.lines.append(f"{source} -> {target} [{', '.join(attrs)}]")

    def body(self) -> str:
        head, end = self.row(0, self.chance.randint(1, 5))
        if self.nodes and self.maybe(.5):
            self.lines.append(f"retry_target={self.chance.choice(self.nodes)}")
        return "\n".join([*self.lines, f"start -> {head}", f"{end} -> exit"])


def random_dag(chance: random.Random) -> str:
    """Some nodes, edges from earlier to later ones, conditions, retries, gates and ways back."""
    names = [f"n{number}" for number in range(chance.randint(2, 8))]
    lines = ["flow=dag"]
    for at, name in enumerate(names):
        attrs = [attr for share, attr in [
            (.3, "max_retries=1"), (.2, "goal_gate=true"), (.2, "on_error=continue"), (.2, "shape=diamond"),
            (.4, f"retry_target={chance.choice(names)}")] if chance.random() < share]
        lines.append(f"{name} [{', '.join(attrs)}]")
        for before in chance.sample(["start", *names[:at]], min(at + 1, chance.randint(1, 3))):
            with_condition = before != "start" and chance.random() < .4
            condition = f' [condition="{chance.choice(CONDITIONS)}"]' if with_condition else ""
            lines.append(f"{before} -> {name}{condition}")
    return "\n".join([*lines, *(f"{name} -> exit" for name in chance.sample(names, 2)), f"{names[-1]} -> exit"])


def random_program(seed: int) -> Program:
    if seed % 4 == 0:
        return program_of(random_dag(random.Random(seed)), max_steps=80)
    return program_of(Maker(random.Random(seed)).body(), max_steps=80)


def random_outcome(seed: int, share: float = 0) -> Callable[[Visit], Outcome]:
    """An outcome for each visit, and each failed attempt in it, that only the seed decides."""
    share = share or (.15, .4, .9)[seed % 3]

    def give(place: Visit) -> Outcome:
        chance = random.Random(f"{seed} {place.id} {place.failed}")
        faults = (FAIL, FAIL, FAIL, RETRY, PARTIAL, SKIPPED)
        status = SUCCESS if chance.random() > share else chance.choice(faults)
        return Outcome(status, chance.choice(["", "L0", "L1"]), (), {"k": chance.randint(0, 2)},
                       failure_reason=chance.choice("xxxy") if status == FAIL else "")
    return give


def pick_by(seed: int) -> Callable[[list[Visit]], Visit]:
    return lambda places: random.Random(f"{seed} {[place.id for place in places]}").choice(places)


def check(run: FlowRun) -> None:
    """Check the invariants of every state."""
    state = run.state
    assert state.ended or state.in_flight
    assert all(place.branch in state.contexts for place in state.in_flight.values())
    assert state.contexts.keys() == state.branches.keys()
    if state.status == "done":
        assert (list(state.branches), state.fans, state.in_flight, list(state.queue)) == ([""], {}, {}, [])


@settings(max_examples=60)
@given(SEEDS)
def test_every_run_ends_and_no_place_finishes_twice(seed: int) -> None:
    run = FlowRun(random_program(seed), random_outcome(seed))
    for _ in range(400):
        check(run)
        if run.state.ended:
            break
        run.finish(pick_by(seed)(sorted(run.state.in_flight.values(), key=lambda place: place.id)))
    assert run.state.ended
    finished = [step.place_id for change in run.changes for step in change.finished]
    assert len(finished) == len(set(finished))
    started = [(place.id, place.attempt) for change in run.changes for place in change.started]
    assert len(started) == len(set(started))
    assert [step.node for change in run.changes for step in change.finished] == run.state.completed


@settings(max_examples=40)
@given(SEEDS)
def test_the_same_events_give_the_same_state_reloaded_in_between_or_not(seed: int) -> None:
    run = FlowRun(random_program(seed), random_outcome(seed), seed=str(seed)).run(pick=pick_by(seed))
    chance = random.Random(seed)
    state, other = (begin(run.program, None, str(seed)) for _ in range(2))
    changes = [advance(run.program, other, event) for event in run.events]
    for event in run.events:
        if chance.random() < .5:
            loaded = reloaded(state)
            assert loaded == state
            state = loaded
        advance(run.program, state, event)
    assert state == other == run.state
    assert changes == run.changes[1:]
    assert state.to_data() == reloaded(state).to_data() == run.state.to_data()


@settings(max_examples=40)
@given(SEEDS)
def test_lost_attempts_change_only_the_number_of_attempts(seed: int) -> None:
    """A driver that dies at any point and runs what was in flight again comes to the same end."""
    calm = FlowRun(random_program(seed), random_outcome(seed)).run(pick=pick_by(seed))
    run = FlowRun(calm.program, random_outcome(seed))
    chance = random.Random(seed)
    while not run.state.ended:
        if chance.random() < .3:
            run.state = reloaded(run.state)
            for place_id in list(run.state.in_flight):
                run.apply(Restarted(place_id, "died"))
        run.finish(pick_by(seed)(sorted(run.state.in_flight.values(), key=lambda place: place.id)))
    assert run.state.completed == calm.state.completed
    assert run.state.outcomes == calm.state.outcomes
    assert (run.result, run.state.steps) == (calm.result, calm.state.steps)
    assert run.state.context() == calm.state.context()


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 30))
def test_a_run_resumed_with_more_steps_ends_as_one_with_enough(seed: int, few: int) -> None:
    text = Maker(random.Random(seed)).body()
    # One branch at a time: which finishes first must not depend on where the run was stopped.
    text = text.replace("shape=component", "shape=component, max_parallel=1")
    program = program_of(text, max_steps=80)
    enough = FlowRun(program, random_outcome(seed)).run()
    run = FlowRun(replace(program, max_steps=few), random_outcome(seed)).run()
    while run.state.reason == "max_steps_exceeded" and run.state.max_steps < 80:
        run.state = reloaded(run.state)
        run.apply(Resumed(max_steps=min(run.state.max_steps + few, 80)))
        run.run()
    assert (run.result, run.state.completed) == (enough.result, enough.state.completed)
    assert run.state.context() == enough.state.context()


@settings(max_examples=25)
@given(SEEDS, st.sampled_from(STATUSES), st.sampled_from(["", "L1", "[L] L2"]), st.integers(0, 3))
def test_routing_is_total_and_does_not_depend_on_the_order_of_the_text(seed: int, status: str, label: str,
                                                                      value: int) -> None:
    chance = random.Random(seed)
    edges = [f'n -> t{chance.randint(0, 4)} [weight={chance.randint(0, 1)}, label=L{number}'
             + (f', condition="{chance.choice(CONDITIONS)}"]' if chance.random() < .5 else "]") for number in range(5)]
    shuffled = chance.sample(edges, len(edges))
    rest = "start -> n; {t0 t1 t2 t3 t4} -> exit;"
    outcome = Outcome(status, label)
    one, other = (choose(program_of(rest + ";".join(lines)).units["n"], outcome, {"k": value})
                  for lines in (edges, shuffled))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.target == other.target


@settings(max_examples=40)
@given(SEEDS, st.booleans())
def test_a_dag_and_the_same_graph_with_parallels_agree(seed: int, faults: bool) -> None:
    body = Maker(random.Random(seed), plain=True).body()

    def give(place: Visit) -> Outcome:
        broken = faults and random.Random(f"{seed} {place.node}").random() < .15
        return Outcome(FAIL, failure_reason=f"{place.node} broke") if broken else OK

    walk = FlowRun(body.replace("join_policy", "max_parallel=9, join_policy"), give).run(pick=pick_by(seed))
    dag = FlowRun("flow=dag;" + body, give).run(pick=pick_by(seed + 1))
    assert walk.state.status == dag.state.status
    works, others = ({node: outcome for node, outcome in run.state.outcomes.items() if node.startswith("n")}
                     for run in (walk, dag))
    assert works == others


def test_random_graphs_are_not_all_alike() -> None:
    """The generator covers what the properties are about."""
    runs = [FlowRun(random_program(seed), random_outcome(seed)).run(pick=pick_by(seed)) for seed in range(80)]
    assert any(max(run.state.visits.values()) > 1 for run in runs if run.program.flow == "dag")
    reasons = {run.result.split(":")[1].strip() for run in runs if run.state.status == "failed"}
    assert {"x", "no_matching_edge", "stuck_cycle", "max_steps_exceeded", "goal_gate_unsatisfied"} <= reasons
    assert sum(run.state.status == "done" for run in runs) > 15
    assert any(run.state.restarts for run in runs)
    assert any(run.state.redirects for run in runs)
    assert any(change.cancelled for run in runs for change in run.changes)
    assert any(place.branch.count("/") == 3 for run in runs for change in run.changes for place in change.started)


def test_a_step_costs_microseconds_however_many_there_were() -> None:
    """The figure itself is benchmarks/engine.py's; here, that a step does not grow with those before it."""
    def cost(run: FlowRun, steps: int) -> float:
        began = time.process_time()
        for _ in range(steps):
            place = next(iter(run.state.in_flight.values()))
            advance(run.program, run.state, Finished(place.id, OK))
        return (time.process_time() - began) / steps

    run = FlowRun('start -> a -> b -> a; b -> exit [condition="context.enough"]', max_steps=1_000_000)
    cost(run, 100)
    early = cost(run, 1_000)
    cost(run, 8_000)
    assert cost(run, 1_000) < 20 * max(early, 1e-5)
