"""In-memory dispatcher, for simulations and tests. Passes the contract suite of the real ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from garrison.hosts.attempts import (
    OVER,
    AttemptId,
    AttemptResult,
    AttemptState,
    AttemptView,
    Claim,
    ClaimToken,
    Completion,
    DispatcherLost,
    HeartbeatReply,
    NodeAttempt,
    StaleToken,
    WorkerMessage,
    WorkerOrder,
)
from garrison.hosts.lease import GrantedLease
from garrison.system.clock import Clock
from garrison.values import replace


@dataclass
class _Entry:
    attempt: NodeAttempt
    view: AttemptView
    lease: GrantedLease | None = None
    cancelled: str | None = None
    sent: set[str] = field(default_factory=set)
    messages: list[WorkerMessage] = field(default_factory=list)


class MemoryEngine:
    """What all dispatchers of one run share: the attempts, and who holds them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.entries: dict[AttemptId, _Entry] = {}

    def expire(self) -> None:
        """End the claims whose lease is over."""
        now = self.clock.monotonic()
        for entry in self.entries.values():
            if entry.lease is None or not entry.lease.is_over(now):
                continue
            entry.lease = None
            if entry.cancelled is not None:
                state = AttemptState.CANCELLED
            else:
                is_last = entry.view.claim >= entry.attempt.max_claims
                state = AttemptState.LOST if is_last else AttemptState.WAITING
            entry.view = replace(entry.view, state=state, why="no heartbeat within its lease")


class MemoryDispatcher:
    """One machine's dispatcher; `is_cut` cuts it off from the engine."""

    def __init__(self, engine: MemoryEngine, worker: str = "", queue: str = "") -> None:
        self.engine, self.worker, self.queue = engine, worker, queue
        self.is_cut = False

    def _entries(self) -> dict[AttemptId, _Entry]:
        if self.is_cut:
            raise DispatcherLost("the dispatcher did not answer")
        self.engine.expire()
        return self.engine.entries

    def submit(self, attempt: NodeAttempt) -> None:
        """Offer an attempt to the workers of its queue."""
        self._entries().setdefault(attempt.id, _Entry(attempt, AttemptView(attempt.id, AttemptState.WAITING)))

    def cancel(self, attempt: AttemptId, why: str) -> None:
        entry = self._entries().get(attempt)
        if entry is None or entry.view.state in OVER:
            return
        entry.cancelled = why
        if entry.lease is None:
            entry.view = replace(entry.view, state=AttemptState.CANCELLED, why=why)

    def send(self, attempt: AttemptId, message: WorkerMessage) -> None:
        entry = self._entries().get(attempt)
        if entry is not None and message.id not in entry.sent:
            entry.sent.add(message.id)
            entry.messages.append(message)

    def watch(self, attempt: AttemptId, seen: AttemptView | None = None, timeout: float = 0.0) -> AttemptView:
        """Return the attempt's state; its clock is the test's, so it never waits."""
        entry = self._entries().get(attempt)
        return entry.view if entry is not None else AttemptView(attempt, AttemptState.UNKNOWN)

    def claim(self, timeout: float) -> Claim | None:
        """Claim an attempt; its clock is the test's, so it never waits."""
        for entry in self._entries().values():
            if entry.view.state is AttemptState.WAITING and entry.attempt.queue == self.queue:
                number = entry.view.claim + 1
                entry.lease = GrantedLease(entry.attempt.lease, self.engine.clock.monotonic())
                entry.view = replace(entry.view, state=AttemptState.CLAIMED, claim=number, worker=self.worker, why="")
                return Claim(ClaimToken(entry.attempt.id, number), entry.attempt)
        return None

    def _current(self, token: ClaimToken) -> _Entry | None:
        entry = self._entries().get(token.id)
        is_current = entry is not None and entry.lease is not None and entry.view.claim == token.claim
        return entry if is_current else None

    def heartbeat(self, token: ClaimToken, progress: str = "") -> HeartbeatReply:
        """Renew the lease, and return what the worker must do."""
        entry = self._current(token)
        if entry is None or entry.lease is None:
            return HeartbeatReply(WorkerOrder.LOST)
        entry.lease = entry.lease.renewed(self.engine.clock.monotonic())
        entry.view = replace(entry.view, progress=progress)
        messages, entry.messages = tuple(entry.messages), []
        return HeartbeatReply(WorkerOrder.OK if entry.cancelled is None else WorkerOrder.CANCEL, messages)

    def is_called(self, token: ClaimToken) -> bool:
        """Return whether the next heartbeat brings an order or a message; a worker that is cut off hears of none."""
        entry = None if self.is_cut else self.engine.entries.get(token.id)
        is_current = entry is not None and entry.lease is not None and entry.view.claim == token.claim
        return entry is not None and is_current and (entry.cancelled is not None or bool(entry.messages))

    def complete(self, token: ClaimToken, result: AttemptResult) -> None:
        entry = self._current(token)
        if entry is None:
            raise StaleToken(token)
        is_done = result.outcome is Completion.DONE
        entry.lease = None
        entry.view = replace(entry.view, state=AttemptState.DONE if is_done else AttemptState.CANCELLED, result=result)
