"""Results of attempts, with the evidence that a node's own orchestrator wrote them.

An orchestrator announces the digest of its result in its hook, and then writes the result. A file that a process beside
it puts in the attempt's folder is thus ignored, and the attempt continues. The branch counts as the result says, too:
`Worktree.restore_branch` puts it back where the orchestrator saw it. Outside a sandbox an agent is the user, and can
forge all of it; this catches mistakes and simple forgeries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import RecordError
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.names import Key

if TYPE_CHECKING:
    from garrison.records.run import Result, RunFiles
    from garrison.records.store import Store


def read_attempt_result(store: Store, files: RunFiles, node: str, attempt: int) -> tuple[Result | None, str]:
    """Return the result of a node's attempt that its orchestrator announced; else None, and the reason if there is a
    file."""
    path = files.attempt(node, attempt) / "result.json"
    if not path.exists():
        return None, ""
    try:
        hook = store.read(Hook, Key("orchestrator", node, files.run))
    except RecordError:  # its owner repairs it
        hook = None
    return run_records.read_result(path, files.run, node, attempt, hook.result_digest if hook is not None else None)
