"""Loop detector: which calls repeat, when a session is idle, and how trouble is summarized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from garrison.agents.conversation import policy
from garrison.agents.conversation.loop_detector import MAX_REPEATS, LoopDetector
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind, Prompt
from garrison.agents.conversation.trouble import summarize
from garrison.agents.trouble import TroubleKind


@dataclass
class Step:
    """One call of a tool, and the files that it changes."""

    tool: str
    arguments: dict[str, str]
    result: str = ""
    takes: float = 1.0
    files: dict[str, str] = field(default_factory=dict)


class Session:
    """Session at work on files that are a dictionary, watched by a detector."""

    def __init__(self, repeats: int | None = MAX_REPEATS, idle: int | None = None) -> None:
        self.files = {"calc.py": "def add(a, b): return a - b"}
        self.now = 0.0
        self.made = 0
        self.found = ""
        self.detector = LoopDetector(repeats, idle, lambda: frozenset(self.files.items()), lambda: self.now)

    def play(self, step: Step) -> None:
        """Change the files of the step, then let its tool be called and answer."""
        self.files |= step.files
        self.made += 1
        call: dict[str, Any] = {"kind": "tool", "id": str(self.made), "name": step.tool, "input": step.arguments}
        assert self.detector.observe(call) == ""
        self.now += step.takes
        self.found = self.found or self.detector.observe(
            {"kind": "tool_result", "id": str(self.made), "text": step.result, "error": False})


def bash(command: str, result: str = "", *, takes: float = 1.0, description: str = "", **files: str) -> Step:
    arguments = {"command": command} | ({"description": description} if description else {})
    return Step("Bash", arguments, result, takes, {name.replace("_", "."): text for name, text in files.items()})


def edit(name: str, content: str) -> Step:
    return Step("Edit", {"file_path": name, "new_string": content},
                f"The file {name} has been updated.\n    1\t{content}", files={name: content})


def read(name: str, text: str) -> Step:
    return Step("Read", {"file_path": name}, f"     1\t{text}")


def pytest_fails(seconds: str = "0.11") -> Step:
    return bash("pytest -q", f"FAILED test_calc.py::test_add - assert -1 == 3\n1 failed in {seconds}s")


def word(number: int) -> str:
    """Return a word that names no earlier number."""
    return f"{chr(97 + number % 26)}{chr(97 + number // 26)}"


SUBTRACTS, ADDS = "def add(a, b): return a - b", "def add(a, b): return b - a"
LOOPS: dict[str, Callable[[int], list[Step]]] = {
    "the same call": lambda n: [pytest_fails()],
    "other descriptions": lambda n: [
        bash(f"# run the tests {how}\npytest -q  # {how}", pytest_fails(f"0.{n}").result, description=f"Run {how}")
        for how in [("again", "once more", "carefully", "with luck", "finally")[n % 5]]],
    "an edit and its revert": lambda n: [edit("calc.py", SUBTRACTS if n % 2 else ADDS), pytest_fails()],
    "notes in between": lambda n: [
        step for phase in [("think", "plan", "retry", "examine", "ponder")[n % 5]] for step in (
            Step("mcp__garrison__save_notes", {"text": f"I {phase} about attempt {n}"}, "saved"),
            Step("mcp__garrison__update_phase", {"phase": phase}, "noted"), pytest_fails(f"0.{n}"))],
    "empty commits": lambda n: [
        step for title in [("wip", "try", "progress", "more", "checkpoint")[n % 5]] for step in (
            bash(f"git commit -q --allow-empty -m '{title} {n}'", f"[work {n:07x}] {title} {n}"),
            bash("git log -1 --oneline", f"{n:07x} {title} {n}"))],
    "files outside": lambda n: [
        Step("Write", {"file_path": (path := f"/tmp/scratch-{'abcdefghij'[n % 10]}{n}.md"), "content": f"idea {n}"},
             f"File created successfully at: {path}"), pytest_fails("0.2")],
    "a search for what does not exist": lambda n: [
        step for folder in [(".", "src", "tests", "lib", "/usr/include")[n % 5]] for step in (
            bash(f"find {folder} -name config_v{n}.yaml"),
            Step("Grep", {"pattern": "load_config", "path": folder}, "No files found"))],
    "three calls by turns": lambda n: [
        read("calc.py", SUBTRACTS), bash("ls -la", "total 8\n-rw-r--r-- 1 u u 28 Nov 28 10:00 calc.py"),
        bash("git log --oneline | head -3", "a1b2c3d Begin")],
}


@pytest.mark.parametrize("steps", LOOPS.values(), ids=LOOPS.keys())
def test_a_realistic_loop_is_found_within_25_calls(steps: Callable[[int], list[Step]]) -> None:
    session = Session()
    for number in range(25):
        for step in steps(number) if not session.found and session.made < 25 else ():
            session.play(step)
    assert "brought nothing new" in session.found
    assert session.made <= 25


HONEST: dict[str, list[Step]] = {
    "edits until green": [step for n in range(40) for step in (
        edit("calc.py", f"def add(a, b): return a - b  # variant {n}"), pytest_fails())],
    "reads many files": [read(f"src/{word(n)}.py", f"class {word(n).title()}:\n     2\t    pass") for n in range(60)],
    "writes many files": [Step("Write", {"file_path": f"m{n}.py", "content": "x = 1"}, "ok",
                               files={f"m{n}.py": "x = 1"}) for n in range(50)],
    "waits for a build": [bash("make -j2 > build.log &"), *(
        bash("sleep 60; tail -1 build.log", f"[{n * 4}%] Building CXX object", takes=60.0) for n in range(20))],
    "waits for CI": [bash("sleep 45; gh run view 17 --json status", '{"status":"in_progress"}', takes=45.0)] * 20,
    "looks for a flaky test": [bash("pytest -q test_flaky.py", f"1 passed in 0.{n}s") for n in range(20)],
    "bisects": [step for n in range(12) for step in (
        bash(f"git bisect {'bad' if n % 2 else 'good'}", f"Bisecting: {12 - n} revisions left",
             calc_py=f"content of commit {n}"), bash("pytest -q", "1 failed" if n % 2 else "1 passed"))],
    "reads again after a compaction": [
        read(f"{name}.py", f"class {name}{name}:") for _ in range(2) for name in "abcdefghijklmnop"],
    "formats each file": [bash(f"clang-format -i f{n}.c", **{f"f{n}_c": "formatted"}) for n in range(30)],
    "runs test after test": [bash(f"pytest -q tests/test_{name}.py", "3 passed") for name in (
        "calc", "cli", "core", "disk", "edge", "file", "grid", "host", "item", "join", "key", "list", "map", "net",
        "open", "path", "queue", "ring")],
    "tunes a constant": [step for n in range(30) for step in (
        edit("config.py", f"LIMIT = {n}"), bash("python bench.py", f"{100 + n} ms"))],
    "resolves conflicts": [step for n in range(15) for step in (
        bash("git rebase --continue", f"CONFLICT (content): Merge conflict in part{chr(97 + n)}.py"),
        edit(f"part{chr(97 + n)}.py", "both sides"), bash("git add -A"))],
    "debugs with prints": [*(step for n in range(20) for step in (
        edit("calc.py", f"print({n}); def add(a, b): return a - b"),
        bash("python calc.py", f"value of {chr(97 + n)} is wrong"))), edit("calc.py", SUBTRACTS)],
    "searches a code base": [Step("Grep", {"pattern": f"def .*{word(n)}"}, f"src/{word(n)}.py:12: def use_{word(n)}():")
                             for n in range(40)],
    "installs packages": [
        step for name in ("attrs", "click", "flask", "httpx", "idna", "jinja2", "mypy", "numpy", "pandas", "rich")
        for step in (bash(f"pip install {name}", f"Collecting {name}\n  Downloading {name}-1.0-py3-none-any.whl\n"
                                                 f"Successfully installed {name}-1.0", takes=8.0),
                     bash(f"python -c 'import {name}'"))],
    "migrates step by step": [step for n in range(25) for step in (
        bash("./manage.py makemigrations", "1 migration made", **{f"migrations/{n:04}_sql": f"ADD c{n}"}),
        bash("./manage.py migrate", "OK"))],
    "commits often": [step for n in range(25) for step in (
        edit("calc.py", f"def f{n}(): pass"), bash(f"git commit -qam 'Step {n}'"), bash("git status --short"))],
    "keeps a list of tasks": [step for n in range(15) for step in (
        Step("TodoWrite", {"todos": f"{n} done"}, "Todos have been modified"),
        Step("TodoWrite", {"todos": f"{n + 1} in progress"}, "Todos have been modified"),
        edit("calc.py", f"def g{n}(): pass"))],
    "reverts what did not help": [step for n in range(12) for step in (
        edit("calc.py", f"def add(a, b): return cache_{n}(a, b)"), bash("python bench.py", "no faster"),
        bash("git checkout calc.py", calc_py=SUBTRACTS))],
    "gets no output from its tools": [Step("read", {"path": f"src/part_{word(n)}.py"}) for n in range(40)],
}


@pytest.mark.parametrize("steps", HONEST.values(), ids=HONEST.keys())
def test_an_honest_long_session_is_never_interrupted(steps: list[Step]) -> None:
    session = Session()
    for step in steps:
        session.play(step)
    assert session.found == ""
    assert len(HONEST) == 20


def test_the_same_call_is_a_loop_the_nth_time_and_counts_if_switched_off() -> None:
    session, off = Session(4), Session(None)
    for number in range(50):
        assert (session.found == "") == (number < 4)
        session.play(pytest_fails())
        off.play(pytest_fails())
    assert session.found == ("its last 3 calls brought nothing new, neither a result nor a change of the worktree that "
                             "had not been there before; the last one: Bash pytest -q")
    assert (off.found, off.detector.repeated) == ("", 49)


def test_responses_without_any_change_are_counted() -> None:
    state = [0]
    detector = LoopDetector(None, 8, lambda: state[0])
    answer = {"kind": "usage", "final": True}
    assert not any(detector.observe(answer) for _ in range(7))
    state[0] = 1
    assert not any(detector.observe(answer) for _ in range(8))
    said = [detector.observe(answer) for _ in range(8)]
    assert "it made 8 responses without changing anything" in said


def test_a_loop_is_warned_of_once_and_interruptions_are_bounded_despite_progress() -> None:
    loop = ConnectionEnd(TroubleKind.LOOP, 1.0, "it made the same call 4 times")
    assert policy.decide([loop]).prompt is Prompt.LOOP
    second = policy.decide([loop, ConnectionEnd(policy.STOPPED, 2.0), loop])
    assert (second.step, second.success) == (NextStepKind.FINISH, False)
    assert second.reason == "loop: it made the same call 4 times, again after a warning"
    hang = ConnectionEnd(TroubleKind.HANG, 1.0, "nothing was received for 240 s", progress=True)
    assert policy.decide([hang] * 8).step is NextStepKind.WAIT
    assert policy.decide([hang] * 9).reason == "hang 9 times in one attempt: nothing was received for 240 s"
    assert summarize([hang] * 3) == "interrupted: nothing was received for 240 s (3 times of 8)"
    assert summarize([hang, ConnectionEnd(policy.REPORTED, 2.0, "done", success=True)]) == ""
