"""What the light rooms load: cron and agents start doors by the minute, and pay for every import."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ROOMS = [*(f"garrison.records.{name}" for name in ("names", "record", "atomic", "blobs", "config", "journal",
                                                   "journal_past", "journal_room", "life", "identity", "hook", "store",
                                                   "signals", "wisdom", "run", "old_logs", "kept")),
         *(f"garrison.supervise.{name}" for name in ("verdict", "lease", "restart", "circuit", "step", "explain",
                                                     "observe", "stale", "start", "replace", "evidence", "watch",
                                                     "postmortem")),
         "garrison.system.clock", "garrison.system.processes", "garrison.system.procfs", "garrison.system.children",
         "garrison.system.tree", "garrison.system.disk", "garrison.errors"]
HEAVY = {"typing", "dataclasses", "inspect", "datetime", "uuid", "pathlib", "subprocess", "asyncio", "logging",
         "socket", "ssl",
         "urllib", "urllib.parse", "tempfile", "shutil", "argparse", "ctypes", "random", "click", "lark",
         "rich", "yaml",
         "platformdirs", "inotify_simple", "importlib.metadata"}


def loaded_by(code: str) -> set[str]:
    """The modules a bare Python has loaded after `code`."""
    done = subprocess.run([sys.executable, "-S", "-c", f"{code}\nimport sys; print(sorted(sys.modules))"],
                          env={"PYTHONPATH": str(SOURCE)}, check=True, capture_output=True, text=True)
    return set(ast.literal_eval(done.stdout))


@pytest.mark.parametrize("room", ROOMS)
def test_a_light_room_loads_nothing_heavy(room: str) -> None:
    loaded = loaded_by(f"import {room}")
    assert room in loaded
    assert loaded & HEAVY == set()


def test_every_light_room_is_watched() -> None:
    found = {f"garrison.{folder}.{path.stem}" for folder in ("records", "supervise")
             for path in (SOURCE / "garrison" / folder).glob("*.py") if path.stem != "__init__"}
    assert found <= set(ROOMS)


def test_only_the_claude_agent_loads_the_sdk_only_the_screen_of_top_textual_and_only_the_page_a_server() -> None:
    """They cost more than a second and 45 MiB, and 0.4 s; everything else of garrison, imported whole, does without."""
    code = """
import importlib, pkgutil, sys
import garrison
for found in pkgutil.walk_packages(garrison.__path__, "garrison."):
    dear = found.name.startswith(("garrison.agents.claude", "garrison.delegation", "garrison.cli.top_app",
                                  "garrison.web"))
    if not dear and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print(len([name for name in sys.modules if name.startswith("garrison.")]))
print(sorted({"claude_agent_sdk", "mcp", "pydantic", "anyio", "starlette", "textual"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    count, loaded = done.stdout.splitlines()
    assert int(count) > 80
    assert loaded == "[]"


def cpu_ms(code: str, rounds: int) -> float:
    """The median of what a process that runs `code` costs, in milliseconds of processor time."""
    return statistics.median(_one(["-S", "-c", code]) for _ in range(rounds))


def _one(arguments: Sequence[str]) -> float:
    pid = os.posix_spawn(sys.executable, [sys.executable, *arguments], {"PYTHONPATH": str(SOURCE)})
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return (usage.ru_utime + usage.ru_stime) * 1000


def test_reading_and_judging_leave_a_door_something() -> None:
    """A door may cost four, all it does included; so the rooms it stands on must leave it something."""
    both = "import garrison.records.store, garrison.supervise.observe"
    _one(["-S", "-c", both])  # bytecode is written
    for _attempt in range(3):
        ratio = cpu_ms(both, 7) / cpu_ms("pass", 7)
        if ratio < 3.8:
            return
    raise AssertionError(f"{ratio:.2f} times a bare Python (without site-packages)")
