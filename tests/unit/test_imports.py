"""Imports of processes: only an agent loads the SDK, only the screen Textual, only servers their libraries."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.traced
def test_only_the_claude_agent_loads_the_sdk_only_the_screen_of_top_textual_and_only_the_page_a_server() -> None:
    """They cost more than a second and 45 MiB, and 0.4 s; everything else of garrison, imported whole, does without."""
    code = """
import importlib, os, pkgutil, sys
import garrison
rest = []
for found in pkgutil.walk_packages(garrison.__path__, "garrison."):
    dear = found.name.startswith(("garrison.agents.acp.c", "garrison.agents.claude",
                                  "garrison.agents.graph.claude_session", "garrison.delegation", "garrison.cli.top_app",
                                  "garrison.hosts.temporal", "garrison.mcp", "garrison.acp", "garrison.web"))
    if not found.name.endswith("__main__"):
        rest.append(found.name) if dear else importlib.import_module(found.name)
print(len([name for name in sys.modules if name.startswith("garrison.")]))
heavy = {"acp", "claude_agent_sdk", "mcp", "pydantic", "anyio", "starlette", "temporalio", "textual"}
print(sorted(heavy & set(sys.modules)))
if any(name.startswith("COVERAGE_") for name in os.environ):  # which shows what they execute
    for name in rest:
        importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    count, loaded = done.stdout.splitlines()
    assert int(count) > 80
    assert loaded == "[]"


def loaded(module: str) -> set[str]:
    """Return the modules of a process that has loaded this one."""
    code = f"import sys; import garrison.processes.main, garrison.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


HOSTS = ("garrison.hosts", "temporalio")


@pytest.mark.parametrize(("module", "unneeded"), [
    ("run.launcher", "garrison.merge garrison.system.git garrison.pipeline.flow garrison.pipeline.lint"),
    ("run.guardian", "garrison.system.tmux garrison.agents.failover garrison.agents.base"),
    ("run.merge_processor", ""),
    ("node.runner", "garrison.pipeline.flow garrison.pipeline.condition garrison.agents.graph"),
    ("node.orchestrator", "garrison.merge.diff_guard garrison.merge.failing_tests garrison.pipeline.condition "
                          "garrison.pipeline.graph garrison.agents.graph.model "
                          "garrison.agents.conversation.policy garrison.merge.queue garrison.records.events"),
    ("agents.scripted", "yaml"),
    ("cli.launch", "asyncio garrison.run.guardian garrison.run.repair"),
    ("cli.status", "asyncio lark ssl"),
    ("cli.answer", "garrison.pipeline.parser garrison.pipeline.lint garrison.run.plan"),
    ("cli.why", "garrison.pipeline.parser garrison.pipeline.lint garrison.run.plan"),
])
def test_a_start_loads_only_what_it_works_with(module: str, unneeded: str) -> None:
    """Imports are most of the cost of each start: the flow machine takes a runner 25 ms, and asyncio a guardian 20.
    A single imported constant was enough. Without hosts, nothing is loaded for them.
    """
    names = {*unneeded.split(), *HOSTS}
    assert [name for name in names if importlib.util.find_spec(name) is None] == [], "moved: use its new name"
    if module.startswith(("run.", "node.")):
        names |= {"argparse", "asyncio", "click", "filelock", "lark", "libtmux", "psutil", "ssl"}
    found = loaded(module)
    assert not names & found
    assert [name for name in found if name.startswith(HOSTS)] == []


@pytest.mark.parametrize("words", [
    ("identity_registry.py", "update-liveness", "runner", "a"), ("hook_manager.py", "read", "runner", "a"),
    ("signal_protocol.py", "write", "runner-a", "guardian-g", "NODE_COMPLETE"),
])
def test_a_command_of_a_script_loads_only_what_it_works_with(words: tuple[str, ...], tmp_path: Path) -> None:
    """cron and agents call them all the time: modules that few commands need were a third of the cost of each."""
    loaded = loaded_by(words, tmp_path)
    assert "garrison.records.store" in loaded
    assert not loaded & OF_FEW
    assert not {"garrison.plugins", "garrison.records.journal"} & loaded
    assert not [name for name in loaded if name.startswith(("garrison.supervise", "garrison.merge"))]


@pytest.mark.parametrize("words", [("cli.py", "--version"), ("cli.py", "home")])
def test_the_table_of_commands_loads_no_records(words: tuple[str, ...], tmp_path: Path) -> None:
    loaded = loaded_by(words, tmp_path)
    assert "garrison.cli.main" in loaded
    assert not {*OF_FEW, "garrison.records.record", "garrison.cli.resolve"} & loaded


def test_a_status_without_a_run_at_work_loads_no_graph_no_sandbox_and_no_event_loop(tmp_path: Path) -> None:
    """The regular expressions of the dialect alone take 10 ms to compile."""
    unneeded = {"garrison.pipeline.parser", "garrison.pipeline.plan", "garrison.pipeline.lint",
                "garrison.pipeline.flow", "garrison.sandbox.network", "garrison.sandbox.rights",
                "garrison.system.event_loop"}
    assert [name for name in unneeded if importlib.util.find_spec(name) is None] == [], "moved: use its new name"
    loaded = loaded_by(("cli.py", "status"), tmp_path)
    assert "garrison.views.run_view" in loaded
    assert not {*unneeded, "ctypes", "difflib"} & loaded


OF_FEW = {"asyncio", "dataclasses", "hashlib", "importlib.metadata", "shutil", "subprocess", "tomllib",
          "garrison.cli.original_calls", "garrison.config", "garrison.tables", "garrison.spelling"}
"""Modules that few commands use."""


def loaded_by(words: tuple[str, ...], home: Path) -> set[str]:
    """Return the modules that a call of a script loads."""
    assert [name for name in OF_FEW if importlib.util.find_spec(name) is None] == [], "moved: use its new name"
    script = Path(__file__).parents[2] / "scripts" / words[0]
    done = subprocess.run([sys.executable, "-X", "importtime", script, *words[1:]], check=False, capture_output=True,
                          text=True, env={"GARRISON_HOME": str(home)})
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_a_command_ends_without_a_search_for_garbage(tmp_path: Path) -> None:
    """It would take a seventh of the time of a command; in the process of a caller garbage is still collected."""
    code = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000))
from garrison.cli.main import main
sys.argv = ["garrison", "home"]
main({})
"""
    def frozen(argument: str) -> str:
        done = subprocess.run([sys.executable, "-P", "-c", code.format(argument)], check=True, capture_output=True,
                              text=True, env={"GARRISON_HOME": str(tmp_path)})
        return done.stdout.splitlines()[-1]

    assert [frozen(""), frozen('["home"]')] == ["True", "False"]


def test_a_program_calls_its_main_at_the_end_of_its_module() -> None:
    """Code after the call does not exist while the program runs."""
    for path in (Path(__file__).parents[2] / "src").rglob("*.py"):
        _, _, rest = path.read_text(encoding="utf-8").partition('\nif __name__ == "__main__":\n')
        assert len(rest.splitlines()) <= 1, path
