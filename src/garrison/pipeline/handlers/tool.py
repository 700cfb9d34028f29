"""tool: a shell command in the run's directory. Exit 0 is success; the processes it started end with it.

The command is `tool_command` (or `command`, or `script`). The context gets `tool.output` (the last 64 KiB of stdout
without the final newline), `tool.last_line` and `tool.exit_code`; both streams go to files of the attempt. A command
can report more than its exit code by writing an outcome's fields as JSON to GARRISON_STATUS_FILE.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import Timing
from garrison.directories import find_home
from garrison.ends import End, EndKind
from garrison.errors import GarrisonError, Shortage
from garrison.pipeline.graph import TOOL_COMMANDS, seconds, text
from garrison.pipeline.handlers.call import Call, failed, from_status
from garrison.pipeline.handlers.codergen import STATUS_FILE, read_status_file
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, RETRY, SUCCESS, Outcome
from garrison.sandbox.checkout import checkout_network, checkout_place, checkout_user, remove_private_folder
from garrison.sandbox.confine import confine
from garrison.sandbox.place import EXCHANGE, Role
from garrison.sandbox.probe import explain_missing_file
from garrison.sandbox.rights import read_rights
from garrison.supervise.job_watch import JobWatch
from garrison.system import processes, untrusted
from garrison.system.command import Job, read_tail
from garrison.system.exit_info import describe_end
from garrison.system.machine import retry_pause
from garrison.system.process_control import kill_tree
from garrison.system.processes import ProcessId
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.pipeline.flow import Visit
    from garrison.sandbox.network import NetworkPlace

logger = logging.getLogger(__name__)
MAX_OUTPUT = 64 * 1024
"""Bytes of a command's output in the context; all of it is in output.log."""
EXIT_FILE = "exit"
"""File with the attempt, the exit code and the place of a command that ended."""
_MAX_EXIT = 1 << 16
_SHELL = """\
exec 2>/dev/null
errors=$1 attempt=$2 place=$3 record=$4
shift 4
"$@" 2>"$errors"
code=$?
if [ "$code" -gt 128 ] && [ "$code" -ne 147 ]; then kill -"$((code - 128))" $$; fi
printf '%s %s %s\\n' "$attempt" "$code" "$place" >"$record"
exit "$code"
"""
"""Runs the command with stderr in a file, so that only stdout is its output, and records how it ended: the successor of
an engine that was killed before journaling the result finds it there. A signal that ended the command also ends the
shell, and is no result; 147 would be SIGSTOP, which ends nothing. The command is in its sandbox, this shell is not."""


async def tool(call: Call) -> Outcome:
    """Run the node's command; adopt the result of one that ended after its engine was killed."""
    # Before the command is looked up: a command that has ended is not repeated, whatever the graph says now.
    if call.resumed and call.folder is not None and (code := recorded_exit_code(call.folder, call.place)) is not None:
        return _outcome(call, End(code), call.folder)
    command = next((word for name in TOOL_COMMANDS if (word := text(call.attrs, name))), "")
    if not command:
        return failed(f"tool {call.node.id} has no tool_command; give it one")
    with _attempt_folder(call) as folder:
        result = await _run(call, command, folder)
        if isinstance(result, str):
            return failed(result)
        return _outcome(call, result, folder)


@contextlib.contextmanager
def _attempt_folder(call: Call) -> Iterator[Path]:
    """Yield the attempt's folder, a temporary one for a run in memory."""
    if call.folder is not None:
        yield call.folder
        return
    with tempfile.TemporaryDirectory(prefix="garrison-tool-") as name:
        yield Path(name)


async def _run(call: Call, command: str, folder: Path) -> End | str:
    """Return how the command ended, or why it could not be started; wait while the machine lacks room for it."""
    for number in itertools.count(1):
        try:
            return await _try_to_run(call, command, folder)
        # Not the command's fault: the machine temporarily lacks memory, descriptors or a namespace for it.
        except Shortage as error:
            pause = retry_pause(number)
            logger.warning("%s waits %g s: %s", call.node.id, pause, error)
            await asyncio.sleep(pause)
    raise AssertionError


async def _try_to_run(call: Call, command: str, folder: Path) -> End | str:
    with contextlib.ExitStack() as stack:
        try:
            variables = environment(call, folder)
            place = checkout_place(Role.TOOL, call.run.tree, folder, call.run.directory, variables, command=command)
            user = checkout_user(find_home(environ=variables), call.run.run, call.node.id, call.attempt,
                                 call.run.directory or folder)
            network = stack.enter_context(contextlib.closing(checkout_network(Role.TOOL, place, user, variables)))
            confined = confine(["/bin/sh", "-c", command], network.apply(variables), network.open_in(place))
            recording = (str(call.place.attempt), call.place.id, str(folder / EXIT_FILE))
            job = Job.start(["/bin/sh", "-c", _SHELL, "sh", str(folder / "stderr.log"), *recording, *confined.argv],
                            env=confined.env, cwd=call.run.tree, log=folder / "output.log",
                            timeout_s=seconds(call.attrs, "timeout"))
        except Shortage:
            raise
        except GarrisonError as error:
            return str(error)
        try:
            return await wait_for(job, JobWatch(
                ProcessId(job.pid, job.ticks), job.marker, Timing.read(os.environ).beat_timeout,
                silence=seconds(call.attrs, "silence"), logs=[folder / "output.log", folder / "stderr.log"]), network)
        finally:
            remove_private_folder(folder)


def recorded_exit_code(folder: Path, place: Visit) -> int | None:
    """Return the exit code that this attempt's command left in its folder; None if there is none."""
    line = untrusted.read_begin(folder, EXIT_FILE, _MAX_EXIT).decode(errors="surrogateescape")
    attempt, code, rest = [*line.split(" ", 2), "", ""][:3]
    # The file may be from an earlier attempt or visit. The command itself could only forge its own end there.
    is_ours = attempt == str(place.attempt) and rest == f"{place.id}\n"
    return int(code) if is_ours and code.isascii() and code.isdigit() else None


async def wait_for(job: Job, watch: JobWatch, network: NetworkPlace) -> End | str:
    """Return the job's result, or why it hung; on cancellation kill it with everything it started first."""
    try:
        return await _poll(job, watch, network)
    except asyncio.CancelledError:
        # Awaited to its end before the cancellation continues: none of its processes may outlive the run.
        job.kill(time.monotonic())
        await _poll(job, watch, network)
        raise


async def _poll(job: Job, watch: JobWatch, network: NetworkPlace) -> End | str:
    hung = ""
    while (result := job.poll(now := time.monotonic())) is None:
        network.keep()
        # Killing takes a grace period, during which the job is as silent as before: it is judged only once.
        if not hung and (hang := watch.inspect(now)) is not None:
            hung = f"it hung and was ended: {hang.why}"
            job.kill(now)
        wake = min(now + 1.0, watch.due, *([] if job.wake_at is None else [job.wake_at]))
        await wait_readable(max(0.01, wake - now), job.pidfd, network.unserved)
    return hung or result


async def wait_readable(limit: float, *descriptors: int | None) -> None:
    """Wait until one of these descriptors is readable, as a pidfd is at its process's end, at most `limit` seconds."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    # asyncio has one reader per descriptor: a second wait for the same one would replace it, and then remove it.
    copies = [os.dup(descriptor) for descriptor in descriptors if descriptor is not None]
    for copy in copies:
        loop.add_reader(copy, ready.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await ready.wait()
    finally:
        for copy in copies:
            loop.remove_reader(copy)
            os.close(copy)


def environment(call: Call, folder: Path) -> dict[str, str]:
    """Return the environment of a command: the run's, and variables that name the run and the node."""
    variables = {"GARRISON_PIPELINE_RUN": call.run.run, "GARRISON_PIPELINE_NODE": call.node.id,
                 "GARRISON_PIPELINE_ATTEMPT": str(call.attempt), "GARRISON_PIPELINE_VISIT": str(call.visit),
                 "GARRISON_STATUS_FILE": str(folder / EXCHANGE / STATUS_FILE)}
    if call.run.directory is not None:
        variables["GARRISON_PIPELINE_DIR"] = str(call.run.directory)
    if call.place.reason:
        variables["GARRISON_PIPELINE_REASON"] = call.place.reason
    return {**call.run.environ, **variables}


def _outcome(call: Call, end: End, folder: Path) -> Outcome:
    output = untrusted.read_end(folder, "output.log", MAX_OUTPUT).rstrip("\n")
    reported = read_status_file(folder)
    updates: dict[str, object] = {"tool.output": output, "tool.exit_code": end.code,
                               "tool.last_line": output.rpartition("\n")[2]}
    if end.kind is EndKind.TIMEOUT:
        reason = f"timed out after {seconds(call.attrs, 'timeout', 0.0):g} s"
        return Outcome(FAIL, failure_reason=reason, failure_class="timeout", context_updates=updates)
    if not end.ok:
        last = read_tail(folder / "stderr.log", 3) or read_tail(folder / "output.log", 3)
        how = describe_end(end)
        kind = DETERMINISTIC if end.kind is EndKind.NOT_RUN else "exit"
        home = find_home(environ=call.run.environ)
        hint = explain_missing_file(read_rights(home, Role.TOOL, environ=call.run.environ), "sandbox.tool",
                                    end, last, call.run.environ.get("PATH", os.defpath))
        outcome = Outcome(FAIL, failure_reason=(f"{how}: {last}" if last else how) + hint, failure_class=kind)
    else:
        outcome = Outcome(SUCCESS, notes=output[-200:])
    if reported is not None:
        outcome = _merge(outcome, from_status(reported, f"{call.node.id}'s status file", call.asked))
    return replace(outcome, context_updates={**updates, **outcome.context_updates})


def _merge(outcome: Outcome, reported: Outcome) -> Outcome:
    """Return the outcome that the command reported; one that failed by its exit code cannot report a success."""
    # Exit codes are facts: a command that reports success and then dies has not succeeded.
    if outcome.status == FAIL and reported.status not in (FAIL, RETRY):
        return replace(reported, status=FAIL, failure_reason=outcome.failure_reason,
                       failure_class=outcome.failure_class)
    return reported


def kill_leftovers(directory: Path, node: str) -> None:
    """Kill the processes that a killed engine left running for a node of the run in `directory`.

    They are found by their environment; descendants without it are found below those, or in their sessions.
    """
    markers = {f"GARRISON_PIPELINE_DIR={directory}".encode(), f"GARRISON_PIPELINE_NODE={node}".encode()}
    # By environment, not by parent: after their parent's death they are children of init, or of a subreaper.
    for process in processes.list_processes():
        with contextlib.suppress(OSError):
            if markers <= {*Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")}:
                kill_tree(process.id, "", grace=1.0)
