"""A page of another port or another name of this machine gets nothing of garrison's, and cannot read or act."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from served_run import serving

from chromium import CHROMIUM, FLAGS
from garrison.web.access import load_tokens
from top_support import home_builder
from web_clients import Crowd

REFUSED = {"read": "refused TypeError", "act": "refused TypeError", "session": "refused TypeError", "script": "refused",
           "image": "refused", "events": "refused", "socket": "refused", "worker": "refused SecurityError",
           "channel": "nothing", "form": "refused", "stored": '[{},{},""]'}
NOTHING = ("0", "refused TypeError")
"""What a page may learn of a request that needs no permission: that it failed."""


@contextmanager
def foreign() -> Iterator[tuple[int, list[str]]]:
    """Yield the port of a development server, and the heads of all requests that it got."""
    heads: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heads.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>dev</title><body>dev")

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], heads
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_of_another_port_gets_nothing_and_can_do_nothing(tmp_path: Path, opened: Any) -> None:
    with home_builder(tmp_path) as builder, serving(tmp_path) as url, foreign() as (port, heads):
        builder.run("r1", "a").close()
        page = opened(url)
        page.watch.allowed.append(".")  # the foreign page provokes everything
        expect(page.locator("#link")).to_have_text("Live")
        assert "token" not in page.url and "#" not in page.url
        bearer = page.evaluate("JSON.parse(sessionStorage.getItem('garrison-session')).bearer")
        assert bearer.startswith("s.write.")
        own = urlsplit(url)
        answers: list[tuple[str, str, int]] = []
        for name in ("127.0.0.1", "localhost"):
            other = page.context.new_page()
            other.on("response", lambda answer: f":{own.port}/api" in answer.url and answers.append(
                (answer.request.method, answer.url, answer.status)))
            other.goto(f"http://{name}:{port}/?from=garrison")
            tries = other.evaluate((Path(__file__).parent / "attacks.js").read_text(), f"{own.scheme}://{own.netloc}")
            assert tries.pop("opaque") in NOTHING and tries.pop("simple") in NOTHING
            assert tries == REFUSED, name
            other.close()
        assert answers and all(status in (401, 403, 404, 405) for _, _, status in answers), answers
        assert page.context.cookies() == []
        secrets = [bearer, *load_tokens(tmp_path).values()]
        assert heads and not any(secret in head for head in heads for secret in secrets)
        assert not any(word in head.lower() for head in heads for word in ("cookie:", "authorization:", "garrison-"))
        assert page.locator("#link").text_content() == "Live"


def test_a_rebound_host_name_opens_nothing(tmp_path: Path, chromium: Any) -> None:
    """DNS rebinding: the page of another site is on garrison's own address and port."""
    with serving(tmp_path) as url:
        own = urlsplit(url)
        browser = chromium.browser_type.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--host-resolver-rules=MAP rebind.example 127.0.0.1"])
        try:
            page = browser.new_page()
            for rest in ("/", f"/?{own.query}", "/static/main.js"):
                assert page.goto(f"http://rebind.example:{own.port}{rest}").status == 421
            expect(page.locator("body")).to_contain_text("--hostname")
            page.goto(f"http://rebind.example:{own.port}/")
            expect(page.get_by_role("heading")).to_have_text("Another host name")
            tried = 'path => fetch(path).then(answer => answer.text(), () => "refused")'
            assert page.evaluate(tried, "/api/runs") == "refused", "by the content security policy"
        finally:
            browser.close()


@pytest.mark.slow
def test_a_tab_gets_its_session_from_another_and_explains_without(tmp_path: Path, opened: Any) -> None:
    with home_builder(tmp_path) as builder, serving(tmp_path) as url:
        builder.run("r1", "a").close()
        home = url.partition("?")[0]
        page = opened(home)
        expect(page.get_by_role("heading", name="No access")).to_be_visible()
        expect(page.locator("main")).to_contain_text("Open the address that garrison serve printed")
        tab = page.context.new_page()
        tab.goto(url)
        expect(tab.locator("#link")).to_have_text("Live")
        expect(page.locator("#link")).to_have_text("Live")  # it has heard of the session
        third = page.context.new_page()
        third.goto(home + "?run=r1")
        expect(third.locator("#link")).to_have_text("Live")
        page.watch.allowed.append("status of 401|status of 404")
        third.goto(home + "?token=old")
        expect(third.get_by_role("heading")).to_have_text("No access")
        expect(third.locator("body")).to_contain_text("open the one that garrison serve printed last")
        third.goto(home + "nothing")
        third.get_by_role("link", name="Start page").click()
        expect(third.locator("#link")).to_have_text("Live")


def test_a_page_beyond_the_limit_of_the_server_explains_it_and_connects_later(tmp_path: Path, opened: Any) -> None:
    with home_builder(tmp_path) as builder, serving(tmp_path, files=144) as url:
        builder.run("r1", "a").close()
        home, _, token = url.partition("/?token=")
        others = Crowd(int(home.rpartition(":")[2]), token)
        for _ in range(8):
            others.join(1)
        page = opened(url)
        page.watch.allowed.append("status of 503")
        expect(page.locator("#toast")).to_contain_text("8 pages are open, which is the limit: close one of them")
        expect(page.locator("#toast")).to_contain_text("ulimit -n 4096")
        others.leave(1)
        expect(page.locator("#link")).to_have_text("Live")
        others.leave()
