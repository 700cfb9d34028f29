"""The server and paired devices, without a browser: challenges, revocation of open streams, buttons, certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from garrison.notify import buttons, devices
from garrison.web import server
from garrison.web.access import load_tokens
from go_betweens import make_certificates
from top_support import HomeBuilder
from web_support import Site, site


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Phone:
    """A browser's key, and what it does with it."""

    def __init__(self, made: Site) -> None:
        self.site, self.key, self.id = made, ec.generate_private_key(ec.SECP256R1()), ""

    async def post(self, path: str, body: object, **more: str | None) -> Any:
        data = json.dumps(body).encode()
        headers = self.site.posting(authorization=None, **more)
        return await self.site.ask("POST", path, headers, data)

    async def pair(self, code: str, may: str) -> int:
        point = self.key.public_key().public_bytes(serialization.Encoding.X962,
                                                   serialization.PublicFormat.UncompressedPoint)
        answer = await self.post("/api/pair", {"code": code, "name": "Phone", "may": may, "key": base64url(point)})
        self.id = answer.json.get("device", "")
        return int(answer.status)

    async def challenge(self) -> str:
        return str((await self.post("/api/device/challenge", {"device": self.id})).json["challenge"])

    async def log_in(self, challenge: str, origin: str = "") -> Any:
        here = f"http://{self.site.host}"
        text = f"garrison device\n{origin or here}\n{challenge}".encode()
        halves = utils.decode_dss_signature(self.key.sign(text, ec.ECDSA(hashes.SHA256())))
        signature = base64url(b"".join(half.to_bytes(32, "big") for half in halves))
        return await self.post("/api/device/session", {
            "device": self.id, "challenge": challenge, "signature": signature}, origin=here)


async def test_a_challenge_is_good_once_for_its_device_and_its_page_and_a_revoked_device_gets_nothing(
        tmp_path: Path, builder: HomeBuilder) -> None:
    builder.run("r1", "a")
    async with site(tmp_path) as made:
        phone, thief = Phone(made), Phone(made)
        assert await phone.pair(devices.make_offer(tmp_path, devices.WATCH, time.time()), devices.WATCH) == 200
        challenge = await phone.challenge()
        thief.id = phone.id
        assert (await thief.log_in(await phone.challenge())).status == 404, "another key"
        assert (await phone.log_in(await phone.challenge(), "http://evil.example")).status == 404
        assert (await phone.log_in("made-up")).status == 409
        given = await phone.log_in(challenge)
        assert given.status == 200 and (await phone.log_in(challenge)).status == 409, "used"
        bearer = {"authorization": f"Bearer {given.json['session']}"}
        told = await made.ask("GET", "/api/device", made.headers(**bearer))
        assert (told.json["name"], told.json["may"], told.json["pushes"]) == ("Phone", "watch", False)
        wrong = await made.ask("POST", "/api/device/push", made.posting(**bearer), b'{"subscription": 3}')
        assert wrong.status == 400
        assert (await made.post("/api/device/push", {"subscription": None})).status == 409, "no device"
        reader, writer, status, _ = await made.open("GET", "/api/events?runs=1", made.headers(**bearer))
        assert status == 200
        devices.revoke(tmp_path, "Phone")
        builder.run("r2", "b")  # the list of runs changes: the next event
        async with asyncio.timeout(30):
            while await reader.read(1 << 16):
                pass
        writer.close()
        assert (await made.ask("GET", "/api/device", made.headers(**bearer))).status == 401
        assert (await phone.log_in(await phone.challenge())).status == 404


async def test_a_button_answers_its_question_alone_and_needs_no_session(tmp_path: Path, builder: HomeBuilder) -> None:
    builder.run("r1", "a")
    async with site(tmp_path) as made:
        path = f"/button/{buttons.make(tmp_path, 'r1', 'a', 'a#9', ['Yes'], time.time() + 60)['Yes']}"
        bare = made.headers(authorization=None)
        assert (await made.ask("GET", path, bare)).status == 405, "a preview of the link presses nothing"
        first = await made.ask("POST", path, bare)
        assert first.status == 409 and "not recorded" in first.json["message"], "no such question is open"
        assert (await made.ask("POST", path, bare)).status == 404


async def test_a_renewed_certificate_is_loaded_without_a_restart(tmp_path: Path, capsys: Any) -> None:
    def seen(port: int) -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return ssl.get_server_certificate(("127.0.0.1", port)).encode()

    make_certificates(tmp_path)
    tokens = load_tokens(tmp_path / "home")
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop, files = asyncio.Event(), (tmp_path / "server.pem", tmp_path / "server.key")
    task = asyncio.create_task(server.serve(tmp_path / "home", server.Endpoint(tls=files), tokens, ready.set_result,
                                            stop=stop))
    port = await ready
    first = await asyncio.to_thread(seen, port)
    files[1].write_bytes((tmp_path / "client.key").read_bytes())
    assert await asyncio.to_thread(seen, port) == first, "half renewed: the key does not match"
    files[0].write_bytes((tmp_path / "client.pem").read_bytes())
    assert await asyncio.to_thread(seen, port) != first
    stop.set()
    await task
    assert "the new certificate is not used" in capsys.readouterr().err
