"""Process of the benchmark of workflows and sessions: run that many steps of a chain, or turns, and print the times.

    python workflows_step.py ENGINE (step|turn) COUNT FOLDER [--kill-at N | --resume]

ENGINE is garrison or langgraph. A step calls an async tool that adds one to the result of the step before; a turn calls
a model that wants one tool and then answers. `--kill-at N` and `--resume` as in `engine_step.py`, whose counter it
uses. One JSON object on stdout; nothing of this repository is imported but what the engine needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_step import Steps, measured

Measured = tuple[int, float]
"""(the number at the end, seconds without building anything)."""


def garrison_steps(steps: Steps, count: int, folder: Path, resume: bool) -> Measured:
    from garrison.workflow import AgentConfig, ResearchAgent, Workflow, WorkflowStep

    async def add(number: int) -> dict[str, int]:
        return {"number": steps(number)}

    flow = Workflow("chain", "", [WorkflowStep("s0", "add", {"number": 0}), *(
        WorkflowStep(f"s{at}", "add", {"number": f"${{s{at - 1}.number}}"}) for at in range(1, count))])
    agent = ResearchAgent({"add": add}, AgentConfig(timeout_seconds=1e6, state_dir=str(folder)))
    began = time.perf_counter()
    found = asyncio.run(agent.resume_workflow("one") if resume else agent.execute_workflow(flow, "one"))
    return found.results[f"s{count - 1}"]["number"], time.perf_counter() - began


def langgraph_steps(steps: Steps, count: int, folder: Path, resume: bool) -> Measured:
    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    State = TypedDict("State", {"number": int})  # noqa: UP013  # a class in a function is not found by its annotations

    async def add(state: Any) -> Any:
        return {"number": steps(state["number"])}

    graph: Any = StateGraph(State)
    for at in range(count):
        graph.add_node(f"s{at}", add)
        graph.add_edge(f"s{at - 1}" if at else START, f"s{at}")
    graph.add_edge(f"s{count - 1}", END)

    async def scene() -> Measured:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.sqlite")) as saver:
            app = graph.compile(checkpointer=saver)
            began = time.perf_counter()
            found = await app.ainvoke(None if resume else {"number": 0}, durability="sync",
                                      config={"configurable": {"thread_id": "one"}, "recursion_limit": 3 * count})
            return found["number"], time.perf_counter() - began
    return asyncio.run(scene())


def garrison_turns(steps: Steps, count: int, folder: Path, resume: bool) -> Measured:
    from garrison.session import Session, SessionState
    from garrison.session.adapters import plain_adapters

    def model(messages: Any, *_: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return {"content": "done"}
        return {"tool_calls": [{"id": "1", "name": "search", "arguments": {}}]}

    async def scene() -> Measured:
        adapters = {**plain_adapters(), "llm_call": model, "tool_dispatch": lambda calls, _: ["found"] * len(calls)}
        async with Session(SessionState("s", "a"), adapters, folder=folder / "session") as session:
            began = time.perf_counter()
            for number in range(count):
                assert (await session.send("Hello")).tool_calls_made == 1
                steps(number)
            return session.state.turn_count, time.perf_counter() - began
    return asyncio.run(scene())


def langgraph_turns(steps: Steps, count: int, folder: Path, resume: bool) -> Measured:
    import operator
    from typing import Annotated

    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    State = TypedDict("State", {"messages": Annotated[list, operator.add], "kind": str, "mode": str})  # noqa: UP013

    async def model(state: Any) -> Any:
        wanted = state["messages"][-1]["role"] != "tool"
        return {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "search"}]}
                             if wanted else {"role": "assistant", "content": "done"}]}

    async def tool(_: Any) -> Any:
        return {"messages": [{"role": "tool", "content": "found"}]}

    async def nothing(_: Any) -> Any:
        return {"kind": "query"}

    graph: Any = StateGraph(State)
    before = ("classify", "authorize", "recall", "select_mode", "build_prompt")
    after = ("format", "memory", "checkpoint")
    for name in (*before, *after):
        graph.add_node(name, nothing)
    graph.add_node("call_llm", model)
    graph.add_node("dispatch_tools", tool)
    names = [START, *before, "call_llm"]
    for one, other in [*pairwise(names), ("dispatch_tools", "call_llm"), ("format", "memory"),
                       ("memory", "checkpoint"), ("checkpoint", END)]:
        graph.add_edge(one, other)
    graph.add_conditional_edges("call_llm", lambda state: "dispatch_tools" if state["messages"][-1].get("tool_calls")
                                else "format")

    async def scene() -> Measured:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.sqlite")) as saver:
            app = graph.compile(checkpointer=saver)
            began, done = time.perf_counter(), 0
            for number in range(count):
                found = await app.ainvoke({"messages": [{"role": "user", "content": "Hello"}]}, durability="sync",
                                          config={"configurable": {"thread_id": "one"}})
                assert found["messages"][-1]["content"] == "done"
                done = steps(number)
            return done, time.perf_counter() - began
    return asyncio.run(scene())


WHAT: dict[tuple[str, str], Callable[[Steps, int, Path, bool], Measured]] = {
    ("garrison", "step"): garrison_steps, ("langgraph", "step"): langgraph_steps,
    ("garrison", "turn"): garrison_turns, ("langgraph", "turn"): langgraph_turns}


def main() -> None:
    measured(("garrison", "langgraph"), ("step", "turn"), lambda given, steps: WHAT[given.engine, given.what](
        steps, given.count, given.folder, given.resume))


if __name__ == "__main__":
    main()
