"""Graphs of sessions written elsewhere: the spike's topology, its mistakes, its project's later node types."""

from __future__ import annotations

from typing import Any

import pytest
from test_session import World, beat, play

from garrison.errors import UsageError
from garrison.session import Initiative, SessionState
from garrison.session.graph_reader import read_session_graph
from garrison.session.session import RunFailed

TURN = """digraph Turn { graph [goal="one message"] start [shape=Mdiamond] done [shape=Msquare]
    classify [type="session.classify"] check_auth [shape=diamond, condition_key="input_type"]
    recall [type="session.memory_recall"] select_mode [type="session.mode_select"] call_llm [type="session.llm_call"]
    check_response [shape=diamond] dispatch_tools [type="session.tool_dispatch"] format [type="session.format"]
    update_memory [type="session.memory_update"] checkpoint [type="session.checkpoint"]
    start -> classify -> check_auth
    check_auth -> recall [condition="context.session.input_type!=blocked"]
    check_auth -> format [condition="context.session.input_type=blocked"]
    recall -> select_mode -> call_llm -> check_response
    check_response -> dispatch_tools [condition="context.llm.response_type=tool_call"]
    check_response -> format [condition="context.llm.response_type=text"]
    dispatch_tools -> call_llm
    format -> update_memory -> checkpoint -> done }"""
HEARTBEAT = """digraph Heartbeat { start [shape=Mdiamond] done [shape=Msquare]
    bg_checks [type="session.background_checks"] select_mode [type="session.mode_select"]
    mode_router [shape=diamond, condition_key="session.cognitive_mode"]
    llm_goal [type="session.llm_call"] llm_reflect [type="session.llm_call"] llm_plan [type="session.llm_call"]
    consolidate [type="session.consolidate"] process [type="session.process_results"]
    store_decompositions [type="session.store_decompositions"] execute_actions [type="session.execute_actions"]
    process_proposals [type="session.process_proposal_decisions"] update_wm [type="session.update_working_memory"]
    update_goals [type="session.update_goals"] check_loop [shape=diamond] llm_followup [type="session.llm_call"]
    start -> bg_checks -> select_mode -> mode_router
    mode_router -> llm_goal [condition="context.session.cognitive_mode=goal_pursuit"]
    mode_router -> llm_reflect [condition="context.session.cognitive_mode=reflection"]
    mode_router -> llm_plan [condition="context.session.cognitive_mode=plan_execution"]
    mode_router -> consolidate [condition="context.session.cognitive_mode=consolidation"]
    llm_goal -> process; llm_reflect -> process; llm_plan -> process; consolidate -> process
    process -> store_decompositions -> process_proposals -> update_wm -> execute_actions -> update_goals -> check_loop
    check_loop -> llm_followup [condition="context.session.has_action_results=true && context.session.tool_turn<10"]
    check_loop -> done
    llm_followup -> process }"""
LATER = """digraph Later { start [shape=Mdiamond] done [shape=Msquare]
    classify [type=exec, target=action, action="session.classify", output_prefix=session]
    check_auth [shape=diamond]
    recall [type=exec, target=action, action="session_memory.recall"]
    build_prompt [type=exec, target=action, action="session_llm.build_prompt", param.mode="turn"]
    call_llm [type=compute, simulate=false, messages_context_key="session.messages", use_tools=true]
    format [type=transform, transform=identity, source_key="last_response", output_key="session.response"]
    format_error [type=transform, transform=template, source_key="session.block_reason", output_key="session.response",
                  expression="No: {value}"]
    update_memory [type=exec, target=action, action="session_memory.update"]
    start -> classify -> check_auth
    check_auth -> recall [condition="context.session.input_type!=blocked"]
    check_auth -> format_error [condition="context.session.input_type=blocked"]
    recall -> build_prompt -> call_llm -> format -> update_memory
    format_error -> update_memory -> done }"""


WANTED = {"tool_calls": [{"name": "search", "args": {"q": 1}}]}


def turn(graph: str, world: World, text: str = "Hello", tier: str = "established") -> Any:
    return play(world.session(SessionState("s", "a", tier), turn_graph=graph), text)[0]


@pytest.mark.parametrize("graph", [TURN, LATER], ids=["spike", "later"])
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_1b_foreign_turn_graphs_run_with_the_same_counts(graph: str, calls: int) -> None:
    world = World(*[WANTED] * calls, {"content": "text"})
    result = turn(graph, world)
    assert (result.response, result.tool_calls_made) == ("text", calls)
    assert (world.count("llm_call"), world.count("tool_dispatch")) == (calls + 1, calls)


@pytest.mark.parametrize(("graph", "said"), [
    (TURN, "I cannot do this: it is blocked at trust tier untrusted."),
    (LATER, "No: it is blocked at trust tier untrusted")], ids=["spike", "later"])
def test_a_blocked_input_calls_no_model_in_a_foreign_graph(graph: str, said: str) -> None:
    world = World()
    assert turn(graph, world, "/rm", "untrusted").response == said
    wrong = graph.replace("context.session.input_type", "context.input_type")
    assert turn(wrong, world, "/rm", "untrusted").response == said
    assert world.count("llm_call") == 0


def test_1c_a_key_without_its_prefix_is_corrected_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    wrong = HEARTBEAT.replace("context.session.cog", "context.cog")
    [result] = beat(World({"content": "{}"}).session(
        SessionState("s", "a", goals=[{"id": 1}]), heartbeat_graph=wrong, initiative=Initiative(interval=0)))
    assert result.cognitive_mode == "goal_pursuit"
    assert "mode_router -> llm_goal" in caplog.text
    assert "it is read as 'context.session.cognitive_mode=goal_pursuit'" in caplog.text
    assert read_session_graph(HEARTBEAT, "x")[1] == []


def test_the_additional_nodes_call_their_adapters_and_actions_form_a_loop() -> None:
    done: list[Any] = []

    def act(data: dict[str, Any], agent: str) -> dict[str, Any]:
        done.append((data, agent))
        return {"has_action_results": len(done) < 3, "tool_turn": len(done)}
    world, seen = World({"content": '{"actions": ["x"], "concerns": ["c"]}'}), list[Any]()
    session = world.session(SessionState("s", "a"), {
        "execute_actions": act, "update_working_memory": lambda data, _: seen.append(data["concerns"])},
        heartbeat_graph=HEARTBEAT, initiative=Initiative(interval=0))
    [result] = beat(session)
    assert (world.count("llm_call"), len(done), result.model_calls) == (3, 3, 3)
    assert done[0] == ({"actions": ["x"], "tool_turn": None}, "a")
    assert seen == [["c"]] * 3
    assert {"store_decompositions", "process_proposal_decisions"} <= set(session.missing)


def test_a_failing_model_repeats_no_tool_and_an_unknown_action_is_refused_with_its_node() -> None:
    world = World(WANTED, RuntimeError("no model"))
    with pytest.raises(RunFailed, match="no model"):
        turn(TURN, world)
    assert world.count("tool_dispatch") == 1
    with pytest.raises(UsageError, match=r"node recall is type=exec with the action 'web\.fly', which no session has"):
        read_session_graph(LATER.replace("session_memory.recall", "web.fly"), "x")
