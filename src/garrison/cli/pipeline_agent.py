"""Agents of the home for the codergen nodes of `garrison pipeline run`.

An agent works directly in the run's working directory, not in its own worktree. Nothing is committed, tested, landed or
supervised; that is what `garrison launch` is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import base, prompt, registry
from garrison.agents.base import Assignment
from garrison.agents.result import to_pipeline_outcome
from garrison.errors import GarrisonError, UsageError
from garrison.pipeline.fidelity import Carryover, next_steps
from garrison.pipeline.graph import Graph, text
from garrison.pipeline.handlers.call import Call, failed, in_thread
from garrison.pipeline.handlers.tool import environment, wait_readable
from garrison.pipeline.lint import command_of
from garrison.pipeline.outcome import Outcome
from garrison.pipeline.questions import FREE_TEXT, Question
from garrison.records.names import to_run_stem
from garrison.records.run import Task
from garrison.sandbox.checkout import checkout_network, checkout_place, checkout_user, remove_private_folder
from garrison.sandbox.place import Role
from garrison.system.command import read_tail
from garrison.system.git import Git
from garrison.system.git.commits import exclude_in_checkout
from garrison.system.processes import open_verified
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.agents.base import Work
    from garrison.sandbox.network import NetworkPlace
    from garrison.sandbox.place import Place

_MAX_POLL = 1.0
"""Seconds between two polls of work without a process to wait for."""


def agent_of(attrs: Mapping[str, str], default: str) -> str:
    """Return the agent of a node: its `agent` attribute, else the run's agent."""
    return text(attrs, "agent") or default


class HomeAgent:
    """Handler of codergen nodes: start the agent of the node or run, and wait for its end."""

    sessions_by_id = True
    """Sessions are resumed by their id alone; an agent without one gets a long summary of the run."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home

    def check(self, graph: Graph) -> None:
        """Refuse certain failures: an unknown agent, a missing program, a command agent without a command."""
        for node in graph.nodes_of("codergen"):
            name = agent_of(node.attrs, self.name)
            registry.check_node(name, node.id, node.attrs, self.home)
            registry.check_program(name, self.home, os.environ)
            profile = registry.find_profile(name, self.home)
            if "{command}" in getattr(profile, "argv", ()) and not command_of(node):
                place = f"{graph.source}:{node.line}:{node.column}: " if node.line else ""
                raise UsageError(f"{place}node {node.id} has no command=, and its agent is {name}; give it one, name "
                                 "another agent (--agent), or try the flow with --simulate")

    async def __call__(self, call: Call) -> Outcome:
        """Run one attempt."""
        folder = call.folder
        assert folder is not None  # a run from the command line has a directory
        name = agent_of(call.attrs, self.name)
        goal, carried = text(call.graph.attrs, "goal", ""), call.carried or Carryover()
        words = prompt.in_place(call.prompt, goal, carried.preamble, call.place.reason, carried.steering,
                                has_account=carried.has_account)
        task = Task(to_run_stem(call.run.run), call.node.id, call.attempt, label=call.node.label, prompt=words,
                    agent=name, command=command_of(call.node), goal=goal,
                    rework_reason=call.place.reason, attributes=dict(call.attrs), continues=call.session or "",
                    preamble=carried.history if call.session else "",
                    words=sorted(call.asked), ways=list(next_steps(call.graph)[call.node.id]))
        environ = {**environment(call, folder), "GARRISON_HOME": str(self.home)}
        try:
            environ |= _exclusions(registry.excluded_by(name, self.home), call.run.tree, folder, environ)
            place = checkout_place(Role.AGENT, call.run.tree, folder, call.run.directory, environ, home=self.home,
                                   agent=name)
            # only the proxy's counts exist: a session's own, in the run's directory, are not summed up
            user = replace(checkout_user(self.home, task.run_id, task.node, task.attempt, call.run.directory or folder),
                           limits=registry.limits_of(name, task.node, task.attributes, self.home))
            network = checkout_network(Role.AGENT, place, user,
                                       {**environ, **registry.variables_of(name, self.home, environ)}, name)
        except GarrisonError as error:
            return failed(str(error))
        with contextlib.closing(network):
            return await self._run(call, task, folder, environ, network, place)

    async def _run(self, call: Call, task: Task, folder: Path, environ: Mapping[str, str], network: NetworkPlace,
                   place: Place | None) -> Outcome:
        name = task.agent
        try:
            assignment = Assignment(task, call.run.tree, folder, network.apply(environ), attempts=call.run.directory,
                                    network_variables=network.names, place=network.open_in(place))
            assignment.write_context(dict(call.context))
            assignment.write_prompt(task.prompt)
            work = registry.agent(name, self.home, attributes=task.attributes).start(assignment, time.monotonic())
        except GarrisonError as error:
            return failed(str(error))
        try:
            ended = await wait_or_stop(work, call, network)
        finally:
            remove_private_folder(folder)
        call.session = work.session or call.session
        report = {"notes": read_tail(assignment.output, 40), **ended.report}
        return to_pipeline_outcome(report, succeeded=ended.status == "success", reason=ended.reason or "it failed",
                                   failure_class="agent")


def _exclusions(patterns: Sequence[str], tree: Path, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep an agent's private files out of its commits; none outside of a repository."""
    if not patterns:
        return {}
    try:
        git = Git(tree)
    except GarrisonError:
        return {}
    return exclude_in_checkout(git, tree, folder, patterns, environ)


class _NoAnswererError(Exception):
    """Raised when an agent asks a question and the run has no answerer."""


async def wait_or_stop(work: Work, call: Call, network: NetworkPlace) -> base.WorkResult:
    """Return the work's outcome; stop the work if this task is cancelled or a question cannot be answered."""
    try:
        return await _wait(work, call, network)
    except asyncio.CancelledError:
        # wait here, since the loop closes after us: nothing else would end the agent's processes
        work.stop(time.monotonic())
        await _wait(work)
        raise
    except _NoAnswererError as error:
        work.stop(time.monotonic())
        await _wait(work)
        return base.WorkResult("fail", str(error))


async def _wait(work: Work, call: Call | None = None, network: NetworkPlace | None = None) -> base.WorkResult:
    """Poll the work until it ends; with `call`, answer its questions; with `network`, keep that alive."""
    answered: set[str] = set()
    while (outcome := work.poll(now := time.monotonic())) is None:
        if network is not None:
            network.keep()
        if call is not None:
            await _answer_question(work, call, answered)
        wake_at, process = work.wake_at(), work.process()
        limit = _MAX_POLL if wake_at is None else max(0.01, min(_MAX_POLL, wake_at - now))
        descriptor = open_verified(*process) if process else None
        if descriptor is None:
            await asyncio.sleep(min(limit, 0.05))
            continue
        try:
            await wait_readable(limit, descriptor, None if network is None else network.unserved)
        finally:
            os.close(descriptor)
    return outcome


async def _answer_question(work: Work, call: Call, answered: set[str]) -> None:
    """Pass a new question of the agent to the run's answerer."""
    open_question = work.question
    if open_question is None or open_question.id in answered:
        return
    answered.add(open_question.id)
    answerer = call.run.answerer
    question = Question(f"{call.place.id}/{open_question.id}", call.node.id, open_question.text, kind=FREE_TEXT)
    reply = None if answerer is None else await in_thread(lambda: answerer.ask(question))
    answer = await reply if inspect.isawaitable(reply) else reply
    if not isinstance(answer, str):
        raise _NoAnswererError(f"its agent asks: {open_question.text}; answer on a terminal, or with --answer "
                               f"{call.node.id}=TEXT")
    work.answer(open_question.id, answer)
