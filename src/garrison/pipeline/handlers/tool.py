"""tool: a shell command in the run's tree. Exit 0 is success; nothing that it started outlives it.

The command is `tool_command` (or `command`). What it prints goes into the context as `tool.output` (stdout without its
last newline, the last 64 KiB of it), its exit code as `tool.exit_code`, and both streams into files of the attempt. A
command that wants to say more than its exit code writes an outcome's fields as JSON to GARRISON_STATUS_FILE.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError
from garrison.pipeline.graph import seconds, text
from garrison.pipeline.handlers.call import Call, failed, from_status
from garrison.pipeline.handlers.codergen import SAID, read_said
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, RETRY, SUCCESS, Outcome
from garrison.system import processes
from garrison.system.exit_info import describe_exit
from garrison.system.jobs import Job, JobResult, read_tail
from garrison.system.kill_tree import kill_tree

KEPT = 64 * 1024
"""Bytes of a command's output that go into the context; all of it is in output.log."""
_NO_COMMAND = (126, 127)
"""The shell's exit codes for a command that cannot be run or is not there; another attempt does not bring it."""
_SHELL = 'exec /bin/sh -c "$1" 2>"$2"'
"""Runs the command ($1) with its stderr in a file ($2): stdout alone is the output."""


async def tool(call: Call) -> Outcome:
    """Run the node's command."""
    command = text(call.attrs, "tool_command") or text(call.attrs, "command")
    if not command:
        return failed(f"tool {call.node.id} has no tool_command; give it one")
    with _place(call) as folder:
        result = await _run(call, command, folder)
        if isinstance(result, str):
            return failed(result)
        return _judged(call, result, folder)


@contextlib.contextmanager
def _place(call: Call) -> Iterator[Path]:
    """The attempt's folder; a temporary one for a run in memory."""
    if call.folder is not None:
        yield call.folder
        return
    with tempfile.TemporaryDirectory(prefix="garrison-tool-") as name:
        yield Path(name)


async def _run(call: Call, command: str, folder: Path) -> JobResult | str:
    """How the command ended, or why it could not be started."""
    try:
        job = Job.start(["/bin/sh", "-c", _SHELL, "sh", command, str(folder / "stderr.log")],
                        env=environment(call, folder), cwd=call.run.tree, log=folder / "output.log",
                        timeout_s=seconds(call.attrs, "timeout"))
    except GarrisonError as error:
        return str(error)
    return await finished(job)


async def finished(job: Job) -> JobResult:
    """The job's result; when cancelled, it and all it started are ended first."""
    try:
        return await _polled(job)
    except asyncio.CancelledError:
        job.kill(time.monotonic())
        await _polled(job)
        raise


async def _polled(job: Job) -> JobResult:
    while (result := job.poll(now := time.monotonic())) is None:
        wake = job.wake_at
        await readable(job.pidfd, 1.0 if wake is None else max(0.01, min(1.0, wake - now)))
    return result


async def readable(descriptor: int, limit: float) -> None:
    """Until a process has ended, `limit` seconds at most."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    own = os.dup(descriptor)
    loop.add_reader(own, woken.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await woken.wait()
    finally:
        loop.remove_reader(own)
        os.close(own)


def environment(call: Call, folder: Path) -> dict[str, str]:
    """What a command sees: the run's environment, and where it is."""
    own = {"GARRISON_PIPELINE_RUN": call.run.run, "GARRISON_PIPELINE_NODE": call.node.id,
           "GARRISON_PIPELINE_ATTEMPT": str(call.attempt), "GARRISON_PIPELINE_VISIT": str(call.visit),
           "GARRISON_STATUS_FILE": str(folder / SAID)}
    if call.run.directory is not None:
        own["GARRISON_PIPELINE_DIR"] = str(call.run.directory)
    if call.place.reason:
        own["GARRISON_PIPELINE_REASON"] = call.place.reason
    return {**call.run.environ, **own}


def _judged(call: Call, result: JobResult, folder: Path) -> Outcome:
    output, said = _output(folder / "output.log"), read_said(folder)
    updates: dict[str, Any] = {"tool.output": output, "tool.exit_code": result.exit_code}
    if result.timed_out:
        why = f"timed out after {seconds(call.attrs, 'timeout', 0.0):g} s"
        return Outcome(FAIL, failure_reason=why, failure_class="timeout", context_updates=updates)
    if not result.ok:
        last = read_tail(folder / "stderr.log", 3) or read_tail(folder / "output.log", 3)
        how = describe_exit(result.exit_code) or f"exit {result.exit_code}"
        kind = DETERMINISTIC if result.exit_code in _NO_COMMAND else "exit"
        outcome = Outcome(FAIL, failure_reason=f"{how}: {last}" if last else how, failure_class=kind)
    else:
        outcome = Outcome(SUCCESS, notes=output[-200:])
    if said is not None:
        outcome = _said(call, outcome, said)
    return replace(outcome, context_updates={**updates, **outcome.context_updates})


def _said(call: Call, outcome: Outcome, said: Mapping[str, Any]) -> Outcome:
    """Its own word counts, but a command that failed did not succeed."""
    told = from_status(said, f"{call.node.id}'s status file")
    if outcome.status == FAIL and told.status not in (FAIL, RETRY):
        return replace(told, status=FAIL, failure_reason=outcome.failure_reason, failure_class=outcome.failure_class)
    return told


def _output(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - KEPT))
        return file.read().decode(errors="replace").rstrip("\n")
    return ""


def end_left(directory: Path, node: str) -> None:
    """End what a killed engine left running for a node of the run in `directory`, before it is tried again.

    Who it is, the environment of each process says; what wiped its own is found below those, or in their sessions.
    """
    wanted = {f"GARRISON_PIPELINE_DIR={directory}".encode(), f"GARRISON_PIPELINE_NODE={node}".encode()}
    for found in processes.list_processes():
        with contextlib.suppress(OSError):
            if wanted <= {*Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0")}:
                kill_tree(found.id, "", grace=1.0)
