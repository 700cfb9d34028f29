"""Run branch: the branch on which the nodes' work comes together in a run that lands as a whole (`Launch.onto`).

The guardian creates it where the target was at the launch. Nodes start at its tip and merge into it through its own
queue, in which every landing is journaled as in the target's: the branch is the authority on what was merged. At the
exit its tip is an entry of the target's queue (`guardian_policy.py`, step 5). Once that has landed, it is archived.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.merge.config import QueueConfig, read_signer
from garrison.merge.entry import FAST_FORWARD, STRATEGIES
from garrison.merge.queue import MergeQueue
from garrison.records.names import INTEGRATION, tested_branch
from garrison.records.run import LAND_NODE, LAND_PR, LAND_RUN, list_runs
from garrison.system.git import ABSENT, Git
from garrison.system.git.rescues import ARCHIVE

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch


def node_queue(runtime: Runtime, launch: Launch, token: str, git: Git | None = None) -> MergeQueue:
    """Return the queue through which a run's nodes land: the target's, or the run branch's."""
    return MergeQueue(runtime.home, Path(launch.repo), launch.onto, clock=runtime.clock, token=token, git=git)


def landing_queue(runtime: Runtime, launch: Launch, token: str, git: Git | None = None) -> MergeQueue | None:
    """Return the queue through which a whole run lands; None for a run that does not.

    For a run with a pull request it is its own branch's, which is set to the base before each test.
    """
    if launch.land == LAND_PR:
        return MergeQueue(runtime.home, Path(launch.repo), tested_branch(launch.run_id), clock=runtime.clock,
                          token=token, git=git)
    return target_queue(runtime, launch, token, git) if launch.land == LAND_RUN else None


def target_queue(runtime: Runtime, launch: Launch, token: str, git: Git | None = None) -> MergeQueue:
    return MergeQueue(runtime.home, Path(launch.repo), launch.base, clock=runtime.clock, token=token, git=git)


def create(queue: MergeQueue, launch: Launch, gate_timeout: float) -> None:
    """Create the branch of a new run, and configure its queue; repeating it changes nothing.

    GarrisonError for a branch of that name with other commits: they would land with this run.
    """
    if launch.land == LAND_NODE:
        return
    ref, git = f"refs/heads/{launch.onto}", queue.git
    git.update_ref(ref, launch.base_oid, ABSENT, message="garrison: start the run")
    # Read back, not taken from the update's result: a guardian that died right after it has already made the branch.
    if git.rev(ref) != launch.base_oid:
        raise GarrisonError(f"could not create the branch {launch.onto} in {launch.repo}; remove the conflicting ref")
    configure(queue, launch, gate_timeout)


def create_tested(queue: MergeQueue, launch: Launch, gate_timeout: float) -> None:
    """Create the branch on which a pull request is tested, and record the run's gate in its queue."""
    queue.git.update_ref(f"refs/heads/{queue.target}", launch.base_oid, ABSENT, message="garrison: start the run")
    queue.configure(QueueConfig.from_launch(launch, gate_timeout))


def begin_test(queue: MergeQueue, base: str) -> None:
    """Set the branch on which a pull request is tested to the base; nothing of it lands anywhere."""
    if not queue.git.update_ref(f"refs/heads/{queue.target}", base, message="garrison: test the pull request"):
        raise GarrisonError(f"could not set {queue.target} to {base[:10]}; if a git that was killed left its .lock "
                            "file, try again in a minute")


def configure(queue: MergeQueue, launch: Launch, gate_timeout: float) -> None:
    """Record the gate of the run's own branch."""
    queue.configure(QueueConfig(launch.node_gate, launch.setup, launch.node_gate is None, gate_timeout,
                                tuple(launch.lock_files), gate_from_target=tuple(launch.gate_from_target),
                                committer=launch.committer, signer=read_signer(launch.signer),
                                strategy=FAST_FORWARD if launch.land == LAND_PR else STRATEGIES[0]))


def rebuild_queue(queue: MergeQueue, launch: Launch, gate_timeout: float) -> None:
    """Rebuild a queue whose journal is damaged or lost, and record the run's gate in it again; Refused while a
    processor works it.

    Without the gate the new journal would look like one that was lost and restarted.
    """
    from garrison.merge import recovery  # rarely needed, and every guardian loads this module

    recovery.rebuild(queue)
    restore_gate(queue, launch, gate_timeout)


def restore_gate(queue: MergeQueue, launch: Launch, gate_timeout: float) -> None:
    """Record the gate of a run in its own queue that has lost it."""
    if queue.state.config is not None:
        return
    if queue.target == launch.onto != launch.base:
        configure(queue, launch, gate_timeout)
    elif launch.gate or launch.no_gate:
        queue.configure(QueueConfig.from_launch(launch, gate_timeout))


def restore_gate_of_runs(runtime: Runtime, queue: MergeQueue) -> None:
    """Record in a queue that has lost its gate the gate of the latest run that lands through it, if any."""
    launches: list[Launch] = []
    for run in list_runs(runtime.home):
        with suppress(GarrisonError):
            launches.append(runtime.launch(run))
    for launch in sorted(launches, key=lambda each: each.created_at, reverse=True):
        if queue.state.config is None and queue.target in (launch.base, launch.onto, tested_branch(launch.run_id)):
            with suppress(GarrisonError):  # its repository is gone
                if Git(Path(launch.repo)).key == queue.git.key:
                    restore_gate(queue, launch, runtime.timing.gate_timeout)


def has_own_commits(git: Git, launch: Launch, tip: str) -> bool:
    """Return whether the run's branch has anything that the target did not have at the launch."""
    return not git.is_ancestor(tip, launch.base_oid)


def archive(git: Git, launch: Launch) -> None:
    """Move the branch of a landed run to its archive ref, like its nodes' branches; idempotent."""
    tip = git.branch_tip(launch.onto)
    if tip is None:
        return
    ref = f"{ARCHIVE}/{launch.run_id}/{INTEGRATION}"
    if not git.update_ref(ref, tip):
        raise GarrisonError(f"could not archive {launch.onto} as {ref}")
    git.delete_refs([f"refs/heads/{launch.onto}"])
    if launch.land == LAND_PR and git.branch_exists(tested_branch(launch.run_id)):
        git.delete_refs([f"refs/heads/{tested_branch(launch.run_id)}"])
