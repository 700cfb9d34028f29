"""Backoff: after how long something that failed is tried again. Pure.

Every delay of this kind is a value of this class, alongside what it is for:

| seconds | for | in |
|---|---|---|
| 1, 2, 4 | an agent's message or start in an agent graph, then it has failed | `agents.conversation.policy` |
| 0.5 to 60, up to 15 minutes | a model's API, by the class of its refusal; a program that is gone | `agents.trouble` |
| 0.5 to 30 | a process that died | `supervise.restart` |
| 5 to 30 | a start that met a lack of processes, memory or descriptors | `system.machine` |
| 600 to 7,200 | the probe of a process that is parked | `supervise.restart` |
| 0.2, 0.4 … 60; others by name | a node of a pipeline | `pipeline.flow.program` |
| 30 to 1,800 | a merge queue that paused | `merge.decision` |
| its interval, up to 32 times that | the snapshot of a worktree | `node.snapshots` |
| 0.01 to 0.2 | a command of git that met a lock | `system.git.repository` |
| 0.25, 0.5, 1 | a look at what a forge has written | `forge.client` |
| 0.2, 0.4, 0.8 | a read of a forge that got no answer | `pull_request.client` |
| 1 to 15 | the far end of a preview on a host | `preview.on_host` |
| its interval, up to 10 times that | a look at a pull request that stays as it is | `pull_request.worker` |
"""

from __future__ import annotations

import math

from garrison.values import Value


class Backoff(Value):
    """Delays that grow: first × factorⁿ⁻¹ seconds after the n-th failure in a row, at most `cap`."""

    first: float
    cap: float = math.inf
    tries: int | None = None
    """Failures in a row after which it is given up; None: never."""
    factor: float = 2.0
    jitter: tuple[float, float] = (1.0, 1.0)
    """Least and largest multiple of a delay, so that what failed together is not tried again together."""

    def delay(self, failure: int, fraction: float = 0.0) -> float:
        """Return the seconds to wait after the n-th consecutive failure; `fraction` (0 to 1) chooses the jitter."""
        low, high = self.jitter
        # 64 doublings are longer than anything waits; 2.0 ** 1024, which a snapshot that fails for days would reach,
        # raises OverflowError.
        grown = self.first * self.factor ** min(max(failure, 1) - 1, 64)
        return float(min(self.cap, grown * (low + (high - low) * fraction)))

    def is_over(self, failure: int) -> bool:
        """Return whether nothing is tried again after the n-th consecutive failure."""
        return self.tries is not None and failure > self.tries
