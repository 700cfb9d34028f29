"""What a confined client can and cannot do through the proxy."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from garrison.records import costs
from garrison.records.api_answers import read_answer
from garrison.records.budget import Limits
from garrison.sandbox.proxy import upstream
from garrison.sandbox.proxy.apis import APIS, ApiName
from garrison.sandbox.proxy.process import LOOKUPS
from garrison.sandbox.proxy.registration import ApiAccess
from garrison.sandbox.proxy.relay import MAX_OPENING, Patience
from garrison.values import replace
from proxy_support import (
    SHORT,
    Web,
    body_of,
    certificate,
    hello,
    plain,
    read_all,
    read_head,
    send_in_pieces,
    serving,
    status_of,
)
from support import DEADLINE, until

KEY = "sk-real-key"


def set_name_server(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], list[str]]) -> None:
    """Have names resolved by `answer`; addresses stay what they are."""
    real = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **options: Any) -> list[Any]:
        if not host or not any(map(str.isalpha, str(host))) or ":" in str(host):
            return real(host, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in answer(host)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def anthropic(url: str) -> ApiAccess:
    return ApiAccess(ApiName.ANTHROPIC, url, "x-api-key", KEY)


def message(id_: str, model: str, tokens_in: int, tokens_out: int) -> dict[str, object]:
    usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
    return {"type": "message", "id": id_, "model": model, "usage": usage}


# ---- tunnels


def test_tunnels_https_to_an_allowed_host_without_opening_it(
        tmp_path: Path, certified: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = certified
    with Web(plain(b"secret page"), server) as web, serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        raw, head = proxy.tunnel(f"127.0.0.1:{web.port}")
        assert status_of(head) == 200
        with client.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert read_all(tls).endswith(b"secret page")


def test_a_tunnel_passes_what_the_client_sent_early(tmp_path: Path) -> None:
    with Web(plain()) as web, serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        place = f"127.0.0.1:{web.port}".encode()
        early = b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % place
        answer = proxy.send(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n%s" % (place, place, early))
        assert answer.endswith(b"hello")


def test_refuses_and_records_other_hosts(tmp_path: Path) -> None:
    with serving(tmp_path, hosts=("default",)) as proxy:
        for place in ("example.com:443", "127.0.0.1:1", "[::1]:443", "pypi.org:22", "pypi.org:80",
                      "169.254.169.254:80", "metadata.google.internal:80", "xn--pypi-5na.org:443",
                      "evil.pypi.org:443"):
            client, head = proxy.tunnel(place)
            with client:
                assert (status_of(head), place in read_all(client).decode()) == (403, True), place
            refused = proxy.refused[place]
            assert (refused["count"], bool(refused["entry"])) == (1, not place.endswith(":80")), place


def test_refuses_an_allowed_name_that_leads_into_the_machines_network(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = {"127.0.0.1": "loopback", "10.0.0.7": "private", "169.254.169.254": "metadata", "::1": "loopback",
              "fe80::1": "link-local", "::ffff:127.0.0.1": "loopback", "64:ff9b::a00:1": "private",
              "0.0.0.0": "unspecified", "100.64.0.1": "not public", "168.63.129.16": "metadata", "fd00::1": "private"}
    leads = {f"n{number}.example.org": address for number, address in enumerate(inside)}
    set_name_server(monkeypatch, lambda host: ["93.184.215.14", leads[host]])
    with serving(tmp_path, hosts=("*.example.org",)) as proxy:
        for name, address in leads.items():
            client, head = proxy.tunnel(f"{name}:443")
            client.close()
            assert status_of(head) == 403, address
            assert inside[address] in proxy.refused[f"{name}:443"]["reason"], address


def test_connects_to_the_address_that_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(host: str) -> list[str]:
        asked.append(host)
        return ["93.184.215.14" if len(asked) == 1 else "127.0.0.1"]

    opened = []

    async def connect(address: str, _port: int, **_options: object) -> None:
        opened.append(address)
        raise OSError("no network here")

    set_name_server(monkeypatch, answer)
    with serving(tmp_path, hosts=("pypi.org",)) as proxy:
        monkeypatch.setattr(asyncio, "open_connection", connect)
        client, head = proxy.tunnel("pypi.org:443")
        client.close()
    assert status_of(head) == 502
    assert (asked, opened) == (["pypi.org"], ["93.184.215.14"])


def test_one_agents_flood_of_names_leaves_lookups_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go = [0], threading.Event()

    def answer(_host: str) -> list[str]:
        asked[0] += 1
        go.wait(30)
        return []

    set_name_server(monkeypatch, answer)
    with serving(tmp_path, replace(SHORT, lookup=0.2), hosts=("*.example.org",)) as proxy:
        clients = [proxy.connect() for _ in range(40)]
        for number, client in enumerate(clients):
            place = f"n{number}.example.org:443"
            client.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        assert {status_of(read_head(client)) for client in clients} == {502}, "no name server answers"
        assert asked[0] == MAX_OPENING < LOOKUPS, "who gives up leaves a thread behind that still asks"
        go.set()
        until(lambda: status_of(proxy.tunnel("n.example.org:443")[1]) == 403)


def test_a_private_name_is_reached_if_it_is_listed_as_private(tmp_path: Path) -> None:
    with Web(plain()) as web:
        for entry, status in ((f"localhost:{web.port}", 200), (f"private localhost:{web.port}", 200)):
            with serving(tmp_path, hosts=(entry,)) as proxy:
                client, head = proxy.tunnel(f"localhost:{web.port}")
                client.close()
                assert status_of(head) == status


# ---- forwarded requests


def test_forwards_plain_http_to_an_allowed_host(tmp_path: Path) -> None:
    with Web(plain()) as web, serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        place = f"127.0.0.1:{web.port}"
        answer = proxy.send(f"GET http://{place}/a?b=1 HTTP/1.1\r\nHost: {place}\r\nProxy-Authorization: Basic x\r\n"
                            f"Connection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\r\n".encode())
        assert status_of(answer) == 200
        assert answer.endswith(b"hello")
        seen = web.seen[0]
        assert seen.path == "/a?b=1"
        assert seen.headers["x-end"] == "2"
        assert not {"proxy-authorization", "x-hop"} & {name.lower() for name in seen.headers}


def test_serves_several_requests_of_a_connection(tmp_path: Path) -> None:
    with Web(plain()) as web, serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        place = f"127.0.0.1:{web.port}"
        one = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n"
        last = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n"
        assert proxy.send((one + one + last).encode()).count(b"hello") == 3


def test_passes_bodies_both_ways_as_they_arrive(tmp_path: Path) -> None:
    with Web(lambda seen: (200, {}, [seen.body[:3], seen.body[3:]])) as web, \
            serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        place = f"127.0.0.1:{web.port}"
        answer = proxy.send(f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n"
                            "Expect: 100-continue\r\nConnection: close\r\n\r\n5\r\nabcde\r\n0\r\n\r\n".encode())
        assert b"abc" in answer
        assert web.seen[0].body == b"abcde"


HOSTILE = {
    "two lengths": "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    "length and chunks": "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked"
                         "\r\n\r\n0\r\n\r\n",
    "odd coding": "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "two hosts": "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nHost: other\r\n\r\n",
    "another host": "GET http://HOST/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "no host": "GET http://HOST/ HTTP/1.0\r\n\r\n",
    "user info": "GET http://HOST@example.com/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "https in the open": "GET https://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "another scheme": "GET file:///etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a fragment": "GET http://HOST/#@example.com/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a backslash": "GET http://HOST\\@example.com/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "connect elsewhere": "CONNECT HOST HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "connect with a body": "CONNECT HOST HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\nabc",
    "connect to a number": "CONNECT 2130706433:80 HTTP/1.1\r\nHost: 2130706433:80\r\n\r\n",
    "connect to hex": "CONNECT 0x7f.1:80 HTTP/1.1\r\nHost: 0x7f.1:80\r\n\r\n",
    "connect without port": "CONNECT localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a zone": "CONNECT [fe80::1%25lo]:80 HTTP/1.1\r\nHost: [fe80::1%25lo]:80\r\n\r\n",
    "port 0": "CONNECT 127.0.0.1:0 HTTP/1.1\r\nHost: 127.0.0.1:0\r\n\r\n",
    "a line in a header": "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: a\rGET / HTTP/1.1\r\n\r\n",
    "a space before the colon": "GET http://HOST/ HTTP/1.1\r\nHost : HOST\r\n\r\n",
    "no HTTP": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "asterisk": "OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "own page": "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "huge head": "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nX: " + "a" * 100_000 + "\r\n\r\n",
    "long target": "GET http://HOST/" + "a" * 9000 + " HTTP/1.1\r\nHost: HOST\r\n\r\n",
}


def test_a_hostile_client_gets_nothing(tmp_path: Path) -> None:
    with Web(plain(b"treasure")) as web, serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        for name, request in HOSTILE.items():
            answer = proxy.send(request.replace("HOST", f"127.0.0.1:{web.port}").encode("latin-1"))
            assert 400 <= status_of(answer) < 600, name
            assert (b"treasure" in answer, web.seen) == (False, []), name


def test_a_request_in_the_body_of_another_is_not_seen_by_the_server(tmp_path: Path) -> None:
    inner = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    with Web(plain()) as web, serving(tmp_path, hosts=(f"127.0.0.1:{web.port}",)) as proxy:
        place = f"127.0.0.1:{web.port}".encode()
        proxy.send(b"GET http://%s/outer HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                   % (place, place, len(inner), inner))
        assert [seen.path for seen in web.seen] == ["/outer"]


def test_a_head_that_drips_is_cut(tmp_path: Path) -> None:
    with serving(tmp_path, hosts=("default",)) as proxy, proxy.connect() as client:
        began = time.monotonic()
        client.sendall(b"GET http://pypi.org/ HTTP/1.1\r\n")
        with pytest.raises(OSError):
            for _ in range(200):
                client.sendall(b"X: y\r\n")
                time.sleep(0.02)
        assert time.monotonic() - began < SHORT.head + 2


def test_connections_beyond_the_limit_are_closed_and_others_served(tmp_path: Path) -> None:
    with serving(tmp_path, most=3, hosts=("default",)) as proxy:
        held = [proxy.connect() for _ in range(3)]
        for client in held:
            client.sendall(b"G")
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        assert proxy.send(request) == b"", "a silent one would in the end be closed even without a bound"
        for client in held:
            client.close()
        until(lambda: status_of(proxy.send(request)) == 400)


def test_goes_through_the_users_own_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(request: Any) -> Any:
        asked.append((request.command, request.path, request.headers["Proxy-Authorization"]))
        return plain(b"" if request.command == "CONNECT" else b"far")(request)

    with Web(answer) as outer, serving(tmp_path, hosts=("127.0.0.1:8",)) as inner:
        monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{outer.port}")
        told = inner.send(b"GET http://127.0.0.1:8/ HTTP/1.1\r\nHost: 127.0.0.1:8\r\nConnection: close\r\n\r\n")
        assert told.endswith(b"far")
        assert asked == [("CONNECT", "127.0.0.1:8", "Basic bWU6cGFzcw=="), ("GET", "/", None)]


# ---- model APIs


def test_adds_the_key_and_drops_what_the_client_sends_as_one(tmp_path: Path) -> None:
    body = message("msg_1", "claude-haiku-4", 10, 5)
    with Web(plain(json.dumps(body).encode())) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        answer = proxy.ask("POST", "/anthropic/v1/messages?beta=true", b"{}", X_Api_Key="dummy",
                           Authorization="Bearer dummy", Accept_Encoding="gzip", Anthropic_Version="2023-06-01")
        assert body_of(answer) == body
        seen = web.seen[0]
        assert seen.path == "/v1/messages?beta=true"
        assert seen.headers["x-api-key"] == KEY
        assert seen.headers["authorization"] is None
        assert seen.headers["accept-encoding"] == "identity"
        assert seen.headers["anthropic-version"] == "2023-06-01"
        [line] = proxy.usage
        assert (line["model"], line["input"], line["output"]) == ("claude-haiku-4", 10, 5)


def test_a_client_that_requests_the_proxys_own_path_is_served(tmp_path: Path) -> None:
    with Web(plain(b"{}")) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        place = f"127.0.0.1:{proxy.port}"
        answer = proxy.send(f"GET http://{place}/anthropic/v1/models HTTP/1.1\r\nHost: {place}\r\n"
                            "Connection: close\r\n\r\n".encode())
        assert status_of(answer) == 200
        assert web.seen[0].headers["x-api-key"] == KEY


def test_uses_the_key_for_model_calls_only(tmp_path: Path) -> None:
    with Web(plain()) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        for asked in ("POST /anthropic/v1/messages/batches", "GET /anthropic/v1/files",
                      "POST /anthropic/v1/../v1/messages", "POST /anthropic/v1/%6dessages",
                      "DELETE /anthropic/v1/messages", "GET /anthropic/v1/organizations",
                      "POST /openai/v1/fine_tuning/jobs", "POST /google/v1beta/cachedContents", "POST /v1/messages"):
            assert status_of(proxy.ask(*asked.split())) in (400, 404), asked
        assert web.seen == []


def test_an_api_without_key_is_refused_in_its_own_form(tmp_path: Path) -> None:
    with serving(tmp_path, hosts=("default",)) as proxy:
        answer = proxy.ask("POST", "/openai/v1/responses", b"{}")
        assert status_of(answer) == 403
        assert "OPENAI_API_KEY" in body_of(answer)["error"]["message"]


def test_a_host_of_another_name_is_refused(tmp_path: Path) -> None:
    with Web(plain()) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        answer = proxy.send(b"GET /anthropic/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert status_of(answer) == 400
        assert web.seen == []


def test_a_listener_that_others_can_reach_asks_for_its_secret(tmp_path: Path) -> None:
    with Web(plain(b"{}")) as web, serving(tmp_path, apis=(anthropic(web.url),), secret="s3cret") as proxy:
        assert status_of(proxy.ask("GET", "/anthropic/v1/models")) == 401
        assert status_of(proxy.ask("GET", "/anthropic/v1/models", X_Api_Key="sk-ant-api03-garrison-s3cret")) == 200


def test_streams_as_data_arrives(tmp_path: Path) -> None:
    event, seen = b'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n', threading.Event()

    def answer(_seen: object) -> tuple[int, dict[str, str], list[bytes]]:
        def parts():
            yield event
            assert seen.wait(10), "the first part waits for the second"
            yield event

        return 200, {"content-type": "text/event-stream"}, parts()

    with Web(answer) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy, proxy.connect() as client:
        client.settimeout(5)
        client.sendall(f"POST /anthropic/v1/messages HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n"
                       "Content-Length: 2\r\n\r\n{}".encode())
        assert status_of(read_head(client)) == 200
        assert b"content_block_delta" in client.recv(4096)
        seen.set()


def test_a_client_that_leaves_ends_the_call_and_pays_for_it(tmp_path: Path) -> None:
    began = json.dumps({"type": "message_start", "message": {
        "id": "msg_9", "model": "claude-haiku-4", "usage": {"input_tokens": 100, "output_tokens": 1}}})
    gone: list[float] = []

    def answer(_seen: object) -> tuple[int, dict[str, str], list[bytes]]:
        def parts():
            yield f"data: {began}\n\n".encode()
            try:
                for _ in range(400):
                    time.sleep(0.02)
                    yield b'data: {"type": "content_block_delta", "delta": {"text": "' + b"x" * 400 + b'"}}\n\n'
            finally:
                gone.append(time.monotonic())

        return 200, {"content-type": "text/event-stream"}, parts()

    with Web(answer) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        with proxy.connect() as client:
            client.sendall(f"POST /anthropic/v1/messages HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n"
                           "Content-Length: 2\r\n\r\n{}".encode())
            read_head(client)
            client.recv(2000)
        until(lambda: proxy.usage)
        [line] = proxy.usage
        assert line["estimated"] is True
        assert (line["message"][:6], line["input"]) == ("msg_9-", 100)
        assert line["output"] >= 1
        until(lambda: gone)


def test_a_client_that_leaves_before_the_answer_pays_for_its_question(tmp_path: Path) -> None:
    asked, go = threading.Event(), threading.Event()

    def answer(_seen: object) -> tuple[int, dict[str, str], list[bytes]]:
        asked.set()
        go.wait(10)
        return 200, {"content-length": "2"}, [b"{}"]

    with Web(answer) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        with proxy.connect() as client:
            client.sendall(f"POST /anthropic/v1/messages HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n"
                           "Content-Length: 4000\r\n\r\n".encode() + b"x" * 4000)
            assert asked.wait(10)
        until(lambda: proxy.usage)
        go.set()
        assert [(line["input"], line["estimated"]) for line in proxy.usage] == [(1000, True)]


def test_a_failed_call_costs_nothing(tmp_path: Path) -> None:
    with Web(plain(b'{"type": "error"}', 529)) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        assert status_of(proxy.ask("POST", "/anthropic/v1/messages", b"{}")) == 529
        assert proxy.usage == []


ERROR = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
STREAM = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(("status", "headers", "body", "seen", "wait"), [
    (529, {}, ERROR, (529, "overloaded_error", "Overloaded"), None),
    (503, {"retry-after": "120"}, b"<html>upstream  down</html>", (503, "", "<html>upstream down</html>"), 120),
    (429, {"retry-after-ms": "1500"}, b'{"error":{"code":"insufficient_quota","type":"x","message":"m"}}',
     (429, "insufficient_quota", "m"), 1.5),
    (429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s",
           "x-ratelimit-remaining-requests": "9", "x-ratelimit-reset-requests": "24h"}, b"", (429, "", ""), 360),
    (200, STREAM, b"event: error\ndata: " + ERROR + b"\n\n", (200, "overloaded_error", "Overloaded"), None),
])
def test_the_last_failure_of_an_api_is_kept_until_it_answers(
        tmp_path: Path, status: int, headers: dict[str, str], body: bytes, seen: tuple[object, ...],
        wait: float | None) -> None:
    answers = [(status, headers, [body])] * 2 + [(200, {}, [b"{}"])]
    with Web(lambda _asked: answers.pop(0)) as web, serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        for count in (1, 2):
            proxy.ask("POST", "/anthropic/v1/messages", b"{}")
            known = read_answer(proxy.folder)
            assert (known.status, known.error, known.message, known.count) == (*seen, count)
            assert (known.resets_at and round(known.resets_at - known.at, 1)) == wait
        assert known.since < known.at
        proxy.ask("POST", "/anthropic/v1/messages", b"{}")
        assert read_answer(proxy.folder) is None


def test_an_api_that_is_away_is_an_error_in_its_own_form(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with serving(tmp_path, apis=(anthropic(f"http://127.0.0.1:{port}"),)) as proxy:
        answer = proxy.ask("POST", "/anthropic/v1/messages", b"{}")
        assert status_of(answer) == 502
        assert "cannot be reached" in body_of(answer)["error"]["message"]
        assert proxy.usage == []


def test_an_answer_before_the_end_of_the_request_reaches_the_client(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, \
            serving(tmp_path, apis=(anthropic(f"http://127.0.0.1:{server.getsockname()[1]}"),)) as proxy:
        def refuse() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 413 Too Long\r\nContent-Length: 8\r\n\r\ntoo long")
                time.sleep(0.1)

        thread = threading.Thread(target=refuse)
        thread.start()
        answer = proxy.ask("POST", "/anthropic/v1/messages", b"x" * (8 << 20))
        thread.join()
        assert (status_of(answer), answer[-8:]) == (413, b"too long")
        assert proxy.usage == []


def test_calls_share_a_connection_to_the_api(tmp_path: Path) -> None:
    with Web(plain(b'{"type": "message", "usage": {"input_tokens": 1}}')) as web, \
            serving(tmp_path, apis=(anthropic(web.url),)) as proxy:
        for _ in range(3):
            assert status_of(proxy.ask("POST", "/anthropic/v1/messages", b"{}")) == 200
        assert len({seen.client_address for seen in web.seen}) == 1


def test_an_https_api_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 certified: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = certified
    with Web(plain(b"{}"), server) as web:
        access = anthropic(web.url.replace("127.0.0.1", "localhost"))
        with serving(tmp_path, apis=(access,)) as proxy:
            assert status_of(proxy.ask("GET", "/anthropic/v1/models")) == 502, "that certificate is not trusted"
            monkeypatch.setattr(upstream, "tls_context", lambda: client)
            assert status_of(proxy.ask("GET", "/anthropic/v1/models")) == 200


# ---- budgets


def test_no_call_starts_beyond_the_budget(tmp_path: Path) -> None:
    body = message("m1", "claude-opus", 200_000, 0)
    with Web(plain(json.dumps(body).encode())) as web, \
            serving(tmp_path, apis=(anthropic(web.url),), limits=Limits(node=1.0)) as proxy:
        assert status_of(proxy.ask("POST", "/anthropic/v1/messages", b"{}")) == 200
        answer = proxy.ask("POST", "/anthropic/v1/messages", b"{}")
        assert status_of(answer) == 402
        assert body_of(answer)["error"] == {
            "type": "billing_error", "message": "garrison: budget used up: $1.00 of the $1.00 for this node are spent; "
            "raise it in config.toml or the graph"}
        assert len(web.seen) == 1
        assert status_of(proxy.ask("GET", "/anthropic/v1/models")) == 200, "what costs nothing is not refused"


def test_a_budget_counts_what_other_nodes_of_the_run_have_spent(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r1" / "nodes" / "b" / "1" / "claude"
    folder.mkdir(parents=True)
    costs.append_usage(folder / "usage.jsonl", costs.UsageRecord("result", "s", "2026-01-31T00:00:00Z", 5.0))
    with Web(plain(b"{}")) as web, \
            serving(tmp_path, apis=(anthropic(web.url),), limits=Limits(run=5.0)) as proxy:
        assert status_of(proxy.ask("POST", "/anthropic/v1/messages", b"{}")) == 402


def test_calls_that_a_program_itself_reports_are_counted_once_but_limit_the_budget(tmp_path: Path) -> None:
    body = message("m1", "claude-opus", 200_000, 0)
    with Web(plain(json.dumps(body).encode())) as web, serving(
            tmp_path, apis=(anthropic(web.url),), limits=Limits(node=1.0), reported_by="claude-cli/") as proxy:
        assert status_of(proxy.ask("POST", "/anthropic/v1/messages", b"{}", User_Agent="claude-cli/2.1")) == 200
        assert costs.total(costs.read_usage(proxy.folder / "usage.jsonl")).usd == 0, "the CLI reports it"
        assert status_of(proxy.ask("POST", "/anthropic/v1/messages", b"{}", User_Agent="claude-cli/2.1")) == 402


@pytest.mark.parametrize("api", [ApiName.OPENAI, ApiName.GOOGLE])
def test_a_stream_without_counts_is_estimated_and_counts_toward_the_budget(tmp_path: Path, api: ApiName) -> None:
    """As of a server that sends no usage, or a stream that was cut before it."""
    part = {"choices": [{"delta": {"content": "x" * 40_000}}]} if api is ApiName.OPENAI else \
        {"candidates": [{"content": {"parts": [{"text": "x" * 40_000}]}}]}
    path = "/openai/v1/chat/completions" if api is ApiName.OPENAI else \
        "/google/v1beta/models/m:streamGenerateContent?alt=sse"
    events = b"data: " + json.dumps(part).encode() + b"\n\n"
    with Web(lambda _: (200, {"content-type": "text/event-stream"}, [events])) as web, serving(
            tmp_path, apis=(ApiAccess(api, web.url, "authorization", "Bearer sk-real"),),
            limits=Limits(node=0.2)) as proxy:
        assert status_of(proxy.ask("POST", path, b"{}")) == 200
        [line] = proxy.usage
        assert (line["estimated"], line["output"]) == (True, 10_000)
        assert status_of(proxy.ask("POST", path, b"{}")) == 402


def test_a_call_waits_for_one_in_progress_that_may_use_up_the_budget(tmp_path: Path) -> None:
    """The second of two calls at once starts when the first one has ended, with what that left of the budget."""
    slow, begun = threading.Event(), threading.Event()
    limits: list[int] = []

    def answer(request: Any) -> tuple[int, dict[str, str], list[bytes]]:
        limits.append(json.loads(request.body)["max_tokens"])
        if len(web.seen) == 1:
            begun.set()
            assert slow.wait(20)
        return plain(json.dumps(message(f"m{len(web.seen)}", "claude-opus", 80_000, 0)).encode())(request)

    body = b'{"model": "claude-opus", "max_tokens": 64000}'
    with Web(answer) as web, serving(tmp_path, apis=(anthropic(web.url),), limits=Limits(node=1.0)) as proxy, \
            ThreadPoolExecutor(2) as pool:
        first = pool.submit(proxy.ask, "POST", "/anthropic/v1/messages", body)
        assert begun.wait(20)
        second = pool.submit(proxy.ask, "POST", "/anthropic/v1/messages", body)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        assert "reserved for calls in progress" in (proxy.folder / "waiting").read_text()
        slow.set()
        assert [status_of(each.result(20)) for each in (first, second)] == [200, 200]
        assert not (proxy.folder / "waiting").exists()
        assert 39_000 < limits[0] < 40_000 and 23_000 < limits[1] < 24_000, "as much as fits"


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/anthropic/v1/messages", {"model": "claude-opus-4", "max_tokens": 32_000}),
    "thinking": ("/anthropic/v1/messages", {"model": "claude-opus-4", "max_tokens": 32_000, "thinking": {
        "type": "enabled", "budget_tokens": 31_000}}),
    "stream": ("/anthropic/v1/messages", {"model": "claude-opus-4", "max_tokens": 32_000, "stream": True}),
    "cut off": ("/anthropic/v1/messages", {"model": "claude-opus-4", "max_tokens": 32_000, "stream": True}),
    "chat": ("/openai/v1/chat/completions", {"model": "gpt-x", "n": 4}),
    "responses": ("/openai/v1/responses", {"model": "gpt-x", "background": True}),
    "embeddings": ("/openai/v1/embeddings", {"model": "embed-x", "input": "x" * 4000}),
    "gemini": ("/google/v1beta/models/gemini-x:generateContent", {"generation_config": {"max_output_tokens": "9000"}}),
    "gemini batch": ("/google/v1beta/models/gemini-x:batchEmbedContents", {"requests": ["x" * 4000]}),
}
"""Ways to call → path and request. The server writes as much as it may, and tells it in none but the first two."""


@pytest.mark.parametrize(("way", "calls", "budget"), [*((way, 14, 1.0) for way in WAYS), ("messages", 30, 10.0)])
def test_parallel_first_calls_cost_no_more_than_the_budget(tmp_path: Path, way: str, calls: int, budget: float) -> None:
    path, request = WAYS[way]
    paid: list[float] = []

    def answer(seen: Any) -> tuple[int, dict[str, str], list[bytes]]:
        body = json.loads(seen.body)
        options = body.get("generationConfig", body)
        output = max(options.get(key, 0) for key in ("max_tokens", "max_completion_tokens", "max_output_tokens",
                                                     "maxOutputTokens")) * body.get("n", 1)
        model = body.get("model", "gemini-x")
        paid.append(costs.estimate(model, {"input_tokens": len(seen.body), "output_tokens": output}))
        if "thinking" in body and body["thinking"]["type"] == "enabled":
            assert 1024 <= body["thinking"]["budget_tokens"] < output
        assert output >= 1024 or "mbed" in seen.path
        if way in ("messages", "thinking"):
            return plain(json.dumps(message(f"m{len(paid)}", model, len(seen.body), output)).encode())(seen)
        if way == "cut off":
            return 200, {"content-type": "text/event-stream", "content-length": "9000"}, [b"data: {}\n\n"]
        if way == "stream":
            return 200, {"content-type": "text/event-stream"}, [b"data: {}\n\n"] * 3
        return plain(json.dumps({"id": f"resp_{len(paid)}", "usage": None}).encode())(seen)

    with Web(answer) as web, ThreadPoolExecutor(calls) as pool:
        api = next(each for each in APIS.values() if path.startswith(each.prefix))
        access = ApiAccess(api.name, web.url, api.keys[0].header, KEY)
        patience = Patience(answer=0.5) if way == "cut off" else Patience()
        with serving(tmp_path, patience, apis=(access,), limits=Limits(run=budget)) as proxy:
            asked = [pool.submit(proxy.ask, "POST", path, json.dumps(request).encode()) for _ in range(calls)]
            answers = {status_of(each.result(DEADLINE)) for each in asked}
            spent = costs.total(costs.read_usage(proxy.folder / "usage.jsonl")).usd
    assert answers <= {200, 402} and 200 in answers
    assert sum(paid) <= spent + 1e-6 <= budget + 1e-5
    assert "mbed" in path or spent > 0.9 * budget


def test_a_call_whose_cost_has_no_bound_within_the_budget_is_not_made(tmp_path: Path) -> None:
    statuses = {
        b"no json": 400, b'{"max_output_tokens": "many"}': 400, b'{"n": 1000}': 400, b'{"conversation": "c"}': 402,
        b'{"previous_response_id": "resp_unknown"}': 402, b'{"max_tokens": 5}': 200,
        b'{"tools": [{"type": "web_search"}]}': 200}
    with Web(plain(b"{}")) as web:
        access = ApiAccess(ApiName.OPENAI, web.url, "authorization", f"Bearer {KEY}")
        for number, (body, status) in enumerate(statuses.items()):
            web.seen.clear()
            with serving(tmp_path / str(number), apis=(access,), limits=Limits(node=2.0)) as proxy:
                assert status_of(proxy.ask("POST", "/openai/v1/responses", body)) == status, body
            assert len(web.seen) == (status == 200), body
            assert not any(b"web_search" in seen.body for seen in web.seen), "what it reads does not fit"


# ---- what a tunnel carries


def lead_to(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Have every name resolved to a public address, and every connection lead to this port of the machine."""
    connect = asyncio.open_connection

    async def connect_here(_address: str, _port: int, **options: Any) -> Any:
        return await connect("127.0.0.1", port, **options)

    set_name_server(monkeypatch, lambda _: ["93.184.215.14"])
    monkeypatch.setattr(asyncio, "open_connection", connect_here)


@pytest.mark.parametrize(("sni", "arrives"), [("pypi.org", True), (None, True), ("evil.example", False),
                                              ("ssh", False)])
def test_a_tunnel_to_an_allowed_host_carries_tls_for_that_host_alone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sni: str | None, arrives: bool,
        certified: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = certified[0], ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with Web(plain(b"treasure"), server) as web, serving(tmp_path, Patience(), hosts=("pypi.org",)) as proxy:
        lead_to(monkeypatch, web.port)
        raw, head = proxy.tunnel("pypi.org:443")
        assert status_of(head) == 200
        with raw:
            if sni == "ssh":
                raw.sendall(b"SSH-2.0-OpenSSH_9\r\n")
                assert read_all(raw) == b""
            elif arrives:
                with client.wrap_socket(raw, server_hostname=sni) as tls:
                    tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    assert read_all(tls).endswith(b"treasure")
            else:
                with pytest.raises(OSError):
                    client.wrap_socket(raw, server_hostname=sni)
        assert (proxy.refused == {}) is arrives


RANDOM = (
    b"A" * 32 + b" /" + b"A" * 31, b"A" * 32 + b" *" + b"A" * 31, b"A /\n".ljust(32, b"A") + b" " * 33,
    b"A ftp://A/".ljust(32, b"A") + b" \n".ljust(33, b"A"),
    b"GET / HTTP/1.1\r\n".ljust(32, b"A") + b" \r\nHost: evil.example\r\n\r\n".ljust(33, b"A"),
    b"\n" * 32 + b" " * 33, bytes(32) + b" " + bytes(32))
"""Start of a TLS client's first message: 32 random bytes, the length 32, which is a space in ASCII, and 32 more."""


@pytest.mark.parametrize("place", ["pypi.org:443", "pypi.org:8443", "93.184.215.14:8443"])
@pytest.mark.parametrize("pieces", [1, 12])
def test_a_tunnel_passes_a_tls_clients_first_message_whatever_is_random_in_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, pieces: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, serving(tmp_path, Patience(), hosts=(place,)) as proxy:
        lead_to(monkeypatch, server.getsockname()[1])
        for random in RANDOM:
            data = hello("pypi.org")
            data = data[:11] + random + data[11 + len(random):]
            client, _ = proxy.tunnel(place)
            peer, _ = server.accept()
            with client, peer:
                send_in_pieces(client, data, pieces)
                peer.settimeout(DEADLINE)
                arrived = b""
                while len(arrived) < len(data) and (more := peer.recv(len(data))):
                    arrived += more
                assert arrived == data, random
                peer.sendall(b"\x16reply")
                assert client.recv(6) == b"\x16reply"
        assert proxy.refused == {}


CARRIED = (
    (b"GET /a HTTP/1.1\r\nHost: HERE\r\nConnection: close\r\n\r\n", 1),
    (b"GET /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0),
    (b"GET http://evil.example/a HTTP/1.1\r\nHost: HERE\r\n\r\n", 0), (b"\r\nget /a HTTP/1.0\r\n\r\n", 0),
    (b"GET /a HTTP/1.1\r\nHost: HERE\r\n\r\nGET /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 1),
    (b"GET /a HTTP/1.1\r\nHost: HERE\r\nHost: evil.example\r\n\r\n", 0),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
    (b"M-SEARCH /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0), (b" GET /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0),
    (b"A" * 40 + b" /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0),
    (b"GET\v/a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0),
    (b"X-1 /a HTTP/1.1\r\nHost: HERE\r\n\r\nGET /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", 1))


@pytest.mark.parametrize("pieces", [1, 4])
def test_plain_http_in_a_tunnel_is_for_its_host_alone(tmp_path: Path, pieces: int) -> None:
    with Web(plain(b"treasure")) as web:
        place = f"127.0.0.1:{web.port}"
        for number, (first, served) in enumerate(CARRIED):
            web.seen.clear()
            with serving(tmp_path / str(number), hosts=(place,)) as proxy:
                client, head = proxy.tunnel(place)
                assert status_of(head) == 200
                data = first.replace(b"HERE", place.encode())
                with client:
                    send_in_pieces(client, data, pieces)
                    assert read_all(client).count(b"treasure") == served, first
                assert [(seen.path, seen.headers["host"]) for seen in web.seen] == [("/a", place)] * served, first
                is_malformed = b"HERE\r\nHost" in first or first[:1] == b" " or b"\v" in first  # h11 refuses it
                assert place in proxy.refused or b"evil" not in data or is_malformed, first


def test_a_tunnel_passes_other_protocols(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, \
            serving(tmp_path, hosts=(place := f"127.0.0.1:{server.getsockname()[1]}",)) as proxy:
        for greeting, word in ((b"220 ready\r\n", b"EHLO x\r\n"), (b"", b"*1\r\n$4\r\nPING\r\n"), (b"", b"\0\0\0\x08")):
            client, _ = proxy.tunnel(place)
            peer, _ = server.accept()
            with client, peer:
                peer.sendall(greeting)
                assert client.recv(len(greeting) or 1) == greeting if greeting else True
                client.sendall(word)
                assert peer.recv(100) == word
                peer.sendall(b"reply")
                assert client.recv(5) == b"reply"


# ---- three APIs


def doubles() -> dict[ApiName, tuple[str, str, Callable[[str, int, int], Any], Callable[[str, int, int], list[Any]]]]:
    """API → path below its prefix, path of its streams, and what a whole and a streamed response say."""
    def messages(id_: str, given: int, written: int) -> Any:
        return message(id_, "claude-haiku-4", given, written)

    def messages_stream(id_: str, given: int, written: int) -> list[Any]:
        return [{"type": "message_start", "message": message(id_, "claude-haiku-4", given, 1)},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}},
                {"type": "message_delta", "usage": {"output_tokens": written}}, {"type": "message_stop"}]

    def chat(id_: str, given: int, written: int) -> Any:
        return {"id": id_, "model": "gpt-x", "usage": {"prompt_tokens": given, "completion_tokens": written}}

    def gemini(id_: str, given: int, written: int) -> Any:
        return {"candidates": [{"finishReason": "STOP"}], "modelVersion": "gemini-x", "responseId": id_,
                "usageMetadata": {"promptTokenCount": given, "candidatesTokenCount": written}}

    return {
        ApiName.ANTHROPIC: ("/anthropic/v1/messages", "/anthropic/v1/messages", messages, messages_stream),
        ApiName.OPENAI: ("/openai/v1/chat/completions", "/openai/v1/responses", chat, lambda id_, given, written: [
            {"type": "response.created", "response": {"id": f"resp_{id_}", "model": "gpt-x", "usage": None}},
            {"type": "response.output_text.delta", "delta": "hello"},
            {"type": "response.completed", "response": {
                "id": f"resp_{id_}", "model": "gpt-x", "usage": {"input_tokens": given, "output_tokens": written}}}]),
        ApiName.GOOGLE: ("/google/v1beta/models/gemini-x:generateContent",
                         "/google/v1beta/models/gemini-x:streamGenerateContent?alt=sse&key=dummy", gemini,
                         lambda id_, given, written: [gemini(id_, given, 1) | {"candidates": [{}]},
                                                      gemini(id_, given, written)]),
    }


@pytest.mark.parametrize("api", list(ApiName))
def test_counts_what_the_api_itself_has_counted(tmp_path: Path, api: ApiName) -> None:
    whole_path, stream_path, whole, stream = doubles()[api]
    totals = {"calls": 0, "input": 0, "output": 0}
    random = Random(7)

    def answer(seen: Any) -> tuple[int, dict[str, str], list[bytes]]:
        given, written = random.randrange(1, 5000), random.randrange(1, 900)
        totals["calls"] += 1
        totals["input"] += given
        totals["output"] += written
        assert "dummy" not in seen.path + str(seen.headers)
        if "tream" not in seen.path and b"stream" not in seen.body:
            return plain(json.dumps(whole(f"id{totals['calls']}", given, written)).encode())(seen)
        events = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n"
                          for event in stream(f"id{totals['calls']}", given, written)) + b"data: [DONE]\n\n"
        size = random.randrange(1, 60)
        return 200, {"content-type": "text/event-stream"}, [events[at:at + size] for at in range(0, len(events), size)]

    with Web(answer) as web:
        access = ApiAccess(api, web.url, APIS[api].keys[0].header, f"{APIS[api].keys[0].scheme}{KEY}")
        with serving(tmp_path, apis=(access,)) as proxy:
            for _ in range(8):
                assert status_of(proxy.ask("POST", whole_path, b"{}")) == 200
                assert status_of(proxy.ask("POST", stream_path, b'{"stream": true}')) == 200
            total = costs.total(costs.read_usage(proxy.folder / "usage.jsonl"))
            assert {KEY in str(seen.headers) for seen in web.seen} == {True}
    assert (total.calls, total.input, total.output) == (totals["calls"], totals["input"], totals["output"])
    assert not any(line.get("estimated") for line in proxy.usage)


def test_a_response_that_is_read_again_is_paid_for_once(tmp_path: Path) -> None:
    body = {"id": "resp_1", "model": "gpt-x", "usage": {"input_tokens": 100, "output_tokens": 10}}
    with Web(plain(json.dumps(body).encode())) as web:
        access = ApiAccess(ApiName.OPENAI, web.url, "authorization", f"Bearer {KEY}")
        with serving(tmp_path, apis=(access,)) as proxy:
            proxy.ask("POST", "/openai/v1/responses", b"{}")
            for _ in range(3):
                assert status_of(proxy.ask("GET", "/openai/v1/responses/resp_1")) == 200
            assert costs.total(costs.read_usage(proxy.folder / "usage.jsonl")).input == 100
