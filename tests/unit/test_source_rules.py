"""Rules of the source: how agents' files are touched, processes signalled and children waited for, and what tests use.

Each file is parsed once for all rules.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

import garrison
from garrison.sandbox import container_launcher, private_files
from garrison.system import process_control, processes, tmux

SOURCE = Path(__file__).resolve().parents[2] / "src/garrison"
ACTS = {"read_text", "read_bytes", "write_text", "write_bytes", "open", "touch", "mkdir", "unlink", "rename", "replace",
        "chmod", "symlink_to", "rmdir", "rmtree", "copy", "copy2", "copyfile", "copytree", "move", "glob", "rglob",
        "iterdir", "walk", "scandir", "listdir", "utime", "link"}
SHAPED = re.compile(r"\b(worktree|tree|exchange|common|slot|result_file)\b")
"""Names of paths that an agent can shape."""
ALLOWED = {
    "cli/pipeline_worktree": "names alone, in a folder of the person's; a walk follows no link",
    "cli/spawn": "the folder above a worktree that does not exist yet",
    "doctor/confinement": "folders of the trial, before it begins",
    "doctor/worktrees": "the repository's own git directory",
    "merge/setup_output": "names and times alone; what they lead to goes through the door",
    "pipeline/handlers/installed": "runs inside, as the agent",
    "run/git_record": "the repository's own git directory",
    "launch/launch": "the repository's own git directory",
    "hosts/host_run": "the host's own repository",
    "node/worktree": "the folder above a worktree",
    "sandbox/git_view": "a view that is made and not yet shown to anybody; the repository's own HEAD",
    "system/git/commits": "the repository's own git directory",
    "system/git/damage": "the repository's own git directory",
    "system/git/repository": "the repository's own git directory",
    "system/git/rescues": "the repository's own git directory",
    "system/git/submodules": "mirrors of garrison's own",
    "system/git/worktrees": "the repository's own git directory; a walk follows no link, and names alone decide there",
}
"""Module → touched files that no agent can shape."""


def nodes_of(text: str) -> list[ast.AST]:
    """Return what `ast.walk` yields except contexts (`ast.Load`), in half its time."""
    found: list[ast.AST] = [ast.parse(text)]
    for node in found:  # while it grows
        for name in node._fields:
            value = getattr(node, name, None)
            for each in value if type(value) is list else (value,):
                if isinstance(each, ast.AST) and name != "ctx":
                    found.append(each)
    return found


def touches(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield each call that touches a path that an agent can shape."""
    for node in nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ACTS):
            continue
        owner = ast.unparse(node.func.value)
        words = f"{owner} {ast.unparse(node.args[0])}" if owner in ("os", "shutil") and node.args else owner
        if SHAPED.search(words) and owner != "untrusted":
            yield f"{node.lineno}: {ast.unparse(node)[:80]}"


def unreachable(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield unreachable statements."""
    for node in nodes:
        if not isinstance(getattr(node, "body", None), list):
            continue
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for before, after in pairwise(block or ()):
                if isinstance(before, ast.Return | ast.Raise | ast.Continue | ast.Break):
                    yield f"{after.lineno}: {ast.unparse(after)[:80]}"


# A process is signalled through the modules below, or as a child object of its parent. `processes.send` and the sweep
# of `kill_tree` verify by pidfd and start ticks that the process is still the intended one, and
# `processes.signal_group` that a child has not been collected. Elsewhere only the own pid and that of the parent are
# signalled; `Popen` knows whether its child is gone. Calls are recognised by their qualified name.


ROOTS = (Path(garrison.__file__).parent, Path(__file__).parents[2] / "examples" / "demo" / "garrison_demo")
HOMES = {inspect.getsourcefile(home) for home in (processes, process_control, container_launcher, private_files)}
"""Modules that signal verified pids: a launcher signals a child that only it can collect, a walk for private files its
own child by the descriptor from the fork."""
RAW = frozenset({"os.kill", "os.killpg", "signal.pidfd_send_signal", "signal.pthread_kill",
                 *(f"psutil.Process.{act}" for act in ("kill", "terminate", "send_signal", "suspend", "resume"))})
MENTIONED = re.compile("kill|psutil|pidfd_send_signal")
"""A part of each."""
OWN = frozenset({"os.getpid", "os.getppid"})
PROGRAMS = ("kill-server", "kill-session", "kill-pane", "kill-window", "pkill", "killall")
TMUX = inspect.getsourcefile(tmux)
"""The module that may end sessions: by our own socket, by id, on the server that made them."""


def imported(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Return the qualified name of each imported name of a module."""
    names = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update({each.asname or each.name: each.name for each in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    return names


def qualified(node: ast.AST, names: dict[str, str]) -> str:
    """Return the qualified name of an expression, '' if it comes from no import."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Call):
        return qualified(node.func, names)
    return f"{qualified(node.value, names)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def signals(nodes: Sequence[ast.AST], *, programs: bool = True) -> Iterator[str]:
    """Yield each place that signals a process by a pid other than its own, or by a program."""
    names = imported(nodes)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Call) and qualified(node.func, names) in RAW and not _is_harmless(node, names):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in called and qualified(node, names) in RAW:
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)} is passed on"
        elif programs and isinstance(node, ast.Constant) and isinstance(node.value, str) and any(
                node.value.startswith(program) or f" {program} " in node.value for program in PROGRAMS):
            yield f"{node.lineno}: {node.value[:80]!r}"


def _is_harmless(call: ast.Call, names: dict[str, str]) -> bool:
    """Return whether a call signals its own process or its parent, or sends no signal."""
    target, number = [*call.args, None, None][:2]
    asked = [target.body, target.orelse] if isinstance(target, ast.IfExp) else [target]
    is_own = all(isinstance(each, ast.Call) and qualified(each, names) in OWN for each in asked)
    return is_own or (isinstance(number, ast.Constant) and number.value == 0)


def waits_for_any(nodes: Sequence[ast.AST]) -> bool:
    """Return whether a source waits for a child without naming it, and so might collect another one's."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = ast.unparse(node.args[0]) if node.args and node.func.attr.startswith("wait") else ""
            if (node.func.attr == "waitpid" and first in ("-1", "0")) or node.func.attr in ("wait3", "wait4") \
                    or first.endswith("P_ALL") or (node.func.attr == "wait" and ast.unparse(node.func) == "os.wait"):
                return True
    return False


@pytest.mark.parametrize(("text", "count"), [
    ("import os\nos.kill(pid, 9)", 1), ("import os as system\nsystem.killpg(group, 15)", 1),
    ("from os import kill\nkill(1, 9)", 1),
    ("def f():\n    from signal import pidfd_send_signal as send\n    send(fd, 9)", 1),
    ("import psutil\npsutil.Process(7).kill()", 1), ("import os\nmap(os.kill, pids)", 1),
    ("import subprocess\nsubprocess.run(['pkill', name])", 1), ("x = 'tmux kill-server now'", 1),
    ("import os\nos.kill(os.getpid() if own else pid, 9)", 1), ("import os\nos.kill(os.getpid(), 9)", 0),
    ("import os\nos.kill(os.getppid() if up else os.getpid(), 9)", 0), ("import os\nos.kill(pid, 0)", 0),
    ("child.kill()", 0), ("self.process.send_signal(2)", 0), ("def kill(): ...\nkill()", 0)])
def test_a_signal_to_a_foreign_pid_is_found_however_it_is_written(text: str, count: int) -> None:
    assert len(list(signals(nodes_of(text)))) == count


# ---- no test imports, reads or replaces a private name
#
# A private name starts with an underscore and is defined in src/garrison. An object may use its own (`self._x`), and a
# module what it defines itself.


TESTS = Path(__file__).resolve().parents[1]
PRIVATE = re.compile(r"(.*\.)?_[a-zA-Z]\w*")
ITSELF = frozenset({"self", "cls", "super()"})
PUBLIC = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Public names of a NamedTuple."""
REPLACERS = frozenset({"setattr", "delattr", "getattr", "object", "patch"})


def is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None


def defined(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, constants and fields."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) \
                    | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield from [name] if is_private(name) else []


def accesses(nodes: Sequence[ast.AST], of_source: frozenset[str]) -> Iterator[str]:
    """Yield the lines of a test module that use a private name of another module."""
    theirs = of_source.difference(defined(nodes), PUBLIC)
    foreign = {each.asname or each.name for node in nodes if isinstance(node, ast.Import)
               for each in node.names if not each.name.startswith("garrison")}
    for node in nodes:
        match node:
            case ast.ImportFrom(names=names) if any(is_private(each.name) for each in names):
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Attribute(value=value, attr=name) if name in theirs and ast.unparse(value) not in ITSELF | foreign:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args) if name in REPLACERS:
                yield from (f"{node.lineno}: {ast.unparse(node)}" for each in args if isinstance(each, ast.Constant)
                            and is_private(str(each.value)) and str(each.value).rpartition(".")[2] in theirs)


@pytest.mark.parametrize(("text", "count"), [
    ("from garrison.records.atomic import _POLL", 1), ("from forge_driver import _anything", 1),
    ("atomic._POLL", 1), ("made()._home", 1), ("self.work._home", 1), ("self._home; cls._home; super()._home", 0),
    ("import os; os._exit(1)", 0), ("app.screen._compositor", 0), ("made._replace(a=1)", 0),
    ("monkeypatch.setattr(atomic, '_POLL', 1)", 1), ("monkeypatch.setattr('garrison.records.atomic._POLL', 1)", 1),
    ("mock.patch.object(made, '_home')", 1), ("monkeypatch.setattr(atomic, 'POLL', 1)", 0),
    ("def _home(): ...\nmodule._home", 0)])
def test_an_access_to_a_private_name_is_found(text: str, count: int) -> None:
    assert len(list(accesses(nodes_of(text), frozenset({"_POLL", "_home", "_replace"})))) == count


REPLACED = 2
"""Number of constants of the source that tests replace instead of passing a parameter: only ever lowered."""
REPLACES = re.compile(r"setattr\([^()]*[\"'.][A-Z][A-Z_]+[\"']")
"""A part of each call that replaces one."""


def replaced_constants(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the lines of a test module that replace a constant of a module."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            names = [str(each.value) for each in node.args[:2] if isinstance(each, ast.Constant)]
            if names and re.fullmatch(r"(.*\.)?[A-Z][A-Z_]+", names[0]) and ast.unparse(node.args[0]) != "support":
                yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(("text", "count"), [
    ("monkeypatch.setattr(gate, 'PROXY_AFTER', 0.0)", 1), ("monkeypatch.setattr('garrison.gate.PROXY_AFTER', 0.0)", 1),
    ("monkeypatch.setattr(os, 'fdatasync', f)", 0), ("monkeypatch.setattr(gate, 'read', f)", 0)])
def test_a_replaced_constant_is_found(text: str, count: int) -> None:
    assert len(list(replaced_constants(nodes_of(text)))) == count


# ---- no code reads from prose what happened


WORDS = frozenset({"reason", "why", "note", "notes", "detail", "hint", "stop_reason", "failure_reason"})
"""Names of prose in records and values, next to the value that says what happened."""
READERS = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "count"})
CUTTERS = frozenset({"partition", "rpartition", "split", "rsplit"})
PATTERNS = frozenset({"match", "search", "fullmatch", "findall", "finditer"})
EXCEPTIONS = {
    "records/earlier.py": "it is the one module that reads words of earlier versions",
    "testing/checker/promises.py": "it imports nothing of the engine, and reads journals of earlier versions itself",
    "forge/": "these words are a forge's answers, each read by the forge's own module",
    "agents/claude/client.py": "the stop reason is a code of the model's API",
}


def is_words(node: ast.expr) -> bool:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(str(name))) | ast.Call(
                ast.Attribute(attr="get"), [ast.Constant(str(name)), *_]):
            return name.lstrip("_") in WORDS
        case ast.Call(ast.Attribute(value, "strip" | "lower" | "casefold" | "upper")) | ast.Call(
                ast.Name("str"), [value]):
            return is_words(value)
    return False


def is_text(node: ast.expr) -> bool:
    """Return whether an operand is a literal text: not '', and no member of an enumeration."""
    match node:
        case ast.Constant(str(text)):
            return bool(text)
        case ast.JoinedStr():
            return True
        case ast.Name(name):
            return name.isupper()
        case ast.Attribute(ast.Name(module), name):
            return name.isupper() and module.islower()
        case ast.Tuple(elements) | ast.Set(elements) | ast.List(elements):
            return any(map(is_text, elements))
    return False


def reads_words(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left, operators, others):
            operands = list(pairwise([left, *others]))
            return any((is_words(one) and is_text(other)) or (is_text(one) and is_words(other))
                       for (one, other), operator in zip(operands, operators, strict=True)
                       if isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)))
        case ast.Call(ast.Attribute(value, name), arguments) if name in READERS and is_words(value):
            return bool(arguments)
        case ast.Call(ast.Attribute(value, name), [ast.Constant(text), *_]) if name in CUTTERS and is_words(value):
            return text not in ("\n", None)
        case ast.Call(ast.Attribute(_, name), arguments) if name in PATTERNS:
            return any(map(is_words, arguments))
        case ast.Match(subject):
            return is_words(subject)
    return False


def words_read(nodes: Sequence[ast.AST]) -> Iterator[str]:
    return (f"{node.lineno}" for node in nodes
            if isinstance(node, (ast.Compare, ast.Call, ast.Match)) and reads_words(node))


@pytest.mark.parametrize(("is_reading", "code"), [*((True, code) for code in (
    'identity.reason == "done"', "self._stop_reason != TERMINAL_GONE", 'why.startswith("attempt ")',
    'main.why in ("done", "failed")', '"no room" in str(error.detail)', "reason == exit_info.TERMINAL_GONE",
    'data.get("reason", "").strip() == "asked"', "re.match(GRACEFUL, start.why)", "notes.partition(';')",
    'event["why"].removeprefix("stopped; ")')), *((False, code) for code in (
        "reason.partition('\\n')[0]", 'if reason != "": pass', "before.reason != now.reason",
        "reason == Departure.DONE", 'kind == "done"', "why.split()", "self.state.troubles.get(name) != why"))])
def test_reading_prose_is_found_but_not_showing_or_comparing_it(is_reading: bool, code: str) -> None:
    assert any(words_read(nodes_of(code))) == is_reading


@dataclass
class Found:
    """Findings of each rule, by file."""

    touched: dict[str, list[str]] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    takers: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    accesses: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def found() -> Found:
    made = Found()
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            text, name = path.read_text(encoding="utf-8"), path.name
            nodes = nodes_of(text)
            if MENTIONED.search(text) and str(path) not in HOMES:
                made.signals += (f"{name}:{place}" for place in signals(nodes, programs=str(path) != TMUX))
            if root != SOURCE:
                continue
            inside = str(path.relative_to(SOURCE))
            if not inside.startswith(tuple(EXCEPTIONS)):
                made.words += (f"{inside}:{place}" for place in words_read(nodes))
            if touched := list(touches(nodes)):
                made.touched[str(path.relative_to(SOURCE).with_suffix(""))] = touched
            made.unreachable += (f"{name}:{place}" for place in unreachable(nodes))
            made.takers |= {name} if waits_for_any(nodes) else set()
            made.private |= set(defined(nodes))
    private = frozenset(made.private)
    for path in sorted(TESTS.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(TESTS))
        if private.isdisjoint(re.findall(r"\b_[a-zA-Z]\w*", text)) and not REPLACES.search(text):
            continue  # most files
        nodes = nodes_of(text)
        made.accesses += (f"{name}:{place}" for place in accesses(nodes, private))
        made.replaced += (f"{name}:{place}" for place in replaced_constants(nodes))
    return made


def test_paths_that_an_agent_shapes_are_touched_only_through_untrusted(found: Found) -> None:
    assert found.touched.keys() == ALLOWED.keys(), found.touched


def test_no_statement_is_unreachable(found: Found) -> None:
    """Regression: the code that ended a process had moved below a `return`."""
    assert found.unreachable == []
    assert len(list(unreachable(nodes_of("def f():\n    if x:\n        return\n        g()\n    raise y\n    z")))) == 2


def test_no_process_is_signalled_by_an_unverified_pid(found: Found) -> None:
    assert found.signals == []


def test_only_reap_waits_for_a_child_without_naming_it(found: Found) -> None:
    """The container's launcher is a separate process, with no other children than its engine's."""
    assert found.takers == {Path(processes.__file__).name, container_launcher.__name__.rpartition(".")[2] + ".py"}


def test_no_module_reads_from_prose_what_happened(found: Found) -> None:
    assert found.words == [], "record a value (garrison.ends), or read an earlier version's words in records/earlier.py"


def test_no_test_uses_a_private_name(found: Found) -> None:
    assert found.accesses == [], "use the public interface, or give it a public name if it is a separate concept"


def test_no_more_constants_are_replaced_than_before(found: Found) -> None:
    assert len(found.replaced) <= REPLACED, f"give it to the test as a parameter: {found.replaced}"
