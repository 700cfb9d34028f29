"""Records that pass through a dispatcher: attempts, claims, heartbeat answers, results and views."""

from __future__ import annotations

from enum import StrEnum

from garrison.errors import UsageError
from garrison.records.names import check_node, check_run
from garrison.values import Value


class AttemptId(Value):
    """Identity of one attempt of a node of a run; a retry or a rework is another attempt."""

    run: str
    node: str
    attempt: int
    offer: int = 1
    """Number of the offer: an attempt whose worker was lost, or that was stopped, is offered once more."""

    def __post_init__(self) -> None:
        check_run(self.run)
        check_node(self.node)
        if self.attempt < 1 or self.offer < 1:
            raise UsageError(f"not an attempt: {self.attempt}.{self.offer}; attempts and offers are counted from 1")

    def __str__(self) -> str:
        return f"{self.run}/{self.node}/{self.number}"

    @property
    def number(self) -> str:
        """Return the number of the attempt, with that of the offer unless it is the first."""
        return str(self.attempt) if self.offer == 1 else f"{self.attempt}.{self.offer}"

    @classmethod
    def parse(cls, text: str) -> AttemptId:
        """Parse what `str` made; UsageError for anything else."""
        run, _, rest = text.partition("/")
        node, _, numbers = rest.partition("/")
        number, dot, offer = numbers.partition(".")
        if not all(each.isascii() and each.isdigit() for each in (number, offer if dot else "1")):
            raise UsageError(f"not an attempt of a node: {text!r}; the form is run/node/number")
        return cls(run, node, int(number), int(offer or 1))


class NodeAttempt(Value):
    """An attempt to do, as it is submitted."""

    id: AttemptId
    payload: str = ""
    """What the worker needs to know, opaque to the dispatcher."""
    queue: str = ""
    """Workers that may claim it: those that serve this queue."""
    lease: float = 5.0
    """Seconds without a heartbeat after which another worker may claim it."""
    max_claims: int = 1
    """Workers that may claim it one after the other; a worker that completes it is the last."""


class Token(Value):
    """Right to act for an attempt: that of one claim. A later claim makes it stale, for ever."""

    id: AttemptId
    claim: int
    """Number of the claim, from 1: a fence for everything the worker writes elsewhere."""
    secret: str = ""
    """What the backend recognises the claim by."""


class Claim(Value):
    """A claimed attempt, with the token to act for it."""

    token: Token
    attempt: NodeAttempt


class Message(Value):
    """A message to the worker of an attempt; the same `id` sent again is the same message."""

    id: str
    body: str


class Order(StrEnum):
    """What the answer to a heartbeat tells the worker."""

    OK = "ok"
    CANCEL = "cancel"
    """End the attempt, and complete it as cancelled."""
    LOST = "lost"
    """The claim is no longer current: stop at once, nothing more is accepted."""


class Answer(Value):
    """Answer to a heartbeat, with the messages that arrived since the last one."""

    order: Order
    messages: tuple[Message, ...] = ()


class Outcome(StrEnum):
    """How a worker completed an attempt."""

    DONE = "done"
    CANCELLED = "cancelled"


class AttemptResult(Value):
    """Result of an attempt, given by the worker that holds its current claim."""

    outcome: Outcome
    body: str = ""


class AttemptState(StrEnum):
    """State of an attempt, as the run sees it."""

    WAITING = "waiting"
    """No worker has it: it was not claimed, or its last claim ended and it may be claimed again."""
    CLAIMED = "claimed"
    DONE = "done"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its last claim ended without a result, and it may not be claimed again."""
    UNKNOWN = "unknown"
    """It was never submitted."""


OVER = frozenset({AttemptState.DONE, AttemptState.CANCELLED, AttemptState.LOST})
"""States that no longer change."""


class AttemptView(Value):
    """Attempt as the run sees it."""

    id: AttemptId
    state: AttemptState
    claim: int = 0
    """Number of the last claim, 0 before the first."""
    worker: str = ""
    """Name of the worker with that claim."""
    progress: str = ""
    """What the last heartbeat reported; a successor finds that of its predecessor."""
    result: AttemptResult | None = None
    why: str = ""
