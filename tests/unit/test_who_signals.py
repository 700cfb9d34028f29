"""Only what is ours is touched: a process is signalled through the homes below, or as a child object of one's own.

`processes.send` and the sweep of `kill_tree` verify by pidfd and start ticks that the process is still the one that was
meant, and `processes.signal_group` that a child has not been collected. Anywhere else no number is signalled but one's
own or one's parent's; `Popen` knows by itself whether its child is gone. Calls are told by what they call, not by where
they stand.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import garrison
from garrison.sandbox import container_launcher
from garrison.system import process_control, processes, tmux

ROOTS = (Path(garrison.__file__).parent, Path(__file__).parents[2] / "examples" / "demo" / "garrison_demo")
HOMES = {inspect.getsourcefile(home) for home in (processes, process_control, container_launcher)}
"""Where numbers are signalled, once each is verified; a launcher signals a child that only it can collect."""
RAW = frozenset({"os.kill", "os.killpg", "signal.pidfd_send_signal", "signal.pthread_kill",
                 *(f"psutil.Process.{act}" for act in ("kill", "terminate", "send_signal", "suspend", "resume"))})
MENTIONED = re.compile("kill|psutil|pidfd_send_signal")
"""A part of each of them."""
OWN = frozenset({"os.getpid", "os.getppid"})
PROGRAMS = ("kill-server", "kill-session", "kill-pane", "kill-window", "pkill", "killall")
TMUX = inspect.getsourcefile(tmux)
"""The one that may end sessions: by our own socket, by id, on the very server that made them."""


def imported(tree: ast.AST) -> dict[str, str]:
    """Return what each imported name of a module stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({each.asname or each.name: each.name for each in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    return names


def qualified(node: ast.AST, names: dict[str, str]) -> str:
    """Return the qualified name of what an expression refers to, '' for none that an import gives."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Call):
        return qualified(node.func, names)
    return f"{qualified(node.value, names)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def signals(text: str, *, programs: bool = True) -> Iterator[str]:
    """Yield each place of a source that signals a process by a number that is not its own, or by a program."""
    if not MENTIONED.search(text):
        return  # most modules
    tree = ast.parse(text)
    names = imported(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and qualified(node.func, names) in RAW and not _is_harmless(node, names):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in called and qualified(node, names) in RAW:
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)} is passed on"
        elif programs and isinstance(node, ast.Constant) and isinstance(node.value, str) and any(
                node.value.startswith(program) or f" {program} " in node.value for program in PROGRAMS):
            yield f"{node.lineno}: {node.value[:80]!r}"


def _is_harmless(call: ast.Call, names: dict[str, str]) -> bool:
    """Return whether a call signals its own process or its parent, or sends nothing."""
    target, number = [*call.args, None, None][:2]
    asked = [target.body, target.orelse] if isinstance(target, ast.IfExp) else [target]
    is_own = all(isinstance(each, ast.Call) and qualified(each, names) in OWN for each in asked)
    return is_own or (isinstance(number, ast.Constant) and number.value == 0)


def test_no_process_is_signalled_by_a_number_that_nobody_verified() -> None:
    found = [f"{path.name}:{place}" for root in ROOTS for path in sorted(root.rglob("*.py")) if str(path) not in HOMES
             for place in signals(path.read_text(encoding="utf-8"), programs=str(path) != TMUX)]
    assert found == []


@pytest.mark.parametrize("text", [
    "import os\nos.kill(pid, 9)", "import os as system\nsystem.killpg(group, 15)", "from os import kill\nkill(1, 9)",
    "def f():\n    from signal import pidfd_send_signal as send\n    send(fd, 9)",
    "import psutil\npsutil.Process(7).kill()", "import os\nmap(os.kill, pids)",
    "import subprocess\nsubprocess.run(['pkill', name])", "x = 'tmux kill-server now'",
    "import os\nos.kill(os.getpid() if own else pid, 9)",
])
def test_a_signal_to_a_number_is_found_however_it_is_written(text: str) -> None:
    assert len(list(signals(text))) == 1


@pytest.mark.parametrize("text", [
    "import os\nos.kill(os.getpid(), 9)", "import os\nos.kill(os.getppid() if up else os.getpid(), 9)",
    "import os\nos.kill(pid, 0)", "child.kill()", "self.process.send_signal(2)", "def kill(): ...\nkill()",
])
def test_what_reaches_nobody_else_is_no_signal_to_others(text: str) -> None:
    assert list(signals(text)) == []
