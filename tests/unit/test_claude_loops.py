"""Loop detector: which calls go round, and when a session is idle; what is shown of trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from garrison.agents.conversation import policy
from garrison.agents.conversation.loop_detector import MAX_REPEATS, LoopDetector
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind, Prompt
from garrison.agents.conversation.trouble import summarize
from garrison.agents.trouble import TroubleKind


class Session:
    """Session at work on files that are a dictionary, watched by a detector."""

    def __init__(self, repeats: int | None = MAX_REPEATS, idle: int | None = None) -> None:
        self.files = {"calc.py": "def add(a, b): return a - b"}
        self.now = 0.0
        self.made = 0
        self.found = ""
        self.detector = LoopDetector(repeats, idle, lambda: frozenset(self.files.items()), lambda: self.now)

    def call(self, tool: str, result: str, *, takes: float = 1.0, **arguments: str) -> None:
        self.made += 1
        call: dict[str, Any] = {"kind": "tool", "id": str(self.made), "name": tool, "input": arguments}
        assert self.detector.observe(call) == ""
        self.now += takes
        self.found = self.found or self.detector.observe(
            {"kind": "tool_result", "id": str(self.made), "text": result, "error": False})

    def bash(self, command: str, result: str = "", **more: Any) -> None:
        self.call("Bash", result, command=command, **more)

    def edit(self, name: str, content: str) -> None:
        self.files[name] = content
        self.call("Edit", f"The file {name} has been updated.\n    1\t{content}", file_path=name, new_string=content)


RED = "FAILED test_calc.py::test_add - assert -1 == 3\n1 failed in {}s"


def same_call(session: Session, number: int) -> None:
    session.bash("pytest -q", RED.format("0.11"))


def other_descriptions(session: Session, number: int) -> None:
    word = ("again", "once more", "carefully", "with luck", "finally")[number % 5]
    session.bash(f"# run the tests {word}\npytest -q  # {word}", RED.format(f"0.{number}"), description=f"Run {word}")


def edit_and_revert(session: Session, number: int) -> None:
    session.edit("calc.py", "def add(a, b): return a - b" if number % 2 else "def add(a, b): return b - a")
    session.bash("pytest -q", RED.format("0.11"))


def notes_between(session: Session, number: int) -> None:
    word = ("think", "plan", "retry", "examine", "ponder")[number % 5]
    session.call("mcp__garrison__save_notes", "saved", text=f"I {word} about attempt {number}")
    session.call("mcp__garrison__update_phase", "noted", phase=word)
    session.bash("pytest -q", RED.format(f"0.{number}"))


def empty_commits(session: Session, number: int) -> None:
    word = ("wip", "try", "progress", "more", "checkpoint")[number % 5]
    session.bash(f"git commit -q --allow-empty -m '{word} {number}'", f"[work {number:07x}] {word} {number}")
    session.bash("git log -1 --oneline", f"{number:07x} {word} {number}")


def files_outside(session: Session, number: int) -> None:
    name = f"/tmp/scratch-{'abcdefghij'[number % 10]}{number}.md"
    session.call("Write", f"File created successfully at: {name}", file_path=name, content=f"idea {number}")
    session.bash("pytest -q", RED.format("0.2"))


def looks_for_what_is_not_there(session: Session, number: int) -> None:
    where = (".", "src", "tests", "lib", "/usr/include")[number % 5]
    session.bash(f"find {where} -name config_v{number}.yaml")
    session.call("Grep", "No files found", pattern="load_config", path=where)


def two_by_turns(session: Session, number: int) -> None:
    session.call("Read", "     1\tdef add(a, b): return a - b", file_path="calc.py")
    session.bash("ls -la", "total 8\n-rw-r--r-- 1 u u 28 Nov 28 10:00 calc.py")
    session.bash("git log --oneline | head -3", "a1b2c3d Begin")


LOOPS = (same_call, other_descriptions, edit_and_revert, notes_between, empty_commits, files_outside,
         looks_for_what_is_not_there, two_by_turns)


@pytest.mark.parametrize("step", LOOPS, ids=[one.__name__ for one in LOOPS])
def test_a_realistic_loop_is_found_within_25_calls(step: Callable[[Session, int], None]) -> None:
    session, number = Session(), 0
    while not session.found and session.made < 25:
        step(session, number)
        number += 1
    assert "brought nothing new" in session.found
    assert session.made <= 25


def edits_until_green(session: Session) -> None:
    for number in range(40):
        session.edit("calc.py", f"def add(a, b): return a - b  # variant {number}")
        session.bash("pytest -q", RED.format("0.11"))


def reads_many_files(session: Session) -> None:
    for number in range(60):
        word = f"{chr(97 + number % 26)}{chr(97 + number // 26)}"
        session.call("Read", f"     1\tclass {word.title()}:\n     2\t    pass", file_path=f"src/{word}.py")


def writes_many_files(session: Session) -> None:
    for number in range(50):
        session.files[f"m{number}.py"] = "x = 1"
        session.call("Write", "ok", file_path=f"m{number}.py", content="x = 1")


def waits_for_a_build(session: Session) -> None:
    session.bash("make -j2 > build.log &")
    for number in range(20):
        session.bash("sleep 60; tail -1 build.log", f"[{number * 4}%] Building CXX object", takes=60.0)


def waits_for_ci(session: Session) -> None:
    for _ in range(20):
        session.bash("sleep 45; gh run view 17 --json status", '{"status":"in_progress"}', takes=45.0)


def looks_for_a_flaky_test(session: Session) -> None:
    for number in range(20):
        session.bash("pytest -q test_flaky.py", f"1 passed in 0.{number}s")


def bisects(session: Session) -> None:
    for number in range(12):
        session.files["calc.py"] = f"content of commit {number}"
        session.bash(f"git bisect {'bad' if number % 2 else 'good'}", f"Bisecting: {12 - number} revisions left")
        session.bash("pytest -q", "1 failed" if number % 2 else "1 passed")


def reads_again_after_a_compaction(session: Session) -> None:
    for _ in range(2):
        for name in "abcdefghijklmnop":
            session.call("Read", f"     1\tclass {name}{name}:", file_path=f"{name}.py")


def formats_each_file(session: Session) -> None:
    for number in range(30):
        session.files[f"f{number}.c"] = "formatted"
        session.bash(f"clang-format -i f{number}.c")


def runs_test_after_test(session: Session) -> None:
    for name in ("calc", "cli", "core", "disk", "edge", "file", "grid", "host", "item", "join", "key", "list", "map",
                 "net", "open", "path", "queue", "ring"):
        session.bash(f"pytest -q tests/test_{name}.py", "3 passed")


def tunes_a_constant(session: Session) -> None:
    for number in range(30):
        session.edit("config.py", f"LIMIT = {number}")
        session.bash("python bench.py", f"{100 + number} ms")


def resolves_conflicts(session: Session) -> None:
    for number in range(15):
        session.bash("git rebase --continue", f"CONFLICT (content): Merge conflict in part{chr(97 + number)}.py")
        session.edit(f"part{chr(97 + number)}.py", "both sides")
        session.bash("git add -A")


def debugs_with_prints(session: Session) -> None:
    for number in range(20):
        session.edit("calc.py", f"print({number}); def add(a, b): return a - b")
        session.bash("python calc.py", f"value of {chr(97 + number)} is wrong")
    session.edit("calc.py", "def add(a, b): return a - b")


def searches_a_code_base(session: Session) -> None:
    for number in range(40):
        word = f"{chr(97 + number % 26)}{chr(97 + number // 26)}"
        session.call("Grep", f"src/{word}.py:12: def use_{word}():", pattern=f"def .*{word}")


def installs_packages(session: Session) -> None:
    for name in ("attrs", "click", "flask", "httpx", "idna", "jinja2", "mypy", "numpy", "pandas", "rich"):
        session.bash(f"pip install {name}", f"Collecting {name}\n  Downloading {name}-1.0-py3-none-any.whl\n"
                                            f"Successfully installed {name}-1.0", takes=8.0)
        session.bash(f"python -c 'import {name}'")


def migrates_step_by_step(session: Session) -> None:
    for number in range(25):
        session.files[f"migrations/{number:04}.sql"] = f"ALTER TABLE t ADD c{number} int"
        session.bash("./manage.py makemigrations", "1 migration made")
        session.bash("./manage.py migrate", "OK")


def commits_often(session: Session) -> None:
    for number in range(25):
        session.edit("calc.py", f"def f{number}(): pass")
        session.bash(f"git commit -qam 'Step {number}'")
        session.bash("git status --short")


def keeps_a_list_of_tasks(session: Session) -> None:
    for number in range(15):
        session.call("TodoWrite", "Todos have been modified", todos=f"{number} done")
        session.call("TodoWrite", "Todos have been modified", todos=f"{number + 1} in progress")
        session.edit("calc.py", f"def g{number}(): pass")


def reverts_what_did_not_help(session: Session) -> None:
    for number in range(12):
        session.edit("calc.py", f"def add(a, b): return cache_{number}(a, b)")
        session.bash("python bench.py", "no faster")
        session.bash("git checkout calc.py")
        session.files["calc.py"] = "def add(a, b): return a - b"


def is_told_nothing_by_its_tools(session: Session) -> None:
    for number in range(40):
        session.call("read", "", path=f"src/part_{chr(97 + number % 26)}{chr(97 + number // 26)}.py")


HONEST = (edits_until_green, reads_many_files, writes_many_files, waits_for_a_build, waits_for_ci,
          looks_for_a_flaky_test, bisects, reads_again_after_a_compaction, formats_each_file, runs_test_after_test,
          tunes_a_constant, resolves_conflicts, debugs_with_prints, searches_a_code_base, installs_packages,
          migrates_step_by_step, commits_often, keeps_a_list_of_tasks, reverts_what_did_not_help,
          is_told_nothing_by_its_tools)


@pytest.mark.parametrize("play", HONEST, ids=[one.__name__ for one in HONEST])
def test_an_honest_long_session_is_never_interrupted(play: Callable[[Session], None]) -> None:
    session = Session()
    play(session)
    assert session.found == ""
    assert len(HONEST) == 20


def test_the_same_call_is_a_loop_the_nth_time_and_counts_if_switched_off() -> None:
    session, off = Session(4), Session(None)
    for number in range(50):
        assert (session.found == "") == (number < 4)
        same_call(session, number)
        same_call(off, number)
    assert session.found == ("its last 3 calls brought nothing new, neither a result nor a change of the worktree that "
                             "had not been there before; the last one: Bash pytest -q")
    assert (off.found, off.detector.repeated) == ("", 49)


def test_responses_without_any_change() -> None:
    state = [0]
    detector = LoopDetector(None, 8, lambda: state[0])
    answer = {"kind": "usage", "final": True}
    assert not any(detector.observe(answer) for _ in range(7))
    state[0] = 1
    assert not any(detector.observe(answer) for _ in range(8))
    said = [detector.observe(answer) for _ in range(8)]
    assert "it made 8 responses without changing anything" in said


def test_it_is_told_once_and_then_failed() -> None:
    loop = ConnectionEnd(TroubleKind.LOOP, 1.0, "it made the same call 4 times")
    assert policy.decide([loop]).prompt is Prompt.LOOP
    second = policy.decide([loop, ConnectionEnd(policy.STOPPED, 2.0), loop])
    assert (second.step, second.success) == (NextStepKind.FINISH, False)
    assert second.reason == "loop: it made the same call 4 times, again after a warning"


def test_interruptions_have_a_bound_whatever_the_progress() -> None:
    hang = ConnectionEnd(TroubleKind.HANG, 1.0, "nothing was received for 240 s", progress=True)
    assert policy.decide([hang] * 8).step is NextStepKind.WAIT
    assert policy.decide([hang] * 9).reason == "hang 9 times in one attempt: nothing was received for 240 s"
    assert summarize([hang] * 3) == "interrupted: nothing was received for 240 s (3 times of 8)"
    assert summarize([hang, ConnectionEnd(policy.REPORTED, 2.0, "done", success=True)]) == ""
