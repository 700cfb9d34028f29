"""Process of the benchmark of pipeline engines: run a chain or a cycle of trivial steps, durably, and print the times.

    python engine_step.py ENGINE SHAPE STEPS FOLDER [--kill-at N | --resume]

ENGINE is garrison, langgraph or dbos, each with its own means for one durable step in one process; SHAPE is chain
(STEPS nodes in a row) or cycle (one node visited STEPS times). Each step adds one to a number. `--kill-at N`: the
process kills itself with SIGKILL within step N; `--resume`: it continues from what FOLDER holds. One JSON object on
stdout. It imports nothing of this repository but what the engine needs, so that it runs in the peers' environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BORN = time.perf_counter()


class Steps:
    """Function that the steps of all engines call: it counts, notes the first, and kills the process where asked."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at, self.run, self.first = kill_at, 0, 0.0

    def __call__(self, number: int) -> int:
        """Return the next number."""
        if not self.run:
            self.first = time.perf_counter() - BORN
        self.run += 1
        if number + 1 == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return number + 1


Engine = Callable[[Steps, str, int, Path, bool], tuple[int, float]]
"""(steps, shape, count, folder, resume) → the number at the end, and seconds without building the graph."""


def garrison(steps: Steps, shape: str, count: int, folder: Path, resume: bool) -> tuple[int, float]:
    from garrison.pipeline import run

    async def work(call: Any) -> dict[str, Any]:
        return {"outcome": "success", "context_updates": {"n": steps(call.context.get("n", 0))}}

    ends = "start [shape=Mdiamond] end [shape=Msquare] node [type=work]"
    if shape == "chain":
        names = [f"n{at}" for at in range(count)]
        text = f"digraph {{ {ends} {'; '.join(names)} start -> {' -> '.join(names)} -> end }}"
    else:
        text = (f'digraph {{ {ends} work; start -> work; work -> end [condition="context.n>={count}"] '
                f'work -> work [condition="context.n<{count}"] }}')
    began: list[float] = []

    def on_event(event: Any) -> None:
        if not began:
            began.append(time.perf_counter())

    found = run(None if resume else text, handlers={"work": work}, run_dir=folder / "run", max_steps=3 * count,
                resume=resume, on_event=on_event)
    return found.context["n"], time.perf_counter() - began[0]


def langgraph(steps: Steps, shape: str, count: int, folder: Path, resume: bool) -> tuple[int, float]:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    State = TypedDict("State", {"n": int})  # noqa: UP013  # a class in a function is not found by its annotations

    def work(state: Any) -> Any:
        return {"n": steps(state["n"])}

    graph: Any = StateGraph(State)
    if shape == "chain":
        for at in range(count):
            graph.add_node(f"n{at}", work)
            graph.add_edge(f"n{at - 1}" if at else START, f"n{at}")
        graph.add_edge(f"n{count - 1}", END)
    else:
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        graph.add_conditional_edges("work", lambda state: END if state["n"] >= count else "work")
    saver = SqliteSaver(sqlite3.connect(folder / "langgraph.sqlite", check_same_thread=False))
    app = graph.compile(checkpointer=saver)
    began = time.perf_counter()
    found = app.invoke(None if resume else {"n": 0}, durability="sync",
                       config={"configurable": {"thread_id": "one"}, "recursion_limit": 3 * count})
    return found["n"], time.perf_counter() - began


def dbos(steps: Steps, shape: str, count: int, folder: Path, resume: bool) -> tuple[int, float]:
    import logging

    from dbos import DBOS, SetWorkflowID

    logging.disable(logging.CRITICAL)
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
                 "application_version": "1", "run_admin_server": False})

    @DBOS.step(name="work")
    def work(number: int) -> int:
        return steps(number)

    @DBOS.workflow(name=shape)
    def workflow(until: int) -> int:
        number = 0
        while number < until:
            number = work(number)
        return number

    DBOS.launch()
    began = time.perf_counter()
    if resume:
        found = DBOS.retrieve_workflow("one").get_result()
    else:
        with SetWorkflowID("one"):
            found = workflow(count)
    took = time.perf_counter() - began
    DBOS.destroy()
    return found, took


ENGINES: dict[str, Engine] = {"garrison": garrison, "langgraph": langgraph, "dbos": dbos}


def main() -> None:
    measured(ENGINES, ("chain", "cycle"), lambda given, steps: ENGINES[given.engine](
        steps, given.what, given.count, given.folder, given.resume))


def measured(engines: Iterable[str], whats: Iterable[str],
             run: Callable[[argparse.Namespace, Steps], tuple[int, float]]) -> None:
    """Read the options of a step's process (ENGINE WHAT COUNT FOLDER [--kill-at N] [--resume]), let `run` do it, and
    print what it gave and what that cost."""
    options = argparse.ArgumentParser()
    options.add_argument("engine", choices=list(engines))
    options.add_argument("what", choices=list(whats))
    options.add_argument("count", type=int)
    options.add_argument("folder", type=Path)
    options.add_argument("--kill-at", type=int, default=0)
    options.add_argument("--resume", action="store_true")
    given = options.parse_args()
    steps = Steps(given.kill_at)
    number, seconds = run(given, steps)
    files = [file for file in given.folder.rglob("*") if file.is_file()]
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"number": number, "run": steps.run, "seconds": seconds, "first_s": steps.first,
                      "cpu_s": used.ru_utime + used.ru_stime, "rss_mib": peak_kib() / 1024,
                      "disk_kib": sum(file.stat().st_size for file in files) / 1024}))


def peak_kib() -> int:
    """Return the peak memory of this process; `ru_maxrss` would include its parent's."""
    return int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith("VmHWM")))


if __name__ == "__main__":
    main()
