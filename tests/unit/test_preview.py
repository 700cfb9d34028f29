"""Pure parts of previews: names, refusals, changed headers, next steps."""

from __future__ import annotations

import pytest

from garrison.errors import UsageError
from garrison.preview.listeners import Step, Tree, decide
from garrison.preview.rules import PreviewRules, Tickets, headers_in, headers_out, host_label, is_upgrade, judge
from garrison.preview.service import Address, PreviewTarget, rules_of
from garrison.system.processes import ProcessId
from garrison.system.sockets import Listener, parse_table

RULES = PreviewRules("web-r1.localhost:40000", 5173)
OWN = (b"host", b"web-r1.localhost:40000")
SHARED = PreviewRules("box.example:40000", 5173, "https", is_shared=True, secret="s" * 20)
COOKIE = (b"cookie", b"a=1; __Host-garrison-preview-40000=" + b"s" * 20)
NODE = Tree(ProcessId(7, 7), (Listener(3000, "127.0.0.1", 1),), frozenset({61280}))
TWO = Tree(ProcessId(7, 7), (Listener(3000, "127.0.0.1", 1), Listener(5173, "::1", 2)))


def test_each_node_has_its_own_valid_host_label() -> None:
    assert host_label("web", "crew-1") == "web-crew-1"
    pairs = [("web", "crew-1"), ("web-crew", "1"), ("web_crew", "1"), ("WEB", "crew-1"), ("w" * 48, "r" * 40),
             ("w" * 48, "r" * 41)]
    labels = [host_label(*pair) for pair in pairs]
    assert len(set(labels)) == len(pairs)
    assert all(len(label) <= 63 and label.replace("-", "").isalnum() and label[-1] != "-" for label in labels)


@pytest.mark.parametrize(("status", "rules", "method", "target", "headers"), [
    (0, RULES, b"GET", b"/", [OWN]),
    (0, RULES, b"POST", b"/x", [OWN, (b"origin", RULES.origin.encode()), (b"sec-fetch-site", b"same-origin")]),
    (0, RULES, b"GET", b"/", [OWN, (b"origin", b"http://web-r1.localhost:40001"), (b"sec-fetch-site", b"same-site")]),
    (0, RULES, b"GET", b"/", [OWN, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate"),
                              (b"sec-fetch-dest", b"document")]),
    (421, RULES, b"GET", b"/", [(b"host", b"evil.example:40000")]),  # rebinding
    (421, RULES, b"GET", b"/", [(b"host", b"127.0.0.1:40000")]),
    (421, RULES, b"GET", b"/", [(b"host", b"web-r1.localhost")]),
    (421, RULES, b"GET", b"/", [OWN, OWN]),
    (421, RULES, b"GET", b"/", []),
    (400, RULES, b"GET", b"http://web-r1.localhost:40000/", [OWN]),
    (400, RULES, b"CONNECT", b"a:1", [OWN]),
    (400, RULES, b"POST", b"/", [OWN, (b"content-length", b"3"), (b"transfer-encoding", b"chunked")]),
    (403, RULES, b"GET", b"/", [OWN, (b"origin", b"http://127.0.0.1:8642")]),  # the page, or another server
    (403, RULES, b"GET", b"/", [OWN, (b"origin", b"https://evil.example")]),
    (403, RULES, b"POST", b"/", [OWN, (b"origin", b"null")]),
    (403, RULES, b"GET", b"/", [OWN, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"no-cors")]),
    (403, RULES, b"GET", b"/", [OWN, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate"),
                                (b"sec-fetch-dest", b"iframe")]),
    (0, RULES, b"GET", b"/sw.js", [OWN, (b"service-worker", b"script")]),
    (0, SHARED, b"GET", b"/", [(b"host", b"box.example:40000"), COOKIE]),
    (401, SHARED, b"GET", b"/", [(b"host", b"box.example:40000")]),
    (401, SHARED, b"GET", b"/", [(b"host", b"box.example:40000"), (b"cookie", b"__Host-garrison-preview-40000=x")]),
    (401, SHARED, b"GET", b"/", [(b"host", b"box.example:40000"), (b"cookie", COOKIE[1].replace(b"40000", b"40001"))]),
    (403, SHARED, b"GET", b"/sw.js", [(b"host", b"box.example:40000"), COOKIE, (b"service-worker", b"script")]),
])
def test_a_request_passes_or_is_refused(status: int, rules: PreviewRules, method: bytes, target: bytes,
                                        headers: list[tuple[bytes, bytes]]) -> None:
    refusal = judge(rules, method, target, headers)
    assert (refusal.status if refusal is not None else 0) == status


def test_the_server_gets_localhost_as_host_and_no_secret() -> None:
    passed = headers_in(SHARED, [
        (b"host", b"box.example:40000"), COOKIE, (b"origin", b"https://box.example:40000"),
        (b"referer", b"https://box.example:40000/a?b"), (b"connection", b"keep-alive, x-secret"), (b"x-secret", b"1"),
        (b"x-forwarded-host", b"evil"), (b"upgrade", b"h2c"), (b"accept", b"*/*")])
    assert passed == [(b"Host", b"localhost:5173"), (b"Connection", b"close"), (b"cookie", b"a=1"),
                      (b"origin", b"http://localhost:5173"), (b"referer", b"http://localhost:5173/a?b"),
                      (b"accept", b"*/*")]
    assert (b"cookie", b"") not in headers_in(SHARED, [(b"cookie", COOKIE[1].partition(b"; ")[2])])
    foreign = (b"referer", b"https://box.example:400001/")  # only begins alike
    assert foreign in headers_in(SHARED, [foreign])


def test_the_browser_gets_its_own_address_and_no_header_for_other_servers() -> None:
    passed = headers_out(RULES, [
        (b"location", b"http://localhost:5173/login?next=/"),
        (b"access-control-allow-origin", b"http://127.0.0.1:5173"),
        (b"set-cookie", b"sid=1; Domain=localhost; Path=/; domain = .localhost"), (b"alt-svc", b"h3=\":1\""),
        (b"set-cookie", b"__Host-garrison-preview-40000=mine"), (b"strict-transport-security", b"max-age=1"),
        (b"clear-site-data", b"\"cookies\""), (b"content-type", b"text/html"), (b"transfer-encoding", b"chunked")])
    assert passed == [(b"location", b"http://web-r1.localhost:40000/login?next=/"),
                      (b"access-control-allow-origin", b"http://web-r1.localhost:40000"),
                      (b"set-cookie", b"sid=1; Path=/"), (b"content-type", b"text/html"),
                      (b"Transfer-Encoding", b"chunked")]
    elsewhere = (b"location", b"http://localhost:51730/")
    assert elsewhere in headers_out(RULES, [elsewhere])


def test_only_websockets_are_upgraded() -> None:
    assert is_upgrade([(b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"WebSocket")])
    assert not is_upgrade([(b"connection", b"Upgrade"), (b"upgrade", b"h2c")])
    assert not is_upgrade([(b"upgrade", b"websocket")])


def test_a_ticket_is_valid_once() -> None:
    tickets = Tickets()
    first = f"/?garrison-ticket={tickets.current}".encode()
    assert [tickets.redeem(first), tickets.redeem(first), tickets.redeem(b"/?garrison-ticket=")] == [True, False, False]
    assert tickets.redeem(f"/?garrison-ticket={tickets.current}".encode())


@pytest.mark.parametrize(("tree", "port", "is_over", "step", "served"), [
    (None, 0, True, Step.OVER, 0), (None, 3000, False, Step.AWAIT_NODE, 0),
    (NODE, 61280, False, Step.RESERVED, 0), (NODE, 3000, False, Step.SERVE, 3000), (NODE, 4, False, Step.AWAIT_PORT, 0),
    (Tree(None), 0, False, Step.AWAIT_PORT, 0), (NODE, 0, False, Step.SERVE, 3000), (TWO, 0, False, Step.SEVERAL, 0),
    (TWO, 5173, False, Step.SERVE, 5173),
])
def test_each_state_has_a_next_step(tree: Tree | None, port: int, is_over: bool, step: Step, served: int) -> None:
    found, listener = decide(tree, port, is_over=is_over)
    assert (found, listener.port if listener is not None else 0) == (step, served)


def test_the_kernels_tables_are_read_even_if_torn() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: {}:0BB8 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0\n"
    v6 = "00000000000000000000000001000000"
    text = head + "".join(line.format(*pair) for pair in (("0100007F", "0A"), ("00000000", "0A"), (v6, "0A"),
                                                          ("0100007F", "01"))) + "   4: zz:0BB8\n"
    assert [(each.address, each.port, each.inode) for each in parse_table(text)] == [
        ("127.0.0.1", 3000, 4711), ("127.0.0.1", 3000, 4711), ("::1", 3000, 4711)]


def test_another_machine_needs_tls_and_a_name() -> None:
    for address in (Address(listen="0.0.0.0"), Address(listen="::", hostname="box.example"), Address(listen="box"),
                    Address(listen="10.0.0.1", tcp=True)):
        with pytest.raises(UsageError):
            address.check()
    assert Address().check().is_loopback
    rules = rules_of(Address(listen="10.0.0.1", hostname="Box.Example"), PreviewTarget("web", "r1"), 5173, 40000)
    assert rules is not None and rules.secret and rules.is_shared and rules.host == "box.example:40000"
    alone = rules_of(Address(as_localhost=True), PreviewTarget("web", "r1"), 5173, 5173)
    assert alone is not None and alone.host == "localhost:5173" and alone.is_shared
