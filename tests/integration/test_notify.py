"""Messages to services and phones: the real program and doubles of ntfy, a JSON service and a push service.

The push service is one as RFC 8030, 8291 and 8292 describe it: behind TLS and a proxy on the loopback interface, under
the name that the endpoint has, so that no check of endpoints is relaxed for it.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from garrison.errors import NotFound, Refused, UsageError
from garrison.notify import buttons, devices
from garrison.notify.push import Subscription
from garrison.system.environment import NOTIFY_URLS
from support import DEADLINE, PROGRAM, Place, git, wait_for

HOST = "fcm.googleapis.com"
SECRET = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
"""Private key of the receiver in the example of RFC 8291."""
PUSH = Subscription(f"https://{HOST}/fcm/send/abc",
                    "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
                    "BTBZMqHH6r4Tts7J_aSIgg")
KEY = "gate:a#1:2026-01-31T12:00:00.000000Z"
ASKED = {"run": "r1", "key": KEY, "event": "question", "node": "a", "question": "a#1", "options": ["Yes", "No"],
         "text": "a waits for you: @everyone <!channel> $(rm) \u202e ship?"}


@dataclass
class Double:
    """A server that records its requests and answers with `status`."""

    server: Any
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


@contextmanager
def double(context: ssl.SSLContext | None = None, *, hangs: bool = False) -> Iterator[Double]:
    """Yield a service on the loopback interface; with a `context`, a proxy behind which every host is that service."""
    freed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
            self.close_connection = False

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            if hangs:
                freed.wait(DEADLINE)
            self.send_response(made.status)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Double(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            freed.set()
            server.shutdown()
            thread.join()


def send(home: Path, message: dict[str, Any], **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run([sys.executable, "-P", "-m", "garrison.notify.services", str(home)],
                          input=json.dumps(message), env={**clean, **environ}, capture_output=True, text=True,
                          timeout=DEADLINE, check=False)


def configure(home: Path, *lines: str) -> None:
    (home / "config.toml").write_text("\n".join(["[notify]", *lines, ""]))


def test_a_message_of_ntfy_has_a_link_to_its_question_and_buttons_that_are_good_once(tmp_path: Path) -> None:
    with double() as service:
        urls = tmp_path / "urls"
        urls.write_text(f"# mine\nntfy://127.0.0.1:{service.port}/topic\njson://127.0.0.1:{service.port}/x\n")
        urls.chmod(0o600)
        configure(tmp_path, f'urls_file = "{urls}"', 'link = "https://box.example"', "buttons = true")
        done = send(tmp_path, ASKED)
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["JSON: sent", "ntfy: sent"]), done
        assert "topic" not in done.stdout + done.stderr, "its address is a secret"
        [ntfy] = [(headers, json.loads(body)) for path, headers, body in service.got if path == "/"]
        link = "https://box.example/?run=r1&notice=gate%3Aa%231%3A2026-01-31T12%3A00%3A00.000000Z"
        assert link in ntfy[1]["message"] and ntfy[0]["x-click"].startswith("https://box.example/?run=r1")
        assert not set("@<>$()") & set(ntfy[1]["message"].replace(link, ""))
        actions = json.loads(ntfy[0]["x-actions"])
        assert [(each["label"], each["method"]) for each in actions] == [("Yes", "POST"), ("No", "POST")]
        tokens = [each["url"].removeprefix("https://box.example/button/") for each in actions]
        assert not any(token in file.read_text() for file in (tmp_path / "web/buttons").iterdir() for token in tokens)
        with pytest.raises(NotFound):
            buttons.press(tmp_path, f"{tokens[0][:-1]}_", time.time())
        pressed, answer = buttons.press(tmp_path, tokens[0], time.time())
        assert (pressed.run, pressed.node, pressed.question, answer) == ("r1", "a", "a#1", "Yes")
        for token in tokens:
            with pytest.raises(NotFound, match="already pressed"):
                buttons.press(tmp_path, token, time.time())
        token = buttons.make(tmp_path, "r1", "a", "a#1", ["Yes"], time.time() - 1)["Yes"]
        with pytest.raises(NotFound, match="expired"):
            buttons.press(tmp_path, token, time.time())
        for more in ({"options": []}, {"options": list("abcd")}, {"question": ""}):
            send(tmp_path, {**ASKED, **more})
            assert "x-actions" not in next(headers for path, headers, _ in reversed(service.got) if path == "/")


@pytest.mark.parametrize(("lines", "told"), [
    ("https://config.example/get/abc", "apprise has no service for this address"),
    ("include http://config.example/x", "configurations of apprise"), ("/etc/plugins", "plug-ins by path"),
    ("vapid://me@example.com", "garrison serve --qr"), ("nosuch://secret", "no service"),
])
def test_an_invalid_service_address_is_refused_and_not_repeated(tmp_path: Path, lines: str, told: str) -> None:
    urls = tmp_path / "urls"
    urls.write_text(f"\n{lines}\n")
    urls.chmod(0o600)
    configure(tmp_path, f'urls_file = "{urls}"')
    done = send(tmp_path, ASKED)
    assert (done.returncode, done.stderr) == (1, "") and told in done.stdout and f"{urls}:2" in done.stdout
    assert lines.rpartition("/")[2] not in done.stdout.replace(str(urls), "")
    urls.chmod(0o644)
    assert "chmod 600" in send(tmp_path, ASKED).stdout
    urls.unlink()
    assert "cannot be read" in send(tmp_path, ASKED).stdout


def test_a_hanging_service_delays_no_other_message(tmp_path: Path) -> None:
    with double(hangs=True) as service, double() as hook:
        configure(tmp_path, f'webhook = "http://127.0.0.1:{hook.port}/"', "timeout = 2")
        begun = time.monotonic()
        done = subprocess.run([*PROGRAM, "--home", str(tmp_path), "notify", "test"], capture_output=True, text=True,
                              env={**os.environ, NOTIFY_URLS: f"json://127.0.0.1:{service.port}/secret"},
                              timeout=DEADLINE, check=False)
        assert done.returncode == 1 and "services: no answer within 2 s" in done.stderr
        assert time.monotonic() - begun < 20
        assert "webhook: sent" in done.stdout and hook.got and "secret" not in done.stdout + done.stderr


# ---- pushes


@contextmanager
def push_service(folder: Path) -> Iterator[tuple[Double, dict[str, str]]]:
    """Yield a push service behind a proxy, and the environment in which it is reached."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1)) \
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False) \
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with double(context) as service:
        yield service, {"HTTPS_PROXY": f"http://127.0.0.1:{service.port}",
                        "REQUESTS_CA_BUNDLE": str(folder / "cert.pem")}


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def decrypted(body: bytes) -> str:
    """Return what a browser with the keys of the example reads in a push (RFC 8291, written from its text)."""
    salt, (size, length) = body[:16], struct.unpack("!LB", body[16:21])
    sender, sealed = body[21:21 + length], body[21 + length:]
    assert size >= len(sealed) and length == 65
    own = ec.derive_private_key(int.from_bytes(decoded(SECRET), "big"), ec.SECP256R1())
    shared = own.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender))

    def derive(length: int, salt: bytes, info: bytes, secret: bytes) -> bytes:
        return HKDF(hashes.SHA256(), length, salt, info).derive(secret)

    secret = derive(32, decoded(PUSH.auth), b"WebPush: info\0" + decoded(PUSH.p256dh) + sender, shared)
    key = derive(16, salt, b"Content-Encoding: aes128gcm\0", secret)
    nonce = derive(12, salt, b"Content-Encoding: nonce\0", secret)
    padded = AESGCM(key).decrypt(nonce, sealed, None).rstrip(b"\0")
    assert padded[-1] == 2, "the last record"
    return padded[:-1].decode()


def paired(home: Path) -> devices.Device:
    key = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    code = devices.make_offer(home, devices.DECIDE, time.time())
    made = devices.pair(home, code, "Phone", devices.WATCH, base64.urlsafe_b64encode(key).decode().rstrip("="),
                        now=time.time(), at="2026-01-31T12:00:00.000000Z")
    devices.subscribe(home, made.id, PUSH.check())
    return made


def test_a_push_is_signed_and_encrypted_and_contains_no_text_of_an_agent(tmp_path: Path) -> None:
    device = paired(tmp_path)
    with push_service(tmp_path) as (service, environ):
        service.status = 201
        done = send(tmp_path, ASKED, **environ)
        assert (done.returncode, done.stdout) == (0, "Phone: sent\n"), done
        [(path, headers, body)] = service.got
        assert path == "/fcm/send/abc" and headers["content-encoding"] == "aes128gcm" and int(headers["ttl"]) == 86_400
        assert json.loads(decrypted(body)) == {
            "title": "garrison: r1", "body": "a waits for you", "tag": f"r1 {KEY}",
            "path": "/?run=r1&notice=gate%3Aa%231%3A2026-01-31T12%3A00%3A00.000000Z"}
        token, key = (part.partition("=")[2] for part in headers["authorization"].removeprefix("vapid ").split(", "))
        signed, _, signature = token.rpartition(".")
        halves = (int.from_bytes(decoded(signature)[:32], "big"), int.from_bytes(decoded(signature)[32:], "big"))
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(key)).verify(
            utils.encode_dss_signature(*halves), signed.encode(), ec.ECDSA(hashes.SHA256()))
        claims = json.loads(decoded(signed.partition(".")[2]))
        assert claims["aud"] == f"https://{HOST}" and time.time() < claims["exp"] <= time.time() + 86_400
        assert claims["sub"] == "mailto:garrison@example.com"
        configure(tmp_path, "push_text = true")
        send(tmp_path, ASKED, **environ)
        assert "ship?" in json.loads(decrypted(service.got[1][2]))["body"]
        service.status = 410
        assert send(tmp_path, ASKED, **environ).returncode == 1
        [left] = devices.list_devices(tmp_path)
        assert left.push is None, "the push service does not know it any more"
        assert send(tmp_path, ASKED, **environ).stdout == "" and len(service.got) == 3
    devices.revoke(tmp_path, "Phone")
    devices.forget_endpoint(tmp_path, device.id, PUSH.endpoint)
    assert devices.list_devices(tmp_path) == [] and devices.may(tmp_path, device.id) == ""


@pytest.mark.parametrize("endpoint", [
    "http://fcm.googleapis.com/x", "https://fcm.googleapis.com:8443/x", "https://fcm.googleapis.com.evil.example/x",
    "https://evilnotify.windows.com/x", "https://user@fcm.googleapis.com/x", "https://127.0.0.1/x", "https://[::1]/x",
    "https://fcm.googleapis.com@evil.example/x", "https://evil.example#.push.apple.com", "https://fcm.googleapis.com\\@x/",
    "https://fcm.googleapis.com./x", "file:///etc/passwd", "https://169.254.169.254/latest", "", "https://[/x",
    "https://fcm.googleapis.com/x y", "https://fcm.googleapis.com/" + 1000 * "x", "https://localhost/.notify.windows.com",
])
def test_a_push_goes_to_no_other_host(endpoint: str) -> None:
    with pytest.raises(UsageError, match="pushes go only through the services"):
        Subscription(endpoint, PUSH.p256dh, PUSH.auth).check()


@pytest.mark.parametrize("endpoint", [
    "https://updates.push.services.mozilla.com/wpush/v2/x", "https://web.push.apple.com/x", PUSH.endpoint,
    "https://wns2-par02p.notify.windows.com/w/?token=x", "https://fcm.googleapis.com:443/x"])
def test_the_hosts_of_browser_makers_are_known(endpoint: str) -> None:
    assert Subscription(endpoint, PUSH.p256dh, PUSH.auth).check()
    with pytest.raises(UsageError, match="no keys"):
        Subscription(endpoint, PUSH.p256dh, PUSH.auth[:-2]).check()


def test_a_code_is_withdrawn_after_too_many_wrong_ones(tmp_path: Path) -> None:
    code = devices.make_offer(tmp_path, devices.WATCH, 1000.0)
    for file in (tmp_path / "web").iterdir():
        assert file.stat().st_mode & 0o077 == 0 and code not in file.read_text()
    given = {"name": "Phone", "may": "watch", "key": PUSH.p256dh, "now": 1001.0, "at": ""}
    for wrong in range(devices.TRIES):
        with pytest.raises(Refused, match="is wrong"):
            devices.pair(tmp_path, f"{wrong}", **given)
    with pytest.raises(Refused, match="used or has expired"):
        devices.pair(tmp_path, code, **given)
    for key in ("", "AAAA", PUSH.p256dh[:-4] + "AAAA", "é"):
        with pytest.raises(UsageError, match="not a P-256 public key"):
            devices.pair(tmp_path, code, **{**given, "key": key})


def test_a_button_answers_a_run_at_work_while_another_service_hangs(place: Place) -> None:
    """From the ntfy message to the landing: the button gives the answer, and the hanging service delays nothing."""
    urls, graph = place.root / "urls", place.root / "asked.dot"
    graph.write_text("""digraph asked { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare];
        ask [shape=hexagon, label="Which colour?"]; red [shape=box, command="echo red > c.txt"];
        blue [shape=box, command="echo blue > c.txt"]; start -> ask; ask -> red [label="Red"];
        ask -> blue [label="Blue"]; red -> exit; blue -> exit; }""")
    with double() as ntfy, double(hangs=True) as stuck:
        urls.write_text(f"ntfy://127.0.0.1:{ntfy.port}/topic\njson://127.0.0.1:{stuck.port}/x\n")
        urls.chmod(0o600)
        place.configure(f'\n[notify]\nurls_file = "{urls}"\nbuttons = true\n')
        page = place.begin("serve", "--port", "0")
        wait_for("the page is served", lambda: devices.read_serving(place.home))
        run = place.launch(graph)
        wait_for("it is asked", lambda: [headers for _, headers, _ in ntfy.got if "x-actions" in headers])
        [actions] = [json.loads(headers["x-actions"]) for _, headers, _ in ntfy.got if "x-actions" in headers]
        assert [each["label"] for each in actions] == ["Red", "Blue"]
        press = urllib.request.Request(actions[1]["url"], method="POST")
        assert urllib.request.urlopen(press, timeout=DEADLINE).status == 200
        for each in actions:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(urllib.request.Request(each["url"], method="POST"), timeout=DEADLINE)
        begun = time.monotonic()
        assert place.finish(run) == 0, place.logs()
        assert time.monotonic() - begun < DEADLINE / 2
        assert git(place.repo, "show", "main:c.txt") == "blue" and stuck.got
        page.terminate()
        page.wait(DEADLINE)
