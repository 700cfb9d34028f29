"""Dispatcher of a Temporal server.

A run's side starts workflows and serves them (`serves_workflows`); a worker polls for activities itself instead of
through the SDK's worker, which answers heartbeats from a buffer: the cut-off rule needs to know which heartbeat
was answered (`hosts/lease.py`). For the same reason no call is retried implicitly.

The SDK needs an asyncio loop; it runs in a thread, so that callers need none.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCompletedRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from temporalio.worker import Worker

from garrison.config import HostsConfig
from garrison.errors import UsageError
from garrison.hosts.attempts import (
    OVER,
    AttemptState,
    AttemptView,
    Claim,
    ClaimToken,
    DispatcherLost,
    HeartbeatReply,
    NodeAttempt,
    StaleToken,
    WorkerOrder,
)
from garrison.hosts.lease import BEAT_SHARE
from garrison.hosts.temporal_workflow import (
    ATTEMPT,
    CANCEL,
    CLAIMED,
    CONVERTER,
    SEND,
    WORKFLOW,
    AttemptEnd,
    AttemptOffer,
    Claimed,
    NodeAttemptWorkflow,
    WorkerDelivery,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from typing import Any, TypeVar

    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.client import WorkflowExecutionDescription

    from garrison.hosts.attempts import AttemptId, AttemptResult, WorkerMessage
    R = TypeVar("R")

CALL_SECONDS = 10.0
"""Longest wait for an answer of the server, unless the lease sets a shorter one."""
POLL_SECONDS = 70.0
"""Longer than a poll of the server, which answers after a minute without work."""
OFFER_SECONDS = 15.0
"""Longest poll for attempts. A server answers a second before its end, which is too late on a busy machine, and an
attempt in that answer is lost until its lease is over; so garrison's own server answers after
`keeper.POLL_SECONDS`. A host with fewer free slots than queues waits that long before it polls the next one."""
WATCH_SECONDS = 0.1
"""Time between two polls of a watched attempt."""
TASK_TIMEOUT = timedelta(seconds=2)
"""Longest step of a workflow; after a lost one the server waits that long before it repeats it."""
UNANSWERED = (RPCError, RuntimeError, OSError, TimeoutError)
"""Errors of a call that may not have reached the server."""


@dataclass
class _Held:
    """State of a claim in its worker."""

    attempt: NodeAttempt
    task: bytes
    is_cancelled: bool = False
    messages: list[WorkerMessage] = field(default_factory=list)


class TemporalDispatcher:
    """Connection of a run, or of a worker, to a Temporal server.

    Args:
        address: host and port of the server.
        crew: name that separates this home's attempts from others on the same server.
        worker: name of the worker; a run's side needs none.
        queue: the queue whose attempts the worker claims.
        serves_workflows: this is the run's side.
        config: the table `[hosts]`, with the files for TLS; without it only the environment configures the connection.
    """

    def __init__(self, address: str, crew: str, *, worker: str = "", queue: str = "", namespace: str = "default",
                 serves_workflows: bool = False, config: HostsConfig | None = None) -> None:
        self._config = config or HostsConfig()
        self.address, self.crew, self.worker, self.queue, self.namespace = address, crew, worker, queue, namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="temporal", daemon=True)
        self._thread.start()
        self.polls: dict[str, asyncio.Task[PollActivityTaskQueueResponse]] = {}
        self._turn: dict[str, int] = {}
        """Queue → number of its last poll."""
        self._held: dict[tuple[AttemptId, int], _Held] = {}
        self._listener: asyncio.Task[None] | None = None
        self._server: Worker | None = None
        try:
            self._client = self._call(self._connect(serves_workflows))
        except BaseException:
            self.close()
            raise

    # ---- connection

    async def _connect(self, serves_workflows: bool) -> Client:
        client = await Client.connect(self.address, namespace=self.namespace, identity=self.worker or self.crew,
                                      data_converter=CONVERTER, **connection_options(os.environ, self._config))
        if serves_workflows:
            self._server = Worker(client, task_queue=self._runs, workflows=[NodeAttemptWorkflow])
            self._serving = asyncio.create_task(self._server.run())
        return client

    def close(self) -> None:
        """Close the connection; claims end with their leases."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.shutdown()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _call(self, work: Coroutine[Any, Any, R], seconds: float = CALL_SECONDS) -> R:
        """Run a coroutine on the loop; DispatcherLost if the server does not answer in time."""
        async def limited() -> R:
            return await asyncio.wait_for(work, seconds)

        try:
            return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()
        except UNANSWERED as error:
            raise DispatcherLost(f"the Temporal server at {self.address} did not answer: "
                                 f"{str(error) or f'nothing within {seconds:g} s'}") from error

    @property
    def _runs(self) -> str:
        return f"{self.crew}-runs"

    @property
    def _inbox(self) -> str:
        return f"{self.crew}-worker-{self.worker}"

    def _offers(self, queue: str) -> str:
        return f"{self.crew}-nodes-{queue}" if queue else f"{self.crew}-nodes"

    def _workflow_id(self, attempt: AttemptId) -> str:
        return f"{self.crew}/{attempt}"

    # ---- the run's side

    def submit(self, attempt: NodeAttempt) -> None:
        """Start the attempt's workflow; one that was already started is unchanged."""
        self._call(self._start(attempt))

    async def _start(self, attempt: NodeAttempt) -> None:
        try:
            await self._client.start_workflow(
                WORKFLOW, AttemptOffer(attempt, self._offers(attempt.queue)), id=self._workflow_id(attempt.id),
                task_queue=self._runs, task_timeout=TASK_TIMEOUT,
                # A repeated submission never repeats the attempt, whether it is running or over.
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING)
        except WorkflowAlreadyStartedError:  # it was submitted before, and is over
            return

    def cancel(self, attempt: AttemptId, why: str) -> None:
        """Cancel an attempt; its worker is notified at once."""
        self._signal(attempt, CANCEL, why)

    def send(self, attempt: AttemptId, message: WorkerMessage) -> None:
        """Send the attempt's worker a message."""
        self._signal(attempt, SEND, message)

    def _signal(self, attempt: AttemptId, name: str, argument: object) -> None:
        self._call(self._signal_workflow(self._workflow_id(attempt), name, argument))

    async def _signal_workflow(self, workflow_id: str, name: str, argument: object, run_id: str | None = None) -> None:
        try:
            await self._client.get_workflow_handle(workflow_id, run_id=run_id).signal(name, argument)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it is over, or never was
                raise

    def watch(self, attempt: AttemptId, seen: AttemptView | None = None, timeout: float = 0.0) -> AttemptView:
        """Return the attempt's state; wait up to `timeout` seconds for one that differs from `seen`."""
        end = time.monotonic() + timeout
        while True:
            view = self._call(self._view(attempt))
            left = end - time.monotonic()
            if view != seen or left <= 0 or view.state in OVER:
                return view
            time.sleep(min(WATCH_SECONDS, left))

    async def _view(self, attempt: AttemptId) -> AttemptView:
        handle = self._client.get_workflow_handle_for(NodeAttemptWorkflow.run, self._workflow_id(attempt))
        try:
            description = await handle.describe()
            if description.status is WorkflowExecutionStatus.RUNNING:
                return await self._running_view(attempt, description)
            if description.status is WorkflowExecutionStatus.COMPLETED:
                ended: AttemptEnd = await handle.result()
                return AttemptView(attempt, ended.state, result=ended.result, why=ended.why)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return AttemptView(attempt, AttemptState.UNKNOWN)
            raise
        status = description.status.name.lower() if description.status is not None else "gone"
        return AttemptView(attempt, AttemptState.LOST, why=f"its workflow was {status} on the Temporal server")

    async def _running_view(self, attempt: AttemptId, description: WorkflowExecutionDescription) -> AttemptView:
        for activity in description.raw_description.pending_activities:
            if activity.activity_type.name != ATTEMPT:
                continue
            is_claimed = activity.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            details = activity.heartbeat_details.payloads  # none before the first heartbeat
            progress = await self._client.data_converter.decode(details, [str]) if details else [""]
            # While it waits, Temporal's number is already the next claim's.
            return AttemptView(
                attempt, AttemptState.CLAIMED if is_claimed else AttemptState.WAITING,
                claim=activity.attempt if is_claimed else activity.attempt - 1, worker=activity.last_worker_identity,
                progress=progress[0])
        return AttemptView(attempt, AttemptState.WAITING)

    # ---- a worker's side

    def claim(self, timeout: float) -> Claim | None:
        """Claim an attempt. The poll continues between two calls: an aborted poll may take an attempt with it."""
        return self.claim_from([self.queue], 1, timeout)

    def claim_from(self, queues: Sequence[str], free: int, timeout: float) -> Claim | None:
        """Claim an attempt of one of several queues, for a worker with `free` slots.

        Each open poll may bring an attempt, so there are never more polls than slots; the queues take turns.
        """
        return self._call(self._claim(queues, free, timeout), timeout + CALL_SECONDS)

    async def _claim(self, queues: Sequence[str], free: int, timeout: float) -> Claim | None:
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())
        under_way = [name for name in self.polls if name != self._inbox]
        names = [name for name in map(self._offers, queues) if name not in under_way]
        names.sort(key=lambda name: self._turn.get(name, 0))
        for name in names[:max(0, free - len(under_way))]:
            self._turn[name] = 1 + max(self._turn.values(), default=0)
            self._begin_poll(name, OFFER_SECONDS)
            under_way.append(name)
        if not under_way:
            await asyncio.sleep(timeout)
            return None
        await asyncio.wait([self.polls[name] for name in under_way], timeout=timeout,
                           return_when=asyncio.FIRST_COMPLETED)
        answered = next((name for name in under_way if self.polls[name].done()), None)
        task = self._end_poll(answered) if answered is not None else None
        if task is None:
            return None
        (attempt,) = await self._client.data_converter.decode(task.input.payloads, [NodeAttempt])
        # Before the workflow learns of the claim: it may deliver at once, and messages for unknown claims are dropped.
        self._held[attempt.id, task.attempt] = _Held(attempt, task.task_token)
        of: WorkflowExecution = task.workflow_execution
        await self._signal_workflow(of.workflow_id, CLAIMED, Claimed(task.attempt, self._inbox), of.run_id)
        return Claim(ClaimToken(attempt.id, task.attempt, task.task_token.hex()), attempt)

    def _begin_poll(self, queue: str, seconds: float) -> None:
        self.polls[queue] = asyncio.create_task(self._client.workflow_service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(namespace=self.namespace, task_queue=TaskQueue(name=queue),
                                         identity=self.worker), timeout=timedelta(seconds=seconds)))

    def _end_poll(self, queue: str) -> PollActivityTaskQueueResponse | None:
        task = self.polls.pop(queue).result()
        return task if task.task_token else None

    async def _listen(self) -> None:
        """Accept the deliveries of workflows to this worker."""
        while True:
            try:
                self._begin_poll(self._inbox, POLL_SECONDS)
                await asyncio.wait([self.polls[self._inbox]])
                task = self._end_poll(self._inbox)
                if task is None:
                    continue
                (delivery,) = await self._client.data_converter.decode(task.input.payloads, [WorkerDelivery])
                self._accept(delivery)
                await self._respond(task.task_token)
            except UNANSWERED:
                await asyncio.sleep(1.0)

    def _accept(self, delivery: WorkerDelivery) -> None:
        held = self._held.get((delivery.attempt, delivery.claim))
        if held is None:
            return
        if delivery.message is None:
            held.is_cancelled = True
        elif delivery.message not in held.messages:
            held.messages.append(delivery.message)

    def heartbeat(self, token: ClaimToken, progress: str = "") -> HeartbeatReply:
        """Renew the lease, and return what the worker must do."""
        return self._call(self._heartbeat(token, progress), self._patience(token))

    def _patience(self, token: ClaimToken) -> float:
        held = self._held.get((token.id, token.claim))
        return BEAT_SHARE * held.attempt.lease if held is not None else CALL_SECONDS

    async def _heartbeat(self, token: ClaimToken, progress: str) -> HeartbeatReply:
        held = self._held.get((token.id, token.claim))
        request = RecordActivityTaskHeartbeatRequest(
            namespace=self.namespace, task_token=bytes.fromhex(token.secret), identity=self.worker)
        request.details.payloads.extend(await self._client.data_converter.encode([progress]))
        try:
            answer = await self._client.workflow_service.record_activity_task_heartbeat(request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            self._held.pop((token.id, token.claim), None)
            return HeartbeatReply(WorkerOrder.LOST)
        if held is None:
            return HeartbeatReply(WorkerOrder.CANCEL if answer.cancel_requested else WorkerOrder.OK)
        held.is_cancelled |= answer.cancel_requested
        messages, held.messages = tuple(held.messages), []
        return HeartbeatReply(WorkerOrder.CANCEL if held.is_cancelled else WorkerOrder.OK, messages)

    def is_called(self, token: ClaimToken) -> bool:
        held = self._held.get((token.id, token.claim))
        return held is not None and (held.is_cancelled or bool(held.messages))

    def complete(self, token: ClaimToken, result: AttemptResult) -> None:
        """Complete the attempt; StaleToken if the claim is not current."""
        if not self._call(self._respond(bytes.fromhex(token.secret), result), self._patience(token)):
            self._held.pop((token.id, token.claim), None)
            raise StaleToken(token)

    async def _respond(self, task: bytes, result: object = None) -> bool:
        """Complete an activity; return whether it was still this worker's."""
        request = RespondActivityTaskCompletedRequest(namespace=self.namespace, task_token=task, identity=self.worker)
        request.result.payloads.extend(await self._client.data_converter.encode([result]))
        try:
            await self._client.workflow_service.respond_activity_task_completed(request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True


def connection_options(environ: Mapping[str, str], config: HostsConfig) -> dict[str, Any]:
    """Return the options for a team's server: from the table `[hosts]`, else from variables of Temporal's own tools.
    """
    def read(key: str, path: str, variable: str = "") -> bytes | None:
        where = f"[hosts] {key}" if path else variable
        path = path or environ.get(variable, "")
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise UsageError(f"{where}: {path}: {error.strerror}") from None

    options: dict[str, Any] = {}
    key = (read("api_key_file", config.api_key_file) or b"").decode(errors="replace").strip() or \
        environ.get("TEMPORAL_API_KEY")
    if key:
        options["api_key"] = key
    authority = read("tls_ca", config.tls_ca, "TEMPORAL_TLS_SERVER_CA_CERT_PATH")
    certificate = read("tls_certificate", config.tls_certificate, "TEMPORAL_TLS_CLIENT_CERT_PATH")
    private = read("tls_key", config.tls_key, "TEMPORAL_TLS_CLIENT_KEY_PATH")
    if key or authority or certificate or environ.get("TEMPORAL_TLS", "").lower() in ("1", "true"):
        options["tls"] = TLSConfig(server_root_ca_cert=authority, client_cert=certificate, client_private_key=private,
                                   domain=config.tls_server_name or environ.get("TEMPORAL_TLS_SERVER_NAME"))
    return options
