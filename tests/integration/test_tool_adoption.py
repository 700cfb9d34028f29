"""A tool that ended after its engine was killed: its recorded exit code counts, and it does not run again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from garrison.pipeline import RunResult, run
from support import wait_for


def resume_after_kill(folder: Path, graph: str, moment: Path) -> RunResult:
    """Run a graph, kill its engine once the file `moment` is written, and resume it here."""
    engine = os.fork()
    if engine == 0:
        try:
            run(graph, run_dir=folder / "run", tree=folder)
        finally:
            os._exit(0)
    (folder / "engine").write_text(f"{engine}\n")
    wait_for(f"{moment} is written", lambda: moment.exists() and moment.read_text().endswith("\n"))
    os.kill(engine, signal.SIGKILL)
    os.waitpid(engine, 0)
    return run(run_dir=folder / "run", resume=True)


@pytest.mark.parametrize(("code", "status"), [(0, "success"), (3, "fail")])
def test_a_tool_that_ended_is_adopted_and_not_repeated(code: int, status: str, tmp_path: Path) -> None:
    """The engine is stopped while its tool ends, and then killed: it has not seen the end."""
    command = ("while ! test -s engine; do sleep 0.05; done; echo ran >> ledger; echo last; "
               f"kill -STOP $(cat engine); exit {code}")
    graph = f'''digraph {{ start [shape=Mdiamond]; x [shape=Msquare]; start -> t -> x
        t [shape=parallelogram, script="{command}", side_effecting=true, on_resume=fail] }}'''
    result = resume_after_kill(tmp_path, graph, tmp_path / "run/t/exit")
    assert (result.status, result.context["tool.exit_code"], result.context["tool.last_line"]) == (status, code, "last")
    assert (tmp_path / "ledger").read_text() == "ran\n"


def test_the_exit_code_of_an_earlier_visit_is_not_adopted(tmp_path: Path) -> None:
    """The tool of the second visit is at work when its engine is killed: it runs again."""
    command = ("echo ran >> ledger; test $(wc -l < ledger) = 1 || { while ! test -s engine; do sleep 0.05; done; "
               "test $(wc -l < ledger) = 3 || { echo > at-work; sleep 60; }; }")
    graph = f'''digraph {{ start [shape=Mdiamond]; x [shape=Msquare]; c [shape=diamond]; start -> t -> n -> c
        t [shape=parallelogram, tool_command="{command}"]; n [shape=parallelogram, tool_command="wc -l < ledger"]
        c -> t [condition="context.tool_stdout < 2"]; c -> x [condition="context.tool.output > 1"] }}'''
    result = resume_after_kill(tmp_path, graph, tmp_path / "at-work")
    assert result.status == "success"
    assert (tmp_path / "ledger").read_text() == "ran\n" * 3
