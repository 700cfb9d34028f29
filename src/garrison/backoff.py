"""Backoff: delays before retries. Pure.

All retry delays are values of this class, defined where they are used:

| seconds | for | in | |---|---|---| | 1, 2, 4 | an agent's message or start in an agent graph, which then fails |
`agents.conversation.policy` | | 0.5 to 60, up to 15 minutes | a model's API, by kind of refusal; a missing program |
`agents.trouble` | | 0.5 to 30 | a dead process | `supervise.restart` | | 5 to 30 | a start without free processes,
memory or descriptors | `system.machine` | | 600 to 7,200 | the probe of a parked process | `supervise.restart` | | 0.2,
0.4 … 60; others by name | a node of a pipeline | `pipeline.flow.program` | | 30 to 1,800 | a paused merge queue |
`merge.decision` | | its interval, up to 32 times that | the snapshot of a worktree | `node.snapshots` | | 0.01 to 0.2 |
a git command that met a lock | `system.git.repository` | | 0.25, 0.5, 1 | a check of what a forge has written |
`forge.client` | | 0.2, 0.4, 0.8 | an unanswered read of a forge | `pull_request.client` | | 1 to 15 | the far end of a
preview on a host | `preview.on_host` | | its interval, up to 10 times that | a poll of an unchanged pull request |
`pull_request.worker` |
"""

from __future__ import annotations

import math

from garrison.values import Value


class Backoff(Value):
    """Growing delays: first × factorⁿ⁻¹ seconds after the n-th consecutive failure, at most `cap`."""

    first: float
    cap: float = math.inf
    tries: int | None = None
    """Consecutive failures after which to give up; None: never."""
    factor: float = 2.0
    jitter: tuple[float, float] = (1.0, 1.0)
    """Smallest and largest multiple of a delay, so that simultaneous failures are not retried simultaneously."""

    def delay(self, failure: int, fraction: float = 0.0) -> float:
        """Return the seconds to wait after the n-th consecutive failure; `fraction` (0 to 1) chooses the jitter."""
        low, high = self.jitter
        # 64 doublings exceed any wait; 2.0 ** 1024, reached by a snapshot that fails for days, raises OverflowError
        grown = self.first * self.factor ** min(max(failure, 1) - 1, 64)
        return float(min(self.cap, grown * (low + (high - low) * fraction)))

    def is_over(self, failure: int) -> bool:
        """Return whether there is no retry after the n-th consecutive failure."""
        return self.tries is not None and failure > self.tries
