"""Webhooks of forges at the server: which deliveries wake the runs, and what hostile ones cost."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import stat
from pathlib import Path

import pytest

from garrison.errors import RecordUnreadable
from garrison.web import webhooks
from garrison.web.access import WEBHOOK
from garrison.web.webhooks import DeliveryProof, Webhooks, load_secret, secret_path
from support import DEADLINE
from web_support import Site, site

SECRET = "a secret of this home"
BODY = json.dumps({"action": "submitted", "repository": {"full_name": "o/r"}}).encode()


def signed(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


GITHUB = {"x-hub-signature-256": f"sha256={signed(BODY)}"}
GITEA = {"x-gitea-signature": signed(BODY), "x-hub-signature-256": f"sha256={signed(BODY)}"}
FORGEJO = {"x-forgejo-signature": signed(BODY), "x-gitea-signature": signed(BODY)}
GITLAB = {"x-gitlab-token": SECRET}


def delivery(server: Site, headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a forge: no bearer, no origin, and its own content type."""
    return {"host": server.host, "content-type": "application/json", **headers}


class Wakes:
    """Counts what the deliveries caused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        monkeypatch.setattr(webhooks, "wake_all", lambda runtime: setattr(self, "times", self.times + 1))

    async def until(self, times: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.times < times:
                await asyncio.sleep(0.005)


@pytest.fixture
def wakes(monkeypatch: pytest.MonkeyPatch) -> Wakes:
    return Wakes(monkeypatch)


async def test_a_signed_delivery_wakes_the_runs(tmp_path: Path, wakes: Wakes) -> None:
    async with site(tmp_path, webhooks=Webhooks(tmp_path, SECRET, gap=0.0)) as server:
        for times, headers in enumerate((GITHUB, GITEA, FORGEJO, GITLAB), 1):
            assert (await server.ask("POST", WEBHOOK, delivery(server, headers), BODY)).status == 202
            await wakes.until(times)


UNPROVEN: list[dict[str, str]] = [
    {}, {"x-hub-signature-256": "sha256="}, {"x-hub-signature-256": signed(BODY)},
    {"x-hub-signature-256": f"sha256={signed(BODY, 'another')}"}, {"x-hub-signature-256": f"sha1={signed(BODY)}"},
    {"x-hub-signature": f"sha256={signed(BODY)}"}, {"x-gitea-signature": signed(BODY + b" ")},
    {"x-gitea-signature": signed(BODY).upper()}, {"x-gitlab-token": ""}, {"x-gitlab-token": SECRET + " x"},
    {"x-gitlab-token": f"{SECRET}, {SECRET}"}, {"x-gitlab-token": "\xff\xfe"},
    {**GITLAB, "x-hub-signature-256": "sha256=0"}, {**GITHUB, "x-gitea-signature": "0"},
    {**GITHUB, "origin": "https://evil.example"}, {**GITHUB, "sec-fetch-site": "cross-site"},
    {**GITHUB, "host": "evil.example"}, {"authorization": f"Bearer {SECRET}"},
]


async def test_an_unproven_delivery_wakes_nothing(tmp_path: Path, wakes: Wakes) -> None:
    async with site(tmp_path, webhooks=Webhooks(tmp_path, SECRET)) as server:
        for headers in UNPROVEN:
            answer = await server.ask("POST", WEBHOOK, delivery(server, headers), BODY)
            assert answer.status in (401, 403, 421) and answer.headers["connection"] == "close", headers
            assert SECRET not in answer.body.decode()
        assert (await server.ask("POST", WEBHOOK, delivery(server, GITHUB), BODY)).status == 202
        await wakes.until(1)
    assert wakes.times == 1


async def test_there_is_no_webhook_without_a_secret(tmp_path: Path, wakes: Wakes) -> None:
    async with site(tmp_path) as server:
        empty = {"x-hub-signature-256": f"sha256={signed(BODY, '')}"}
        assert (await server.ask("POST", WEBHOOK, delivery(server, empty), BODY)).status == 404
        assert (await server.ask("POST", WEBHOOK, delivery(server, {"x-gitlab-token": ""}), BODY)).status == 404
    assert wakes.times == 0


async def test_the_body_of_a_delivery_is_ignored(tmp_path: Path, wakes: Wakes) -> None:
    """Whatever it says, a signed delivery wakes the runs and does nothing else."""
    async with site(tmp_path, webhooks=Webhooks(tmp_path, SECRET, gap=0.0)) as server:
        bodies = (b"", b"\0" * 1000, b"[" * 5000, b'{"ref": "../../etc"}', b"\xff\xfe not json")
        for times, body in enumerate(bodies, 1):
            sent = delivery(server, {"x-gitea-signature": signed(body)})
            assert (await server.ask("POST", WEBHOOK, sent, body)).status == 202
            await wakes.until(times)


async def test_a_storm_of_replays_wakes_once_at_once_and_once_later(tmp_path: Path, wakes: Wakes) -> None:
    async with site(tmp_path, webhooks=Webhooks(tmp_path, SECRET, gap=1.0)) as server:
        for _ in range(40):
            assert (await server.ask("POST", WEBHOOK, delivery(server, GITHUB), BODY)).status == 202
        began = asyncio.get_running_loop().time()
        await wakes.until(2)  # the last delivery may announce something newer than the first wake saw
        assert asyncio.get_running_loop().time() - began < 1.0 + DEADLINE / 10
    assert wakes.times == 2


async def test_a_body_is_bounded_in_size_and_time(tmp_path: Path, wakes: Wakes) -> None:
    bounded = Webhooks(tmp_path, SECRET, most_bytes=100_000, read_seconds=0.3)
    async with site(tmp_path, webhooks=bounded) as server:
        large = b"x" * 100_001
        chunked = {**delivery(server, GITLAB), "transfer-encoding": "chunked"}
        endless = b"".join(b"4000\r\n" + b"y" * 0x4000 + b"\r\n" for _ in range(8))
        for headers, body in ((delivery(server, {"x-gitea-signature": signed(large)}), large), (chunked, endless)):
            _, writer, status, _ = await server.open("POST", WEBHOOK, headers, body)
            writer.close()
            assert status == 413
        writer, status = await _send_half(server)
        writer.close()
        assert status == 408
    assert wakes.times == 0


async def _send_half(server: Site) -> tuple[asyncio.StreamWriter, int]:
    """Send the head of a delivery and a part of its body; return the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = [f"POST {WEBHOOK} HTTP/1.1", f"host: {server.host}", f"content-length: {len(BODY)}",
            f"x-gitea-signature: {signed(BODY)}", "", ""]
    writer.write("\r\n".join(head).encode() + BODY[:10])
    async with asyncio.timeout(DEADLINE):
        line = await reader.readline()
    return writer, int(line.split()[1])


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(given: bytes, wanted: bytes) -> bool:
        compared.append(given)
        return real(given, wanted)

    monkeypatch.setattr(webhooks.hmac, "compare_digest", compare)
    for headers in (GITHUB, GITEA, FORGEJO, GITLAB):
        compared.clear()
        proof = DeliveryProof(headers, SECRET)
        proof.feed(BODY)
        assert proof.is_valid()
        assert set(compared) == {value.encode() for value in headers.values()}


def test_the_secret_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    made = load_secret(tmp_path)
    path = secret_path(tmp_path)
    assert len(made) == 64 and load_secret(tmp_path) == made and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(RecordUnreadable, match="other users can read it"):
        load_secret(tmp_path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(RecordUnreadable, match="16 ASCII characters"):
        load_secret(tmp_path)
