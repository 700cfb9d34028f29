"""Access control of the web server: hosts, origins, tokens, methods and content types that it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import stat
from pathlib import Path

import pytest

from garrison.errors import RecordUnreadable, Refused, UsageError
from garrison.web import access
from garrison.web.access import load_tokens
from garrison.web.server import Endpoint, open_socket
from top_support import HomeBuilder
from web_support import READ, Site, site

TOKENS = {"write": "w" * 40, "read": "r" * 40}
RULES = access.Rules(access.origins(["127.0.0.1", "localhost", "::1"], 8642, "http"), TOKENS)
NOW = 1_800_000_000
HONEST = {"host": "127.0.0.1:8642", "authorization": f"Bearer {'w' * 40}"}
CHANGE = {**HONEST, "origin": "http://127.0.0.1:8642", "content-type": "application/json; charset=utf-8",
          "x-garrison": "1", "content-length": "10"}


def judged(method: str, given: dict[str, str], path: str = "/api/runs", now: float = NOW, **more: str | None,
           ) -> int | str:
    headers = {**given, **{name.replace("_", "-"): value for name, value in more.items()}}
    sent = {name: value for name, value in headers.items() if value is not None}
    found = access.judge(RULES, method, path, sent, now)
    return found.status if isinstance(found, access.AccessDenied) else found


async def test_responses_do_not_wait_for_acknowledgements() -> None:
    """Nagle's algorithm would delay the body of each response by 40 ms."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            found.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with open_socket(Endpoint()) as listener:
        async with await asyncio.get_running_loop().create_server(Accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await found == 1
            writer.close()


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:8642", "127.0.0.1", "127.0.0.1:80",
                                  "127.0.0.1:8642.evil.example", "127.0.0.1:8642, evil.example", "[::1]:8643"])
def test_a_foreign_host_name_is_refused(host: str | None) -> None:
    assert judged("GET", HONEST, host=host) == 421 and judged("POST", CHANGE, host=host) == 421
    assert judged("GET", HONEST, "/", host=host) == 421
    assert judged("GET", HONEST, host="[::1]:8642") == judged("GET", HONEST, host="localhost:8642") == "write"


@pytest.mark.parametrize("origin", [
    "null", "", "http://evil.example", "https://127.0.0.1:8642", "http://127.0.0.1:8643", "http://127.0.0.1",
    "http://127.0.0.1:8642.evil.example", "file://"])
def test_a_foreign_origin_is_refused(origin: str) -> None:
    assert judged("GET", HONEST, origin=origin) == 403 and judged("POST", CHANGE, origin=origin) == 403
    assert judged("GET", HONEST, "/static/app.css", origin=origin) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_and_ports_may_link_to_the_page_and_no_more(site: str) -> None:
    """A page on another port of this machine is of the same site."""
    assert judged("GET", HONEST, sec_fetch_site=site) == 403 == judged("POST", CHANGE, sec_fetch_site=site)
    assert judged("GET", HONEST, "/static/app.css", sec_fetch_site=site, sec_fetch_mode="no-cors") == 403
    link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
    assert judged("GET", HONEST, "/", **link, sec_fetch_dest="document") == ""
    assert judged("GET", HONEST, "/", **link, sec_fetch_dest="iframe") == 403
    assert judged("GET", HONEST, "/api/runs", **link, sec_fetch_dest="document") == 403
    assert judged("POST", CHANGE, "/", **link, sec_fetch_dest="document") == 403
    assert judged("POST", CHANGE, sec_fetch_site="same-origin") == "write" == judged("POST", CHANGE, origin=None)


@pytest.mark.parametrize("bearer", [None, "", "Bearer", "Bearer ", f"Bearer {'w' * 39}", f"Bearer {'w' * 41}",
                                    f"Basic {'r' * 40}", "Bearer é", "Bearer s.write.1.2.3", "Bearer ...."])
def test_an_invalid_token_is_refused(bearer: str | None) -> None:
    assert judged("GET", HONEST, authorization=bearer) == 401 and judged("POST", CHANGE, authorization=bearer) == 401
    assert judged("GET", HONEST, authorization=f"Bearer {'r' * 40}") == "read"


def test_a_cookie_gives_no_access() -> None:
    for name in ("garrison-8642", "token"):
        assert judged("GET", HONEST, authorization=None, cookie=f"{name}={'w' * 40}") == 401


def test_files_of_the_page_itself_need_no_token() -> None:
    for path in ("/", "/chat", "/static/app.css", "/nothing"):
        assert judged("GET", HONEST, path, authorization=None) == ""
        assert judged("POST", CHANGE, path, authorization=None) == 401


def test_a_ticket_becomes_a_session_that_ends() -> None:
    """Neither lives long, and neither becomes more than the token allowed."""
    for scope in ("write", "read"):
        ticket = RULES.issue_ticket(scope, NOW)
        assert judged("GET", HONEST, authorization=f"Bearer {ticket}") == 401, "good for nothing but a session"
        asked = {**CHANGE, "authorization": f"Bearer {ticket}"}
        assert judged("POST", asked, access.EXCHANGE) == scope
        assert judged("POST", asked, access.EXCHANGE, NOW + access.TICKET_SECONDS) == 401
        assert judged("POST", asked, access.EXCHANGE, origin="http://127.0.0.1:3000") == 403
        given = RULES.read_pass(ticket, NOW)
        session, seconds = RULES.issue_session(given, NOW) or ("", 0)
        held = {"authorization": f"Bearer {session}"}
        assert judged("GET", HONEST, **held) == scope and seconds == access.SESSION_SECONDS
        assert judged("POST", CHANGE, **held) == ("write" if scope == "write" else 403)
        assert judged("GET", HONEST, now=NOW + access.SESSION_SECONDS - 1, **held) == scope
        assert judged("GET", HONEST, now=NOW + access.SESSION_SECONDS, **held) == 401


def test_a_session_is_renewed_for_a_week_at_most() -> None:
    given, now = access.Pass(access.PassKind.SESSION, "write", NOW, NOW + access.SESSION_SECONDS), NOW
    while (made := RULES.issue_session(given, now)) is not None:
        read = RULES.read_pass(made[0], now)
        assert read is not None and read.login == NOW
        given, now = read, now + 3600
    assert now - NOW == access.LOGIN_SECONDS


def test_a_pass_is_neither_forged_nor_valid_with_other_tokens() -> None:
    session = access.Pass(access.PassKind.SESSION, "read", NOW, NOW + 99).encode(TOKENS["read"])
    raised = access.Pass(access.PassKind.SESSION, "write", NOW, NOW + 99).encode(TOKENS["read"])
    longer = session.replace(str(NOW + 99), str(NOW + 999))
    assert judged("GET", HONEST, authorization=f"Bearer {session}") == "read"
    for forged in (raised, longer, session[:-1], session + "A", session.replace("s.", "x.", 1), session + ".x"):
        assert judged("GET", HONEST, authorization=f"Bearer {forged}") == 401
    assert access.Rules(RULES.origins, {"write": "v" * 40, "read": "q" * 40}).scope(session, NOW) == ""


def test_the_session_of_a_device_is_valid_while_it_is_paired_and_with_the_scope_of_its_pairing() -> None:
    paired = {"phone": "read"}
    rules = access.Rules(RULES.origins, TOKENS, "", lambda id: paired.get(id, ""))
    session = access.Pass(access.PassKind.SESSION, "read", NOW, NOW + 99, "phone").encode(TOKENS["read"])
    raised = access.Pass(access.PassKind.SESSION, "write", NOW, NOW + 99, "phone").encode(TOKENS["write"])
    for bearer in (session.replace("phone", "other"), session.replace(".phone", ""), raised):
        assert rules.scope(bearer, NOW) == "", "it was paired to watch"
    headers = {**CHANGE, "authorization": f"Bearer {session}"}
    found = [access.judge(rules, "POST", path, headers, NOW) for path in (access.SUBSCRIBE, "/api/runs/r1/actions")]
    assert found[0] == "read" and isinstance(found[1], access.AccessDenied) and found[1].status == 403
    given = rules.read_pass(session, NOW)
    renewed, _ = rules.issue_session(given, NOW) or ("", 0)
    assert rules.scope(renewed, NOW) == "read"
    paired.clear()
    assert rules.scope(session, NOW) == rules.scope(renewed, NOW) == ""
    assert RULES.scope(session, NOW) == "", "a server without devices"


def test_a_device_without_a_session_can_authenticate_but_foreign_pages_cannot_do_it_for_it() -> None:
    for path in (access.PAIR, access.CHALLENGE, access.DEVICE_SESSION):
        assert judged("POST", CHANGE, path, authorization=None) == "" and judged("GET", CHANGE, path) == 405
        assert judged("POST", CHANGE, path, origin="http://evil.example") == 403
        assert judged("POST", CHANGE, path, x_garrison=None) == 403
    assert judged("POST", HONEST, f"{access.BUTTON}x", authorization=None) == ""
    assert judged("POST", HONEST, f"{access.BUTTON}x", origin="http://evil.example") == 403
    assert judged("PUT", HONEST, f"{access.BUTTON}x", authorization=None) == 401


def test_the_address_of_a_reverse_proxy_is_one_of_ours() -> None:
    place = Endpoint(names=("https://garrison.example", "box")).check()
    found = access.origins(place.host_names, 8642, place.scheme)
    assert place.origin(8642) == "https://garrison.example"
    assert {"https://garrison.example", "http://box:8642", "http://127.0.0.1:8642", "http://[::1]:8642"} <= found
    rules = access.Rules(found, TOKENS)
    headers = {**CHANGE, "host": "garrison.example", "origin": "https://garrison.example"}
    assert access.judge(rules, "POST", "/api/runs/r1/actions", headers, NOW) == "write"
    assert access.origins(["a.example"], 443, "https") == {"https://a.example:443", "https://a.example"}
    for name in ("https://a.example/path", "a.example:80", "a b", "", "ftp://a.example"):
        with pytest.raises(UsageError, match="reverse proxy"):
            Endpoint(names=(name,)).check()


def test_a_change_needs_header_content_type_and_write_token() -> None:
    assert judged("POST", CHANGE) == "write"
    for kind in (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/js"):
        assert judged("POST", CHANGE, content_type=kind) == 415
    for word in (None, "", "0", "yes"):
        assert judged("POST", CHANGE, x_garrison=word) == 403
    assert judged("POST", CHANGE, authorization=f"Bearer {'r' * 40}") == 403, "it may only look"
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
    with pytest.raises(RecordUnreadable, match="contains no tokens"):
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
    with open_socket(Endpoint()) as first, pytest.raises(Refused, match=r"already in use; pass another --port"):
        open_socket(Endpoint(port=first.getsockname()[1]))


# ---- over the wire


@pytest.mark.smoke
async def test_requests_over_the_wire(tmp_path: Path, capfd: pytest.CaptureFixture[str], builder: HomeBuilder) -> None:
    """Every request is judged first, every answer has the headers, and no token is printed."""
    builder.run("r1", "a").close()
    async with site(tmp_path) as here:
        await _doors(here)
        await _bodies(here)
        await _files(here)
    said = capfd.readouterr()
    assert not any(token in said.out + said.err for token in load_tokens(tmp_path).values())


async def _doors(here: Site) -> None:
    for headers, status in ((here.headers(host="evil.example"), 421), (here.headers(authorization=None), 401),
                            (here.headers(origin="http://evil.example"), 403)):
        for path in ("/api/runs", "/api/nothing", "/api/events?run=r1"):
            found = await here.ask("GET", path, headers)
            assert (found.status, found.json["ok"]) == (status, False) and "\n" not in found.json["message"]
            assert found.headers["content-security-policy"].startswith("default-src 'none'")
            assert found.headers["connection"] == "close"
    found = await here.ask("GET", f"/?token={here.tokens['write']}&run=r1", {"host": here.host})
    place, _, ticket = found.headers["location"].partition("#")
    assert (found.status, place) == (303, "/?run=r1") and here.tokens["write"] not in ticket
    assert not any(name.lower() == "set-cookie" for name in found.headers), "a cookie is sent to every port of its host"
    old = {"host": here.host, "cookie": f"garrison-{here.port}=x"}
    found = await here.ask("GET", f"/?token={here.tokens['write']}", old)
    assert "Max-Age=0" in found.headers["set-cookie"], "the cookie of garrison 0.1 is deleted"
    session = await here.ask("POST", access.EXCHANGE, here.posting(authorization=f"Bearer {ticket}"), b"{}")
    found = await here.ask("GET", "/api/runs", here.headers(authorization=f"Bearer {session.json['session']}"))
    assert found.status == 200 and found.json[0]["run"] == "r1"
    for name in ("nosniff", "DENY", "no-referrer"):
        assert name in found.headers.values()
    assert (await here.ask("GET", "/?token=wrong", {"host": here.host})).status == 401
    assert (await here.ask("GET", f"/?token={here.tokens['write']}", {"host": "evil.example"})).status == 421
    location = (await here.ask("GET", "//evil.example/?token=" + here.tokens["read"], {"host": here.host})
                ).headers["location"]
    assert location.startswith("/#t.read.")
    await _pages_for_people(here)


async def _pages_for_people(here: Site) -> None:
    """Check that a browser gets a page with one line on what to do."""
    for path, more, status, word in (
            ("/?token=old", {}, 401, "<code>garrison serve</code> printed last"), ("/nothing", {}, 404, "start page"),
            ("/api/runs", {"authorization": None}, 401, "<code>garrison serve</code>"),
            ("/", {"host": "evil.example"}, 421, "--hostname"),
            ("/static/%3Cscript%3E", {}, 404, "no such file")):
        found = await here.ask("GET", path, here.headers(accept="text/html,*/*;q=0.8", **more))
        body = found.body.decode()
        assert (found.status, found.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert word in body and "<script" not in body
        assert found.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")


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
    assert opened[2] == 400, "a body of undeclared length is counted"
    for run in ("r1%2f..", "..", "R1", "nobody", "a" * 40):
        assert (await here.post(f"/api/runs/{run}/actions", {"action": "stop"})).status in (400, 404, 409)


async def _files(here: Site) -> None:
    index = (await here.get("/")).body.decode()
    assert index == (await here.get("/chat")).body.decode()
    named = re.findall(r'"(/static/page\.[0-9a-f]{20}\.(?:js|css))"', index)
    assert len(named) == 2, "its styles and its script, each with the hash of its content in its name"
    for path in named:
        assert "immutable" in (await here.get(path)).headers["cache-control"], "a second visit requests neither"
    other = f"/static/page.{'0' * 20}.js"
    assert (await here.get(other)).headers["cache-control"] == "no-cache", "the name of a former page"
    assert f'from "{named[1]}"' in (await here.get("/static/api.js")).body.decode(), "each module exists once"
    for path in ("/static/../routes.py", "/static/..%2froutes.py", "/static/%2e%2e/routes.py", "/static//etc/passwd",
                 "/static/%00", "/static/routes.py", "/static/..%5croutes.py", "/static/", "/static/vendor"):
        assert (await here.get(path)).status == 404, path
    found = await here.get("/static/index.html")
    again = await here.ask("GET", "/static/index.html", here.headers(if_none_match=found.headers["etag"]))
    assert (found.headers["content-type"], again.status) == ("text/html; charset=utf-8", 304)
