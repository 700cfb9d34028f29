"""Proposals of a planning agent, and their validation. Pure.

A proposal is untrusted text. It becomes a graph only if `find_faults` finds nothing, and only its words reach that
graph: anything with an effect (an agent, a command, a budget) is used only as far as the user's settings allow, and
`PlanRules.judge` reports what was left out.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import TYPE_CHECKING

from garrison.errors import UsageError
from garrison.records.names import INTEGRATION, TESTED, check_node
from garrison.records.record import read_foreign
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

KEY = "tasks"
"""Key that identifies a proposal in an answer."""
CHECK = "check_goal"
"""Node that checks the goal at the end of each plan."""
RESERVED = frozenset({"start", "exit", "end", CHECK, INTEGRATION, TESTED})
MAX_TITLE, MAX_TEXT, MAX_FILES, MAX_QUESTIONS = 120, 20_000, 50, 10
"""Maximum length of a title and of other texts; maximum number of files of a task and of questions."""
LEAST, MOST = 0.0001, 1e6
"""Maximum budget of a task in US dollars."""
# each `{` may start an object, and each try may read to the end: a text of braces would take quadratic time
_MAX_TRIES = 400
_NO_FILE = re.compile(r"[\s,\x00-\x1f\x7f]")
"""Characters that a name in the attribute `files` cannot have."""
# Control characters, and those that reorder a line: what the user approves has to be what they see.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Need(Value):
    """Another task that one waits for, and what it takes from that."""

    task: str
    what: str = ""


class ProposedTask(Value):
    """A task of a proposal."""

    name: str
    title: str
    prompt: str
    needs: tuple[Need, ...] = ()
    files: tuple[str, ...] = ()
    """Files that it is expected to change, as paths or patterns in the repository."""
    acceptance: str = ""
    """What shows, in words, that it is done."""
    command: str = ""
    """Command that accepts its work."""
    agent: str = ""
    budget: float | None = None
    """US dollars."""
    reason: str = ""
    """Why it is a task by itself."""
    replaces: str = ""
    """Failed task whose place it takes, '' in a first plan."""


class ProposedPlan(Value):
    """What a planner hands in."""

    tasks: tuple[ProposedTask, ...] = ()
    questions: tuple[str, ...] = ()
    """What only the user can decide."""
    check: str = ""
    """How the goal itself is checked, in words."""


class Past(Value):
    """What a plan that is to be mended has come to."""

    landed: frozenset[str]
    failed: frozenset[str]
    """Tasks that failed for good, the check of the goal among them."""
    open: frozenset[str] = frozenset()
    """Tasks that never began."""

    @property
    def names(self) -> frozenset[str]:
        return self.landed | self.failed | self.open


NO_PAST = Past(frozenset(), frozenset())


class PlanRules(Value):
    """What the user's settings allow a plan."""

    max_tasks: int
    agents: frozenset[str] = frozenset()
    """Agents that a task may name."""
    commands: frozenset[str] = frozenset()
    """Commands by which a task's work may be accepted, word for word."""
    budgets: Mapping[str, float | None] = MappingProxyType({})
    """Agent → US dollars that a node of it may spend by its profile, None for no limit; '' is the run's own agent."""

    def judge(self, task: ProposedTask) -> tuple[ProposedTask, list[str]]:
        """Return a task with what is allowed of it, and a line for each thing that is left out."""
        told, changes = [], dict[str, object]()
        if task.agent and task.agent not in self.agents:
            told.append(f"{task.name}: the agent {task.agent!r:.60} is not among agents of [plan] and was left out")
            changes["agent"] = ""
        if task.command and task.command not in self.commands:
            told.append(f"{task.name}: the command {task.command!r:.80} is not among commands of [plan] and will not "
                        "be run")
            changes["command"] = ""
        most = self.budgets.get("" if "agent" in changes else task.agent)
        # Written so that NaN, which is not less or more than anything, is left out as well.
        if task.budget is not None and not LEAST <= task.budget <= (MOST if most is None else most):
            told.append(f"{task.name}: the budget {task.budget:g} was left out; its agent has "
                        f"{'none' if most is None else f'${most:g}'}")
            changes["budget"] = None
        return replace(task, **changes), told


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_proposal(answer: str) -> ProposedPlan:
    """Return the proposal in an answer; ValueError describes a wrong shape.

    The last JSON object with `tasks` or `questions` counts: models think aloud before they answer.
    """
    found = _last_object(answer)
    if found is None:
        raise ValueError(f'there is no JSON object with "{KEY}"')
    return read_foreign(ProposedPlan, found)


def _last_object(answer: str) -> dict[str, object] | None:
    decode, end, last = json.JSONDecoder().raw_decode, 0, None
    for number, found in enumerate(re.finditer(r"\{", answer)):
        if number == _MAX_TRIES:
            break
        # Within the object that was read last.
        if found.start() < end:
            continue
        try:
            value, after = decode(answer, found.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value.get(KEY), list) or isinstance(value.get("questions"), list):
            last, end = value, after
    return last


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def find_faults(proposal: ProposedPlan, rules: PlanRules, past: Past = NO_PAST) -> list[str]:
    """Return why a proposal cannot become a graph, a line for each reason; none if it can."""
    tasks = proposal.tasks
    if len(proposal.questions) > MAX_QUESTIONS:
        return [f"it asks {len(proposal.questions)} questions; ask at most {MAX_QUESTIONS}, the ones that matter most"]
    found = [f"a question {problem}" for words in proposal.questions if (problem := _problem_of(words, MAX_TEXT))]
    if not tasks:
        return found if proposal.questions and not found else [*found, "it has no task"]
    if len(tasks) > rules.max_tasks:
        return [*found, f"it has {len(tasks)} tasks; at most {rules.max_tasks} are allowed"]
    found += [f"check {problem}" for problem in [_problem_of(proposal.check, MAX_TEXT)] if proposal.check and problem]
    counts = Counter(task.name.casefold() for task in tasks)
    names = {task.name for task in tasks}
    for number, task in enumerate(tasks, 1):
        where = task.name if _is_name(task.name) else f"task {number}"
        found += [f"{where}: {problem}" for problem in _faults_of(task, names, counts, past)]
    if not found and (cycle := _cycle(tasks)):
        found.append(f"{', '.join(cycle)} wait for each other")
    missing = sorted(past.failed - {task.replaces for task in tasks})
    return [*found, *(f"no task replaces {name}, which failed" for name in missing)]


def _faults_of(task: ProposedTask, names: Collection[str], counts: Mapping[str, int], past: Past) -> Iterator[str]:
    name = task.name.casefold()
    if not _is_name(task.name):
        yield "name should be 1 to 48 of a-z 0-9 _, beginning with a letter"
    elif name in RESERVED or counts[name] > 1 or name in {each.casefold() for each in past.names}:
        yield "the name is taken; use another"
    for key, most in (("title", MAX_TITLE), ("prompt", MAX_TEXT)):
        if problem := _problem_of(getattr(task, key), most):
            yield f"{key} {problem}"
    for key in ("acceptance", "command", "reason"):
        if getattr(task, key) and (problem := _problem_of(getattr(task, key), MAX_TEXT)):
            yield f"{key} {problem}"
    yield from _faults_of_needs(task, names, past)
    if len(task.files) > MAX_FILES:
        yield f"it names {len(task.files)} files; name at most {MAX_FILES}, or patterns"
    yield from (f"{each!r:.80} is not a path in the repository" for each in task.files if not _is_path(each))
    if past.failed and task.replaces not in past.failed:
        yield f"replaces should be one of {', '.join(sorted(past.failed))}"
    if task.replaces and not past.failed:
        yield "replaces is for a plan that has failed"


def _faults_of_needs(task: ProposedTask, names: Collection[str], past: Past) -> Iterator[str]:
    for need in task.needs:
        if need.task == task.name or need.task not in {*names, *past.landed}:
            rest = " and has not landed" if past.names else ""
            yield f"it needs {need.task!r:.60}, which is not another task{rest}"
        elif problem := _problem_of(need.what, MAX_TITLE):
            yield f"what it takes from {need.task} {problem}"


def _is_name(name: str) -> bool:
    try:
        return check_node(name) == name and name.isascii() and name[0].isalpha()
    except UsageError:
        return False


def _is_path(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and len(name) <= MAX_TITLE * 2 and not _NO_FILE.search(name) and not name.startswith(("/", "~")) \
        and ".." not in parts and parts[0] != ".git" and posixpath.normpath(name) != "."


def _problem_of(text: str, most: int) -> str:
    if not text.strip():
        return "is empty"
    if len(text) > most:
        return f"has {len(text):,} characters; {most:,} are allowed"
    return "has characters that cannot be shown; write plain text" if _UNSEEN.search(text) else ""


def _cycle(tasks: Sequence[ProposedTask]) -> list[str]:
    try:
        TopologicalSorter({task.name: [need.task for need in task.needs] for task in tasks}).prepare()
    except CycleError as error:
        return list(dict.fromkeys(error.args[1]))
    return []


# ---- what is weak ----------------------------------------------------------------------------------------------------


def find_weaknesses(proposal: ProposedPlan, past: Past = NO_PAST) -> list[str]:
    """Return what is poor about a proposal without faults: it goes back once, and is a warning from then on."""
    tasks = proposal.tasks
    before = _all_before(tasks)
    found = []
    # A chain of n tasks has 0, 1, 2 … n - 1 tasks before its members, and no other plan has.
    if not past.names and len(tasks) > 1 and all(
            len(before[task.name]) == number for number, task in enumerate(sorted(
                tasks, key=lambda each: len(before[each.name])))):
        found.append("the tasks are a chain, of which nothing works side by side: one task, or tasks that do not wait "
                     "for each other, would do the same")
    for number, one in enumerate(tasks):
        for other in tasks[number + 1:]:
            if one.name not in before[other.name] and other.name not in before[one.name] and (
                    shared := share_files(one.files, other.files)):
                found.append(f"{one.name} and {other.name} both change {shared}, and neither waits for the other")
    return found


def share_files(one: Sequence[str], other: Sequence[str]) -> str:
    """Return a file or pattern that both lists name, '' for none."""
    return next((mine for mine in one for theirs in other if _overlap(mine, theirs)), "")


def _overlap(one: str, other: str) -> bool:
    a, b = posixpath.normpath(one), posixpath.normpath(other)
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/") or fnmatchcase(a, b) or fnmatchcase(b, a)


def _all_before(tasks: Sequence[ProposedTask]) -> dict[str, set[str]]:
    """Return task → all tasks of the proposal that it waits for, directly or not."""
    by_name = {task.name: task for task in tasks}
    found: dict[str, set[str]] = {}
    for name in TopologicalSorter({task.name: [need.task for need in task.needs if need.task in by_name]
                                   for task in tasks}).static_order():
        own = {need.task for need in by_name[name].needs if need.task in by_name}
        found[name] = own.union(*(found[each] for each in own))
    return found
