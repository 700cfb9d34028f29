"""The flow and the nodes of a run are reconciled, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.errors import GarrisonError
from garrison.pipeline.fidelity import Carryover
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import RunPlan, plan_run
from garrison.pipeline.questions import OpenWait
from garrison.processes.actions import Action, ActionKind, ApplySignal
from garrison.records.events import Event, FlowAdvanced, GuardianSignal, NodeCancelled, encode
from garrison.records.identity import Identity
from garrison.records.journal import Entry
from garrison.records.run import Launch, Result
from garrison.records.signals import Payload, PostedSignal, ResumeRun, SendPipelineSignal, SetBudget, Signal
from garrison.run import flow_policy, guardian_policy
from garrison.run.flow import RunFlow
from garrison.run.guardian_view import GuardianView
from garrison.run.plan import build_task
from garrison.run.state import NodeOutcome, RunState, replay_run, to_snapshot
from garrison.supervise.decisions import ChildState
from garrison.supervise.restart import Policy
from garrison.supervise.verdict import Verdict
from garrison.system.clock import from_iso, iso
from garrison.values import replace

AT = "2026-01-31T12:00:00.000001Z"
WALL = from_iso(AT)
RUN = "r1"
LAUNCH = Launch(RUN, "p", "repo", "main", AT, "trees")
ENDS = "start [shape=Mdiamond] exit [shape=Msquare]"



def plan_of(body: str, **options: Any) -> RunPlan:
    return plan_run(parse(f"digraph {{ {ENDS} {body} }}"), **options)


LOOP = plan_of("""way [shape=diamond] start -> work -> test -> way; way -> work [condition="outcome=fail"]
    way -> exit [condition="outcome=success"]""")
ASK = plan_of("""ask [shape=hexagon, label="Ship it?", timeout=1h, human.default_choice=Yes]
    hear [type=wait.signal, signal=ready] start -> ask; ask -> hear [label="[Y] Yes"]; ask -> no [label="[N] No"]
    hear -> exit; no -> exit""")
RACE = plan_of("""fan [shape=component, join_policy=first_success] join [shape=tripleoctagon]
    start -> fan -> {a b} -> join -> exit""")
RETRY = plan_of("a [max_retries=2] start -> a -> exit")


class Story:
    """A run, written record by record."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.count, self.wall = plan, 0, WALL
        self.state = RunState(flow=RunFlow(plan.program, RUN, plan.children))
        self.entries: list[Entry] = []
        for name in plan.tasks:
            self.tell("node", {"node": name, "status": "pending", "attempt": 1})
        self.tell("run", {"status": "running"})

    def tell(self, kind: str, data: dict[str, Any]) -> Story:
        self.count += 1
        self.entries.append(Entry(self.count, 1, "t", iso(self.wall), kind, data))
        self.state.apply(self.entries[-1])
        return self

    def record(self, event: Event) -> Story:
        return self.tell(event.kind, encode(event))

    def node(self, name: str, *statuses: str, **more: Any) -> Story:
        for status in statuses:
            self.tell("node", {"node": name, "status": status, "attempt": self.state.nodes[name].attempt, **more})
        return self

    def view(self, **seen: Any) -> GuardianView:
        return GuardianView(RUN, 5000.0, "b1", wall=self.wall, **seen)

    def decide(self, **seen: Any) -> list[Action]:
        """Return the actions of the guardian."""
        return guardian_policy.decide(self.plan, self.state, self.view(**seen), 2, Policy()).actions

    def guide(self, guidance: Payload) -> GuardianSignal:
        """Return the record of a request of the user."""
        return guardian_policy.apply_guidance(self.state, self.view(), guidance, GUIDANCE)

    def resume(self, **options: Any) -> Story:
        """Apply the request to resume the run, and record what follows for its flow."""
        return self.record(replace(GUIDANCE, flow=self.guide(ResumeRun(**options)).flow))

    def act(self, **seen: Any) -> Action | None:
        """Return the next step that reconciles flow and nodes."""
        return next(iter(flow_policy.reconcile(self.plan, self.state, self.view(**seen))), None)

    def settle(self, **seen: Any) -> Story:
        """Reconcile flow and nodes."""
        while act := self.act(**seen):
            self.record(NodeCancelled(act.target) if act.kind is ActionKind.CANCEL_NODE else act.payload)
        return self

    def start(self) -> list[str]:
        """Activate all nodes that may start; return their names."""
        names = flow_policy.startable(self.plan, self.state, self.view())
        for name in names:
            self.record(flow_policy.node_activation(self.state, name, self.plan.tasks[name].kind))
        return names

    def land(self, name: str) -> Story:
        return self.node(name, "impl_complete", "validated").settle()

    def fail(self, name: str, reason: str = "red", **seen: Any) -> Story:
        return self.node(name, "failed", reason=reason).settle(**seen)


GUIDANCE = GuardianSignal("s2", "GUIDANCE")


def body(action: Action | None) -> dict[str, Any]:
    """Return the flow event that an action journals."""
    assert action is not None
    return action.expect(FlowAdvanced).body


def gone(name: str, reason: str = "done", status: str = "terminated") -> dict[str, ChildState]:
    identity = Identity("i", "runner", name, RUN, AT, status=status, metadata={"reason": reason})
    return {name: ChildState(identity, Verdict("ended" if status != "active" else "alive", "seen"))}


def test_a_loop_restarts_a_landed_node_with_the_reason() -> None:
    story = Story(LOOP)
    assert story.start() == ["work"]
    assert story.land("work").start() == ["test"]
    story.fail("test", "exit code 1: two tests")
    again = story.state.nodes["work"]
    assert (again.status, again.attempt, again.step, again.first) == ("pending", 2, "work#2:1", 2)
    assert "test" in again.reason and "two tests" in again.reason
    assert story.start() == ["work"]
    assert story.land("work").start() == ["test"]
    assert story.state.nodes["test"].attempt == 2
    assert story.land("test").state.flow.over == "done"
    assert story.decide() == [Action(ActionKind.CHANGE_RUN, "done")]
    assert story.state.outcomes["test"] == NodeOutcome("success", place="test#2", ends=2)


@pytest.mark.parametrize(("runner", "waits"), [
    (gone("work", status="active"), True), (gone("work", "orphaned"), True), (gone("work"), False), ({}, False)])
def test_a_node_does_not_start_again_before_its_worktree_is_gone(runner: dict[str, ChildState], waits: bool) -> None:
    story = Story(LOOP)
    story.start()
    story.land("work").start()
    story.node("test", "failed", reason="red").settle(runners=runner)
    assert story.state.nodes["work"].status == ("validated" if waits else "pending")


def test_a_retry_waits_for_its_delay_and_gets_the_reason() -> None:
    story = Story(RETRY)
    story.start()
    story.fail("a", "no network")
    node = story.state.nodes["a"]
    assert (node.status, node.attempt, node.step, node.reason) == ("pending", 2, "a#1:2", "no network")
    assert story.start() == []
    due = flow_policy.wake_at(RETRY, story.state, story.view())
    assert due is not None and 5000.1 <= due <= 5000.3
    story.wall += 0.3
    assert story.start() == ["a"]
    context = flow_policy.task_context(story.state, "a", "codergen")[0]
    assert context["internal.retry_count.a"] == 1


@pytest.mark.parametrize(("kind", "said", "again"), [
    ("", {}, True), (flow_policy.RESTARTS_EXHAUSTED, {}, False), ("", {"failure_class": "deterministic"}, False),
    ("gate", {"status": "retry"}, True)])
def test_a_failure_that_a_retry_cannot_fix_is_not_retried(kind: str, said: dict[str, Any], again: bool) -> None:
    story = Story(RETRY)
    story.start()
    story.node("a", "failed", reason="red", kind=kind)
    story.settle(results={"a": Result(RUN, "a", 1, 1, "fail", AT, said=said)})
    assert (story.state.flow.over == "") is again


def test_an_agents_result_reaches_the_flow() -> None:
    story = Story(LOOP)
    story.start()
    said = {"status": "partial_success", "preferred_label": "x", "context_updates": {"k": 1}, "notes": "n"}
    act = story.node("work", "impl_complete", "validated").act(
        results={"work": Result(RUN, "work", 1, 1, "success", AT, said=said)})
    assert act is not None and body(act)["outcome"] == {
        "status": "partial_success", "preferred_label": "x", "context_updates": {
            "last_stage": "work", "last_response": "n", "k": 1}, "notes": "n"}
    lied = flow_policy.task_outcome("codergen", replace(story.state.nodes["work"], status="failed", reason="red"),
                                  Result(RUN, "work", 1, 1, "success", AT, said={"status": "success"}))
    assert lied.status == "fail" and lied.failure_reason == "red"


THREAD = plan_of("""goal=Greet; talk [thread_id=t, prompt=P]; plain [prompt=P]; on [fidelity=full, prompt=P]
    again [fidelity=full, thread_id=t, prompt=P] start -> talk -> plain -> on -> again -> exit""")


def test_a_session_continues_in_its_thread_or_from_the_node_before_and_others_get_a_summary() -> None:
    """The runner's task has the session to continue, or the preamble of the fidelity."""
    story = Story(THREAD)
    told = {}
    for name in THREAD.tasks:
        story.start()
        context, carried = flow_policy.task_context(story.state, name, "codergen")
        task = build_task(THREAD.tasks[name], LAUNCH, THREAD, story.state.nodes[name], context, carried)
        told[name] = (task.continues, task.preamble)
        story.node(name, "impl_complete", "validated").settle(
            results={name: Result(RUN, name, 1, 1, "success", AT, tail="it works", session=f"s-{name}")})
    assert told["talk"] == ("", "")
    assert told["plain"][0] == "" and told["plain"][1].startswith("Done so far:\n- talk: success")
    assert [told[name][0] for name in ("on", "again")] == ["s-plain", "s-talk"]
    assert "- plain: success" in told["on"][1] and "last_response: it works" in told["on"][1]
    assert "Greet" not in "".join(words for _, words in told.values()), "every prompt has the goal anyway"
    assert story.state.flow.over == "done"


def test_a_retry_continues_from_the_same_session_as_the_first_attempt_and_a_tool_gets_no_context() -> None:
    story = Story(plan_of("node [fidelity=full]; a; b [max_retries=1] start -> a -> b -> exit"))
    story.start()
    story.node("a", "impl_complete", "validated").settle(
        results={"a": Result(RUN, "a", 1, 1, "success", AT, session="s-a")})
    story.start()
    story.fail("b", results={"b": Result(RUN, "b", 1, 1, "fail", AT, session="s-b")})
    assert story.state.nodes["b"].attempt == 2
    assert flow_policy.task_context(story.state, "b", "codergen")[1].session == "s-a"
    assert flow_policy.task_context(story.state, "b", "tool")[1] == Carryover()


def test_the_loser_of_a_race_is_cancelled_once_and_what_waits_to_land_lands() -> None:
    story = Story(RACE)
    assert story.start() == ["a", "b"]
    story.node("a", "impl_complete", "validated")
    assert [story.act().kind] == ["flow"]
    story.record(story.act().payload)
    assert (story.act().kind, story.act().target) == ("cancel", "b")
    story.settle()
    assert story.state.cancelled == {"b"} and story.act() is None
    assert story.decide(runners=gone("b", status="active")) == []
    story.node("b", "failed", reason="cancelled", kind="cancelled")
    assert story.state.cancelled == set()
    assert story.decide() == [Action(ActionKind.CHANGE_RUN, "done")]


# ---- gates


def asked() -> Story:
    return Story(ASK).settle()


def answer(story: Story, text: str, place: str = "ask#1", node: str = "ask") -> Action:
    sent = Signal("s1", {"role": "launch", "name": "launch"}, {"role": "guardian", "name": "p"}, "INPUT_RESPONSE", RUN,
                  AT, node, 0, {"question_id": place, "text": text})
    return story.decide(inbox=[PostedSignal("s1.json", sent)])[0]  # type: ignore[arg-type]


def test_a_gate_is_journaled_waits_and_survives_a_snapshot() -> None:
    story = asked()
    gate = story.state.waits["ask#1"]
    assert (gate.question.text, gate.deadline, gate.question.default) == ("Ship it?", iso(WALL + 3600), "Yes")
    assert story.act() is None
    assert story.decide() == []
    assert gate.summary().startswith("asks you: Ship it? (garrison answer ask LABEL, one of [Y] Yes, [N] No)")
    assert replay_run(story.entries).waits == story.state.waits, "the same without the graph"
    copy = RunState(flow=RunFlow(ASK.program, RUN)).apply(Entry(1, 1, "t", AT, "snapshot", to_snapshot(story.state)))
    assert to_snapshot(copy) == to_snapshot(story.state) and copy == story.state
    assert to_snapshot(replay_run(story.entries, ASK.program, RUN)) == to_snapshot(story.state)


@pytest.mark.parametrize(("text", "to"), [("Yes", "hear"), ("y", "hear"), ("no", "no"), ("[N] No", "no")])
def test_an_answer_leads_on(text: str, to: str) -> None:
    story = asked()
    act = answer(story, text)
    assert act.kind == "take"
    story.record(act.expect(ApplySignal).event)
    assert [place.node for place in story.state.flow.places.values()] == [to]
    assert "ask#1" not in story.state.waits
    late = answer(story, "Yes")
    assert (late.kind, late.why) == ("take", "")  # the same signal again is recognized


def test_an_invalid_answer_is_refused_with_the_options() -> None:
    assert answer(asked(), "Perhaps").why == "'Perhaps' is none of the options of ask; answer [Y] Yes, [N] No"
    assert "is not waiting for an answer" in answer(asked(), "Yes", "ask#2").why
    assert "waits for the signal" in replace(asked().state.waits["ask#1"], kind="signal", signal="x").rejection("y")


def test_a_gate_without_options_fails_at_once() -> None:
    story = Story(plan_of("flow=walk; a [shape=hexagon, retry_target=b] b start -> a; b -> exit")).settle()
    assert story.state.outcomes["a"].reason == "a has no edges to choose from; add some"
    assert story.start() == ["b"]


def test_a_timeout_and_auto_approval_answer_for_the_user() -> None:
    story = asked()
    assert flow_policy.wake_at(ASK, story.state, story.view()) == 5000 + 3600
    assert body(story.act(auto_approve=True))["outcome"]["context_updates"]["human.gate.label"] == "Yes"
    story.wall += 3600
    assert body(story.act())["outcome"]["context_updates"]["human.gate.selected"] == "Y"
    gate = story.state.waits["ask#1"]

    def with_default(default: str) -> OpenWait:
        return replace(gate, question=replace(gate.question, default=default))

    assert with_default("").timed_out().status == "retry"
    assert with_default("Maybe").timed_out().failure_class == "deterministic"
    assert with_default("").auto_approved().preferred_label == "Yes"


def test_only_the_user_answers_with_an_irreversible_option() -> None:
    story = Story(plan_of("""ask [shape=hexagon, timeout=1h, human.default_choice=Yes] no; no -> exit
        start -> ask; ask -> exit [label="[Y] Yes", irreversible=true]; ask -> no [label="[N] No"]""")).settle()
    gate = story.state.waits["ask#1"]
    assert gate.summary().endswith("UTC: asked again")
    assert story.act(auto_approve=True) is None, "it waits for the user"
    assert gate.timed_out().failure_reason == "ask was not answered in time, and its default Yes cannot be undone"
    assert gate.auto_approved() is None
    assert replace(gate, question=replace(gate.question, default="No")).auto_approved().status == "success"


def test_a_signal_is_kept_for_the_first_node_that_waits_for_it() -> None:
    story = asked()
    story.record(story.guide(SendPipelineSignal("ready", 7)))
    story.record(answer(story, "Yes").expect(ApplySignal).event).settle()
    assert story.state.flow.over == "done" and story.state.heard == {"ready": []}
    assert story.state.flow.state.context()["signal.ready"] == 7


# ---- budgets


def test_a_flow_without_steps_left_stops_its_run_which_continues_with_more() -> None:
    plan = plan_of("start -> a -> b -> exit", max_steps=2)
    story = Story(plan)
    story.start()
    story.land("a")
    (act,) = story.decide()
    assert (act.kind, act.target) == ("stop_run", "") and "max_steps" in act.why
    story.tell("run", {"status": "stopped"})
    story.record(story.guide(SetBudget(9)))
    assert story.guide(ResumeRun()).flow == FlowAdvanced({"event": "resumed", "max_steps": 9})
    story.resume()
    story.tell("run", {"status": "running"})
    assert story.start() == ["b"]


def test_a_run_that_failed_at_a_node_is_resumed_there_only_on_request() -> None:
    story = Story(plan_of("start -> a -> b -> exit"))
    story.start()
    story.fail("a", "red").tell("run", {"status": "failed"})
    assert story.state.over
    assert story.guide(ResumeRun()).flow is None
    assert story.guide(ResumeRun(retry_failed=True)).flow == FlowAdvanced({"event": "resumed", "again": True})
    story.resume(retry_failed=True)
    assert story.state.status == "running", "a guardian that dies now has no run that is over"
    story.settle()
    node = story.state.nodes["a"]
    assert (node.status, node.attempt, node.step, node.reason) == ("pending", 2, "a#2:1", "red")
    assert story.start() == ["a"]
    assert story.land("a").start() == ["b"]
    assert story.guide(ResumeRun(retry_failed=True)).flow is None


TWO_FAIL = "flow=dag; start -> a -> c -> exit; start -> b -> exit; start -> d -> exit"


def test_a_failed_node_is_retried_while_its_run_continues() -> None:
    story = Story(plan_of(TWO_FAIL))
    story.start()
    story.fail("a", "red").fail("b", "red")
    assert flow_policy.retry_node(story.state, RUN, "d")[1] == "it has not failed: it is active"
    flow, objection = flow_policy.retry_node(story.state, RUN, "a")
    assert (flow, objection) == (FlowAdvanced({"event": "resumed", "again": True, "nodes": ["a"]}), "")
    story.record(replace(GUIDANCE, flow=flow)).settle()
    again = flow_policy.retry_node(story.state, RUN, "a")
    assert again == (None, "it has not failed: it is pending"), "a second request changes nothing"
    node = story.state.nodes["a"]
    assert (node.status, node.attempt, node.step, node.reason) == ("pending", 2, "a#2:1", "red")
    assert (story.state.nodes["b"].status, story.state.nodes["d"].status) == ("failed", "active")
    assert story.start() == ["a"]
    assert story.land("a").start() == ["c"]
    story.land("c").land("d")
    assert story.state.flow is not None and story.state.flow.over == "failed", "b is still failed"
    assert "b" in story.state.flow.why


def test_only_the_chosen_nodes_of_a_failed_run_are_retried() -> None:
    story = Story(plan_of(TWO_FAIL))
    story.start()
    story.fail("a", "red").fail("b", "red").land("d").tell("run", {"status": "failed"})
    assert "garrison resume" in flow_policy.retry_node(story.state, RUN, "a")[1]
    story.resume(retry_failed=True, nodes=("b",)).settle()
    assert (story.state.nodes["a"].status, story.state.nodes["b"].status) == ("failed", "pending")
    assert story.start() == ["b"]
    story.land("b")
    assert story.state.flow is not None and story.state.flow.over == "failed"
    story.resume(retry_failed=True).settle()
    assert story.start() == ["a"]


def test_a_walk_retries_no_single_node_while_it_continues() -> None:
    story = Story(plan_of('start -> a; a -> b [condition="outcome=fail"]; a -> exit; b -> exit'))
    story.start()
    story.fail("a", "red")
    assert "follows one edge after the other" in flow_policy.retry_node(story.state, RUN, "a")[1]


def test_a_run_that_lasts_too_long_stops_even_if_its_gates_are_approved_at_once() -> None:
    plan = plan_of("max_pipeline_duration=1h; start -> a -> exit")
    story = Story(plan)
    story.start()
    assert flow_policy.wake_at(plan, story.state, story.view()) == 5000 + 3600
    story.wall += 3600
    assert body(story.act()) == {"event": "timed_out"}
    story.record(story.act().payload)
    assert story.act().kind == "cancel"
    story = Story(plan_of("""max_pipeline_duration=1h; max_steps=1000; ask [shape=hexagon]; t
        start -> ask; ask -> ask [label=Again]; ask -> t [label=Done]; t -> exit"""))
    for _ in range(5):
        act = story.act(auto_approve=True)
        assert act is not None and act.kind != "end"
        story.record(act.payload)
    story.wall += 3601
    assert body(story.act(auto_approve=True)) == {"event": "timed_out"}


# ---- pipelines within a pipeline


OUTER = f"""digraph {{ {ENDS} sub [type=subgraph, graph_ref="inner.dot"] start -> sub
    sub -> good [condition="outcome=success"]; sub -> bad [condition="outcome=fail"]; good -> exit; bad -> exit }}"""
INNER = f"digraph {{ {ENDS} ask [shape=hexagon] start -> t -> ask; ask -> exit [label=yes]; ask -> t [label=again] }}"


def nested(inner: str = INNER) -> RunPlan:
    return plan_run(parse(OUTER), load=lambda name, graph, named: (inner, named))


def test_a_pipeline_within_a_pipeline_has_its_own_names() -> None:
    plan = nested()
    assert list(plan.tasks) == ["good", "bad", "sub__t"] and list(plan.waits) == ["sub__ask"]
    assert plan.texts == {"sub": INNER} and plan.predecessors["sub__t"] == ("sub",)
    story = Story(plan)
    assert story.start() == ["sub__t"]
    story.land("sub__t")
    (gate,) = story.state.waits.values()
    assert (gate.node, gate.place) == ("sub__ask", "sub#1:1::ask#1")
    for text, node in (("again", "sub__t"), ("yes", "good")):
        event, wrong = flow_policy.answer_wait(story.state, "sub__ask", next(iter(story.state.waits)), text)
        assert not wrong
        story.record(event).settle()
        copy = replay_run([Entry(1, 1, "t", AT, "snapshot", to_snapshot(story.state))], plan.program, RUN,
                          plan.children)
        assert to_snapshot(copy) == to_snapshot(story.state)
        assert story.start() == [node]
        story.land(node)
    assert story.state.nodes["sub__t"].attempt == 2
    assert story.state.flow.over == "done"


def test_a_pipeline_within_that_fails_fails_its_node() -> None:
    story = Story(nested())
    story.start()
    story.fail("sub__t", "broken")
    assert story.start() == ["bad"]
    (place,) = story.state.flow.places.values()
    assert story.state.flow.context(place)["last_failure"] == "its pipeline failed: broken"


def managed(attributes: str = "") -> RunPlan:
    outer = f"""digraph {{ {ENDS} m [shape=house, prompt="Hurry, $context.outcome", stack.child_dotfile="inner.dot",
        var.speed=3, manager.poll_interval=30s {attributes}] start -> m -> exit }}"""
    return plan_run(parse(outer), load=lambda name, graph, named: (
        f"""digraph {{ {ENDS} t; u [shape=parallelogram, tool_command=true]; v [prompt=P]
            start -> t -> u -> v -> exit }}""", named))


def test_a_manager_observes_its_child_once_a_cycle_and_ends_with_it() -> None:
    plan = managed()
    story = Story(plan).settle()
    assert story.state.managers["m#1"].cycle == 1
    assert flow_policy.wake_at(plan, story.state, story.view()) == 5000 + 30
    assert story.start() == ["m__t"]
    assert flow_policy.task_context(story.state, "m__t", "codergen")[0]["speed"] == "3"
    story.wall += 30
    assert story.settle().state.managers["m#1"].cycle == 2
    for name in ("m__t", "m__u", "m__v"):
        story.start()
        copy = replay_run([Entry(1, 1, "t", AT, "snapshot", to_snapshot(story.state))], plan.program, RUN,
                          plan.children)
        assert to_snapshot(copy) == to_snapshot(story.state)
        story.land(name)
    assert story.state.flow.over == "done" and story.settle().state.managers == {}
    context = story.state.flow.state.context()
    assert {key: context[f"stack.child.{key}"] for key in ("status", "outcome", "completed")} == {
        "status": "completed", "outcome": "success", "completed": 5}
    assert context["speed"] == "3"


@pytest.mark.parametrize(("attributes", "ends"), [
    ('manager.stop_condition="context.stack.child.completed>=2"', ("success", "the stop condition held in cycle 2")),
    ("manager.max_cycles=1", ("fail", "the child of m was not done after 1 cycles"))])
def test_a_manager_ends_its_child_in_the_middle(attributes: str, ends: tuple[str, str]) -> None:
    story = Story(managed(f", {attributes}")).settle()
    story.start()
    story.land("m__t")
    assert story.start() == ["m__u"]
    assert story.state.flow.over == ""
    story.wall += 30
    outcome = body(story.act())["outcome"]
    assert (outcome["status"], outcome.get("notes") or outcome["failure_reason"]) == ends
    assert outcome["context_updates"]["stack.child.current_node"] == "u"
    story.settle()
    assert story.state.flow.over == ("done" if ends[0] == "success" else "failed")
    assert story.state.cancelled == {"m__u"} and story.state.managers == {}


def test_a_managers_guidance_goes_to_the_next_agent_of_its_child_once() -> None:
    plan = managed(", manager.actions=steer, manager.steer_cooldown=1h")
    story = Story(plan).settle()
    told = []
    for name in ("m__t", "m__u", "m__v"):
        assert story.start() == [name]
        told.append(build_task(plan.tasks[name], LAUNCH, plan, story.state.nodes[name]).prompt)
        story.land(name)
    assert told == ["Hurry, success\n\nt", "u", "P"]
    plan = managed(", manager.actions=steer")
    story = Story(plan).settle()
    story.start()
    story.wall += 30
    story.settle()
    story.land("m__t").start()
    story.land("m__u").start()
    assert story.state.nodes["m__u"].steer == "", "a tool gets no guidance"
    assert story.state.nodes["m__v"].steer == "Hurry, success"


@pytest.mark.parametrize(("inner", "words"), [
    (OUTER, "4 deep at most"), (INNER.replace("-> t ", "-> " + "t" * 46 + " "), "has more than 48 characters"),
    ("digraph { a -> }", "inner.dot:1:")])
def test_a_pipeline_within_that_cannot_be_run_is_refused_at_launch(inner: str, words: str) -> None:
    with pytest.raises(GarrisonError, match=words):
        nested(inner)
