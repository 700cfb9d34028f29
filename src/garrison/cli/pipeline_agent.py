"""The home's agents as the ones who do codergen nodes of `garrison pipeline run`.

An agent works in the run's tree itself, not in a worktree of its own: nothing is committed, tested or landed here, and
nobody supervises it. That is what `garrison launch` is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.base import Assignment
from garrison.agents.base import Outcome as AgentOutcome
from garrison.agents.result import to_pipeline_outcome
from garrison.errors import GarrisonError, UsageError
from garrison.pipeline.fidelity import next_steps
from garrison.pipeline.graph import Graph, text
from garrison.pipeline.handlers.call import Call, failed, in_thread
from garrison.pipeline.handlers.tool import environment, wait_readable
from garrison.pipeline.lint import command_of
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.questions import FREE_TEXT, Question
from garrison.records.names import to_run_stem
from garrison.records.run import Task
from garrison.system.jobs import read_tail
from garrison.system.processes import open_verified

if TYPE_CHECKING:
    from garrison.agents.base import Work

_LOOK = 1.0
"""Seconds between two looks at work whose end nothing tells."""


def named(call_attrs: Mapping[str, str], default: str) -> str:
    """The agent of a node: its `agent`, else its `worker_type` if that is one, else the run's."""
    return text(call_attrs, "agent") or default


class HomeAgent:
    """Starts the agent that a node, or the run, names, and waits for its end."""

    sessions_by_id = True
    """A session is found again by its id alone: who has none is told at length what came before."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home

    def check(self, graph: Graph) -> None:
        """Refuse, before the run begins, what would fail for sure: an unknown agent, a command agent without one."""
        for node in graph.nodes_of("codergen"):
            name = named(node.attrs, self.name)
            registry.check_node(name, node.id, node.attrs, self.home)
            profile = registry.find_profile(name, self.home)
            if "{command}" in getattr(profile, "argv", ()) and not command_of(node):
                place = f"{graph.source}:{node.line}:{node.column}: " if node.line else ""
                raise UsageError(f"{place}node {node.id} has no command=, and its agent is {name}; give it one, name "
                                 "another agent (--agent), or try the flow with --simulate")

    async def __call__(self, call: Call) -> Outcome:
        """Do one attempt."""
        folder = call.folder
        assert folder is not None  # a run of the command line has a directory
        name = named(call.attrs, self.name)
        task = Task(to_run_stem(call.run.run), call.node.id, call.attempt, label=call.node.label, prompt=call.text,
                    agent=name, command=command_of(call.node), goal=text(call.graph.attrs, "goal", ""),
                    rework_reason=call.place.reason, attributes=dict(call.attrs), continues=call.session or "",
                    preamble=call.carried.history if call.carried and call.session else "",
                    ways=list(next_steps(call.graph)[call.node.id]))
        environ = {**environment(call, folder), "GARRISON_HOME": str(self.home)}
        assignment = Assignment(task, call.run.tree, folder, environ, attempts=call.run.directory)
        assignment.write_context(dict(call.context))
        try:
            work = registry.agent(name, self.home, attributes=task.attributes).start(assignment, time.monotonic())
        except GarrisonError as error:
            return failed(str(error))
        ended = await _ended(work, call)
        call.session = work.session or call.session
        report = {"notes": read_tail(assignment.output, 40), **ended.report}
        return to_pipeline_outcome(report, succeeded=ended.status == "success", reason=ended.reason or "it failed",
                                   failure_class="agent")


async def _ended(work: Work, call: Call) -> AgentOutcome:
    """The work's outcome; when cancelled, or when nobody is there to answer what it asks, it is stopped first."""
    try:
        return await _polled(work, call)
    except asyncio.CancelledError:
        work.stop(time.monotonic())
        await _polled(work, None)
        raise
    except _NobodyThereError as error:
        work.stop(time.monotonic())
        await _polled(work, None)
        return AgentOutcome("fail", str(error))


class _NobodyThereError(Exception):
    """The agent asks something and the run has no answerer."""


async def _answered(work: Work, call: Call, done: set[str]) -> None:
    """Pass what the agent asks to the run's answerer."""
    asked = work.question
    if asked is None or asked.id in done:
        return
    done.add(asked.id)
    answerer = call.run.answerer
    put = Question(f"{call.place.id}/{asked.id}", call.node.id, asked.text, kind=FREE_TEXT)
    said = None if answerer is None else await in_thread(lambda: answerer.ask(put))
    answer = await said if inspect.isawaitable(said) else said
    if not isinstance(answer, str):
        raise _NobodyThereError(f"its agent asks: {asked.text}; answer on a terminal, or with --answer "
                                f"{call.node.id}=TEXT")
    work.answer(asked.id, answer)


async def _polled(work: Work, call: Call | None) -> AgentOutcome:
    done: set[str] = set()
    while (outcome := work.poll(now := time.monotonic())) is None:
        if call is not None:
            await _answered(work, call, done)
        wake, process = work.wake_at(), work.process()
        limit = _LOOK if wake is None else max(0.01, min(_LOOK, wake - now))
        descriptor = open_verified(*process) if process else None
        if descriptor is None:
            await asyncio.sleep(min(limit, 0.05))
            continue
        with contextlib.closing(_Descriptor(descriptor)):
            await wait_readable(descriptor, limit)
    return outcome


class _Descriptor:
    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        os.close(self.number)
