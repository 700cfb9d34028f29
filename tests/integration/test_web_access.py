"""Access control of the web server: hosts, origins, tokens, methods and content types that it refuses."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from garrison.errors import RecordUnreadable, Refused, UsageError
from garrison.web import access, responses
from garrison.web.access import load_tokens
from garrison.web.server import Endpoint, open_socket
from top_support import home_builder
from web_support import READ, Site, site

RULES = access.Rules(access.hosts(["127.0.0.1", "localhost", "::1"], 8642), {"write": "w" * 40, "read": "r" * 40},
                     "garrison-8642")
HONEST = {"host": "127.0.0.1:8642", "cookie": f"a=b; garrison-8642={'w' * 40}"}
CHANGE = {**HONEST, "origin": "http://127.0.0.1:8642", "content-type": "application/json; charset=utf-8",
          "x-garrison": "1", "content-length": "10"}


def judged(method: str, given: dict[str, str], **more: str | None) -> int | str:
    headers = {**given, **{name.replace("_", "-"): value for name, value in more.items()}}
    found = access.judge(RULES, method, {name: value for name, value in headers.items() if value is not None})
    return found.status if isinstance(found, access.Refusal) else found


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:8642", "127.0.0.1", "127.0.0.1:80",
                                  "127.0.0.1:8642.evil.example", "127.0.0.1:8642, evil.example", "[::1]:8643"])
def test_a_foreign_host_name_is_refused(host: str | None) -> None:
    assert judged("GET", HONEST, host=host) == 421 and judged("POST", CHANGE, host=host) == 421
    assert judged("GET", HONEST, host="[::1]:8642") == judged("GET", HONEST, host="localhost:8642") == "write"


@pytest.mark.parametrize("origin", ["null", "", "http://evil.example", "https://127.0.0.1:8642", "http://127.0.0.1:8643",
                                    "http://127.0.0.1", "http://127.0.0.1:8642.evil.example", "file://"])
def test_a_foreign_origin_is_refused(origin: str) -> None:
    assert judged("GET", HONEST, origin=origin) == 403 and judged("POST", CHANGE, origin=origin) == 403
    assert judged("GET", HONEST, sec_fetch_site="cross-site") == 403
    assert judged("POST", CHANGE, sec_fetch_site="same-origin") == "write" == judged("POST", CHANGE, origin=None)


@pytest.mark.parametrize("cookie", [
    None, "", "garrison-8642=", f"garrison-8642={'w' * 39}", f"garrison-8642={'w' * 41}", f"garrison-8643={'w' * 40}",
    f"xgarrison-8642={'w' * 40}", "garrison-8642=é"])
def test_an_invalid_token_is_refused(cookie: str | None) -> None:
    assert judged("GET", HONEST, cookie=cookie) == 401 and judged("POST", CHANGE, cookie=cookie) == 401
    assert judged("GET", HONEST, cookie=None, authorization=f"Bearer {'r' * 40}") == "read"
    assert judged("GET", HONEST, cookie=None, authorization=f"Basic {'r' * 40}") == 401


def test_a_change_needs_header_content_type_and_write_token() -> None:
    assert judged("POST", CHANGE) == "write"
    for kind in (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/js"):
        assert judged("POST", CHANGE, content_type=kind) == 415
    for word in (None, "", "0", "yes"):
        assert judged("POST", CHANGE, x_garrison=word) == 403
    assert judged("POST", CHANGE, cookie=f"garrison-8642={'r' * 40}") == 403, "it may only look"
    for length in ("x", "-1", str(access.BODY_BYTES + 1)):
        assert judged("POST", CHANGE, content_length=length) == 413
    for method in ("HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"):
        assert judged(method, CHANGE) == 405


def test_only_their_owner_can_read_the_tokens(tmp_path: Path) -> None:
    first = load_tokens(tmp_path)
    path = tmp_path / "web" / "tokens.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert load_tokens(tmp_path) == first and len(set(first.values())) == 2
    path.chmod(0o640)
    with pytest.raises(RecordUnreadable, match="--new-tokens"):
        load_tokens(tmp_path)
    second = load_tokens(tmp_path, new=True)
    assert not set(second.values()) & set(first.values()) and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(json.dumps({"write": "short", "read": ""}))
    with pytest.raises(RecordUnreadable, match="holds no tokens"):
        load_tokens(tmp_path)


@pytest.mark.parametrize(("place", "why"), [
    (Endpoint("0.0.0.0"), "tls-cert"), (Endpoint("192.0.2.7"), "--plain-http"),
    (Endpoint("example.org"), "not an IP address"),
    (Endpoint("0.0.0.0", plain=True), "--hostname"), (Endpoint("::", plain=True), "--hostname"),
])
def test_a_public_address_needs_tls_or_plain_http(place: Endpoint, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        place.check()
    assert Endpoint("127.0.0.1").check() and Endpoint("::1").check() and Endpoint("192.0.2.7", plain=True).check()


def test_a_taken_port_is_refused_in_one_line() -> None:
    first = open_socket(Endpoint())
    try:
        with pytest.raises(Refused, match=r"already in use; pass another --port"):
            open_socket(Endpoint(port=first.getsockname()[1]))
    finally:
        first.close()


# ---- over the wire


@pytest.mark.smoke
def test_requests_over_the_wire(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The judge stands before everything, every answer has the headers, and no token is told to anybody."""
    async def scene() -> None:
        async with site(tmp_path) as here:
            await _doors(here)
            await _bodies(here)
            await _files(here)

    with home_builder(tmp_path) as builder:
        builder.run("r1", "a").close()
        asyncio.run(scene())
        said = capfd.readouterr()
        assert not any(token in said.out + said.err for token in load_tokens(tmp_path).values())


async def _doors(here: Site) -> None:
    for headers, status in ((here.headers(host="evil.example"), 421), (here.headers(authorization=None), 401),
                            (here.headers(origin="http://evil.example"), 403)):
        for path in ("/", "/api/runs", "/static/app.css", "/nothing", "/api/events?run=r1"):
            found = await here.ask("GET", path, headers)
            assert (found.status, found.json["ok"]) == (status, False) and "\n" not in found.json["message"]
            assert found.headers["content-security-policy"].startswith("default-src 'none'")
    found = await here.ask("GET", f"/?token={here.tokens['write']}&run=r1", {"host": here.host})
    assert (found.status, found.headers["location"]) == (303, "/?run=r1")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    found = await here.ask("GET", "/api/runs", {"host": here.host, "cookie": cookie.partition(";")[0]})
    assert found.status == 200 and found.json[0]["run"] == "r1"
    for name in ("nosniff", "DENY", "no-referrer"):
        assert name in found.headers.values()
    assert (await here.ask("GET", "/?token=wrong", {"host": here.host})).status == 401
    assert (await here.ask("GET", f"/?token={here.tokens['write']}", {"host": "evil.example"})).status == 421
    assert (await here.ask("GET", "//evil.example/?token=" + here.tokens["read"], {"host": here.host})
            ).headers["location"] == "/"


async def _bodies(here: Site) -> None:
    path = "/api/runs/r1/actions"
    for body in (b"", b"[]", b"{", b"1", b"[" * 50_000, b'{"action": "rm"}', b'{"action": ["stop"]}', b"\xff"):
        found = await here.ask("POST", path, here.posting(), body)
        assert found.status == 400 and "\n" not in found.json["message"], body[:20]
    assert (await here.ask("POST", path, here.posting(READ), b"{}")).status == 403
    assert (await here.ask("POST", path, here.posting(content_type="text/plain"), b"{}")).status == 415
    assert (await here.ask("GET", path)).status == 405, "no change by GET"
    chunked = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    headers = here.posting(transfer_encoding="chunked", connection="close")
    opened = await here.open("POST", path, headers, chunked * 20 + b"0\r\n\r\n")
    opened[1].close()
    assert opened[2] == 400, "a body whose length nobody said is counted"
    for run in ("r1%2f..", "..", "R1", "nobody", "a" * 40):
        assert (await here.post(f"/api/runs/{run}/actions", {"action": "stop"})).status in (400, 404, 409)


async def _files(here: Site) -> None:
    index = (responses.FOLDER / "index.html").read_bytes()
    assert (await here.get("/")).body == index == (await here.get("/chat")).body
    for path in ("/static/../routes.py", "/static/..%2froutes.py", "/static/%2e%2e/routes.py", "/static//etc/passwd",
                 "/static/%00", "/static/routes.py", "/static/..%5croutes.py", "/static/", "/static/vendor"):
        assert (await here.get(path)).status == 404, path
    found = await here.get("/static/index.html")
    again = await here.ask("GET", "/static/index.html", here.headers(if_none_match=found.headers["etag"]))
    assert (found.headers["content-type"], again.status) == ("text/html; charset=utf-8", 304)
