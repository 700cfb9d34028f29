"""Give up the open offer of an attempt: its keeper cancels it, and fetches what its worker left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.dispatch.records import AttemptId
from garrison.records.late import LateWork, note_late
from garrison.records.remote import RemotePhase, look_remote, write_remote
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task


def give_up(runtime: Runtime, launch: Launch, task: Task, cancel: str) -> None:
    """Give up the open offer of an attempt, if there is one.

    Args:
        cancel: why it is to be cancelled, '' if it is over.
    """
    folder = runtime.files(task.run_id).attempt(task.node, task.attempt)
    state = look_remote(folder)
    if state is None or state.phase == RemotePhase.ENDED:
        return
    id_ = AttemptId(task.run_id, task.node, task.attempt, state.offer)
    if state.host or cancel:
        note_late(runtime.home, LateWork(str(id_), launch.repo, runtime.clock.utc(), state.host, state.claim, cancel))
    write_remote(folder, replace(state, phase=RemotePhase.ENDED, since=runtime.clock.utc()))
