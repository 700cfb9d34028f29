"""Workflow of one attempt: offer it as an activity, pass messages and a cancellation on to its worker.

The workflow runs on the run's side. Hosts do the activity; Temporal offers it again if no heartbeat came within
the lease. Temporal notifies a worker of a cancellation only at its next heartbeat, and cannot send it anything
else. So each worker also serves its own task queue: a delivery is an activity there, pushed at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.converter import (
    AdvancedJSONEncoder,
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    JSONTypeConverter,
)
from temporalio.exceptions import ActivityError

# The SDK's sandbox would import these again for each workflow.
with workflow.unsafe.imports_passed_through():
    import msgspec

    from garrison.hosts.attempts import AttemptId, AttemptResult, AttemptState, Completion, NodeAttempt, WorkerMessage
    from garrison.values import Value

WORKFLOW, ATTEMPT, DELIVERY = "garrison.node-attempt", "garrison.attempt", "garrison.delivery"
CLAIMED, SEND, CANCEL = "claimed", "send", "cancel"
LONGEST_ATTEMPT = timedelta(days=365)
"""Temporal requires a limit; in fact the lease ends an attempt."""


class AttemptOffer(Value):
    """An attempt, and the task queue that offers it."""

    attempt: NodeAttempt
    task_queue: str


class Claimed(Value):
    """A worker's message that it has the attempt, and its address for deliveries."""

    claim: int
    inbox: str


class WorkerDelivery(Value):
    """A message for the worker of a claim; None: cancel it."""

    attempt: AttemptId
    claim: int
    message: WorkerMessage | None


class AttemptEnd(Value):
    """End of an attempt."""

    state: AttemptState
    result: AttemptResult | None = None
    why: str = ""


class _Encoder(AdvancedJSONEncoder):
    def default(self, o: Any) -> Any:
        return msgspec.to_builtins(o) if isinstance(o, Value) else super().default(o)


class _Records(JSONTypeConverter):
    def to_typed_value(self, hint: type, value: Any) -> Any:
        is_record = isinstance(hint, type) and issubclass(hint, Value)
        return msgspec.convert(value, hint) if is_record else JSONTypeConverter.Unhandled


class _Payloads(CompositePayloadConverter):
    """Payloads of the SDK, with support for records: it knows only dataclasses."""

    def __init__(self) -> None:
        json = JSONPlainPayloadConverter(encoder=_Encoder, custom_type_converters=[_Records()])
        super().__init__(*(json if isinstance(each, JSONPlainPayloadConverter) else each
                           for each in DefaultPayloadConverter.default_encoding_payload_converters))


CONVERTER = replace(DataConverter.default, payload_converter_class=_Payloads)
"""Encoding of all data that passes through the server."""


@workflow.defn(name=WORKFLOW)
class NodeAttemptWorkflow:
    """The attempt, from its submission to its end."""

    def __init__(self) -> None:
        self._activity: workflow.ActivityHandle[AttemptResult] | None = None
        self._claimed: Claimed | None = None
        self._cancelled: str | None = None
        self._told_of_cancel = 0
        """The claim whose worker was notified of the cancellation."""
        self._outbox: list[WorkerMessage] = []
        self._known: set[str] = set()

    @workflow.run
    async def run(self, offer: AttemptOffer) -> AttemptEnd:
        """Offer the attempt until it has a result, is cancelled or is lost."""
        attempt = offer.attempt
        if self._cancelled is not None:  # earlier signals are delivered before the first step
            return AttemptEnd(AttemptState.CANCELLED, why=self._cancelled)
        self._activity = workflow.start_activity(
            ATTEMPT, attempt, task_queue=offer.task_queue, heartbeat_timeout=timedelta(seconds=attempt.lease),
            start_to_close_timeout=LONGEST_ATTEMPT, result_type=AttemptResult,
            # No pause before the next claim: the lease of the last one has already expired.
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=1.0,
                                     maximum_attempts=attempt.max_claims),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)
        deliveries = asyncio.create_task(self._deliver_all(attempt))
        try:
            result = await self._activity
        except ActivityError as error:
            if self._cancelled is None:
                return AttemptEnd(AttemptState.LOST, why=f"no heartbeat within its lease ({error.cause or error})")
            return AttemptEnd(AttemptState.CANCELLED, why=self._cancelled)
        finally:
            deliveries.cancel()
        return AttemptEnd(AttemptState.DONE if result.outcome is Completion.DONE else AttemptState.CANCELLED, result)

    def _next_delivery(self, attempt: NodeAttempt) -> WorkerDelivery | None:
        if self._claimed is None or self._activity is None or self._activity.done():
            return None
        if self._cancelled is not None and self._told_of_cancel < self._claimed.claim:
            return WorkerDelivery(attempt.id, self._claimed.claim, None)
        return WorkerDelivery(attempt.id, self._claimed.claim, self._outbox[0]) if self._outbox else None

    async def _deliver_all(self, attempt: NodeAttempt) -> None:
        assert self._activity is not None
        while not self._activity.done():  # a cancelled delivery also raises ActivityError: else it restarts
            await workflow.wait_condition(lambda: self._next_delivery(attempt) is not None)
            delivery = self._next_delivery(attempt)
            assert delivery is not None and self._claimed is not None
            try:
                await workflow.execute_activity(
                    DELIVERY, delivery, task_queue=self._claimed.inbox, retry_policy=RetryPolicy(maximum_attempts=1),
                    schedule_to_close_timeout=timedelta(seconds=attempt.lease))
            except ActivityError:  # its worker is cut off or dead: it is resent, perhaps to the next one
                continue
            if delivery.message is None:
                self._told_of_cancel = delivery.claim
            else:
                self._outbox.remove(delivery.message)

    @workflow.signal(name=CLAIMED)
    def claimed(self, claimed: Claimed) -> None:
        """Record which worker has the attempt."""
        if self._claimed is None or claimed.claim > self._claimed.claim:
            self._claimed = claimed

    @workflow.signal(name=SEND)
    def send(self, message: WorkerMessage) -> None:
        """Keep a message until the worker has it."""
        if message.id not in self._known:
            self._known.add(message.id)
            self._outbox.append(message)

    @workflow.signal(name=CANCEL)
    def cancel(self, why: str) -> None:
        """Cancel the attempt."""
        if self._cancelled is None:
            self._cancelled = why
            if self._activity is not None:
                self._activity.cancel()
