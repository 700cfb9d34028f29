"""Webhooks of forges: a delivery that is signed with the home's secret wakes the runs that have a pull request.

Nothing in a delivery is trusted or kept, not even which repository it is about: the guardians poll their forges
themselves. So a delivery that is repeated, late, out of order or forged by somebody with the secret costs at most one
poll per `GAP_SECONDS`, and a lost one only delays the change until the next poll.

Each forge proves the secret in its own way: GitHub and Gitea by an HMAC-SHA256 of the body, GitLab by the secret
itself. The body is hashed while it is read, and never stored.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import sys
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, RecordUnreadable
from garrison.processes.runtime import Runtime
from garrison.pull_request.wake import wake_all
from garrison.records import atomic
from garrison.web import connections
from garrison.web.responses import json_answer, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

BODY_BYTES = 25 << 20
"""Largest body of a delivery: GitHub's limit."""
READ_SECONDS = 10.0
"""Time for a body: GitHub waits no longer for an answer."""
GAP_SECONDS = 10.0
"""Least time between two wakes: a busy repository delivers several times a second, and a poll costs requests."""
SECRET_LENGTH = 16
"""Fewest characters of a secret."""
GITLAB = "x-gitlab-token"
SIGNATURES = {"x-hub-signature-256": "sha256=", "x-gitea-signature": "", "x-forgejo-signature": ""}
"""Header with the HMAC-SHA256 of the body → what precedes its digits."""


def load_secret(home: Path) -> str:
    """Return the secret of the home's webhooks; create it if there is none.

    Raises RecordUnreadable if the file is too short or readable by other users.
    """
    path = secret_path(home)
    data = atomic.read(path)
    if data is None:
        atomic.make_directory(path.parent)
        atomic.write(path, f"{secrets.token_hex(32)}\n".encode())
        return load_secret(home)
    if path.stat().st_mode & 0o077:
        raise RecordUnreadable(path, "other users can read it; delete it to get a new secret")
    secret = data.decode("ascii", errors="replace").strip()
    if len(secret) < SECRET_LENGTH or not secret.isascii():
        raise RecordUnreadable(path, f"a secret needs at least {SECRET_LENGTH} ASCII characters; delete the file for a "
                                     "new one")
    return secret


def secret_path(home: Path) -> Path:
    return home / "web" / "webhook-secret"


class DeliveryProof:
    """Proof that the sender of one delivery has the secret; fed with its body."""

    def __init__(self, headers: Mapping[str, str], secret: str) -> None:
        """Prepare; header names are in lower case."""
        self._headers = headers
        self._secret = secret.encode()
        self._digest = hmac.new(self._secret, digestmod="sha256")

    @property
    def is_offered(self) -> bool:
        """Return whether the headers contain a proof, and none that is already wrong without the body."""
        if GITLAB in self._headers:
            return self._is_same(self._headers[GITLAB], self._secret)
        return any(name in self._headers for name in SIGNATURES)

    def feed(self, piece: bytes) -> None:
        """Take in a piece of the body."""
        self._digest.update(piece)

    def is_valid(self) -> bool:
        """Return whether every proof in the headers is right; compares in constant time."""
        wanted = self._digest.hexdigest()
        signed = [self._is_same(self._headers[name], f"{prefix}{wanted}".encode())
                  for name, prefix in SIGNATURES.items() if name in self._headers]
        return self.is_offered and all(signed)

    @staticmethod
    def _is_same(given: str, wanted: bytes) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), wanted)


class Webhooks:
    """Receiver of deliveries; without a secret there is none."""

    def __init__(self, home: Path, secret: str = "", *, gap: float = GAP_SECONDS, most_bytes: int = BODY_BYTES,
                 read_seconds: float = READ_SECONDS) -> None:
        self._home, self._secret = home, secret
        self._gap, self._most_bytes, self._read_seconds = gap, most_bytes, read_seconds
        self._last = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._work: set[asyncio.Task[None]] = set()

    @property
    def are_on(self) -> bool:
        return bool(self._secret)

    async def receive(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Check a delivery and wake the runs; the rest of a refused one is not read."""
        proof, size = DeliveryProof(headers, self._secret), 0
        if not proof.is_offered:
            return refusal(request, 401, "the delivery is not signed with the secret of this server", close=True)
        try:
            async with asyncio.timeout(self._read_seconds):
                async for piece in request.stream():
                    size += len(piece)
                    if size > self._most_bytes:
                        return refusal(request, 413, f"a delivery has at most {self._most_bytes >> 20} MiB", close=True)
                    proof.feed(piece)
        except TimeoutError:
            return refusal(request, 408, f"the delivery took longer than {self._read_seconds:g} s", close=True)
        if not proof.is_valid():
            return refusal(request, 401, "wrong signature: the forge needs the secret of this server", close=True)
        connections.recognize(request.scope)
        self.wake_runs()
        return json_answer({"ok": True}, 202)

    def wake_runs(self) -> None:
        """Wake the runs now, or once the last wake is long enough ago."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_at(max(loop.time(), self._last + self._gap), self._begin)

    def _begin(self) -> None:
        # None before the wake: a delivery during it may report a change that it missed, and wakes again.
        self._timer, self._last = None, asyncio.get_running_loop().time()
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._wake))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _wake(self) -> None:
        try:
            wake_all(Runtime.real(self._home))
        except (GarrisonError, OSError) as error:  # the guardians poll later anyway
            print(f"garrison serve: a webhook could not wake the runs: {error}", file=sys.stderr, flush=True)

    async def close(self) -> None:
        """Forget a wake that has not started, and wait for one that has."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._work)
