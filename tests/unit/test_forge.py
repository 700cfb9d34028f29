"""Answers of a forge: rate limits, moved repositories; addresses of remotes, tokens, and markers in our texts."""

from __future__ import annotations

import pickle
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from garrison.errors import UsageError
from garrison.forge.credentials import Token, find_token, git_environment, token_names
from garrison.forge.errors import ForgeRefused, ForgeUnreachable, RateLimited, Unauthorized
from garrison.forge.marker import attach, has_marker, make_marker
from garrison.forge.model import ForgeKind, Location
from garrison.forge.remote import parse_remote
from garrison.forge.transport import LOG_TAIL, Connections, EtagCache, ForgeRequest, ForgeSession, Response
from garrison.system.environment import child_environment
from garrison.values import Value

NOW = 1_800_000_000.0


class Canned:
    """A transport with one answer."""

    def __init__(self, status: int, headers: dict[str, str],
                 body: bytes = b'{"message": "rate limit exceeded"}') -> None:
        self.answer = Response(status, headers, body)

    def send(self, request: ForgeRequest, timeout: float) -> Response:
        return self.answer


def session(status: int, **headers: str) -> ForgeSession:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ForgeSession(Canned(status, named), Token("t" * 20), clock=lambda: NOW)


def reset(seconds: float) -> str:
    return str(int(NOW + seconds))


@pytest.mark.parametrize(("status", "headers", "wait"), [
    (403, {"retry_after": "7"}, 7),
    (429, {}, 60),
    (403, {"retry_after": "0"}, 1),
    (403, {"retry_after": "9" * 400}, 86400),
    (429, {"retry_after": formatdate(NOW + 90, usegmt=True)}, 90),
    (429, {"retry_after": "soon"}, 60),
    (403, {"x_ratelimit_remaining": "0", "x_ratelimit_reset": reset(120)}, 120),
    (403, {"x_ratelimit_remaining": "0", "x_ratelimit_reset": reset(-50)}, 1),
    (429, {"ratelimit_reset": reset(30)}, 30),
])
def test_a_rate_limit_names_its_end(status: int, headers: dict[str, str], wait: float) -> None:
    with pytest.raises(RateLimited) as caught:
        session(status, **headers).get(dict, "/x")
    assert caught.value.until == NOW + wait


@pytest.mark.parametrize("skew", [-7200, 7200])
def test_a_wrong_clock_here_does_not_matter(skew: float) -> None:
    """Times of the forge refer to its own clock, which its Date header shows."""
    date = formatdate(NOW + skew, usegmt=True)
    for headers in ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": reset(skew + 40)},
                    {"retry_after": formatdate(NOW + skew + 40, usegmt=True)}):
        with pytest.raises(RateLimited) as caught:
            session(403, date=date, **headers).get(dict, "/x")
        assert caught.value.until == NOW + 40
    with pytest.raises(RateLimited) as caught:
        session(403, date="Tomorrow", x_ratelimit_remaining="0", x_ratelimit_reset=reset(40)).get(dict, "/x")
    assert caught.value.until == NOW + 40


def test_a_renamed_repository_is_reported_and_not_followed() -> None:
    with pytest.raises(ForgeRefused, match="the repository has moved; change the remote's URL"):
        session(301, location="https://elsewhere.example/repositories/1").get(dict, "/x")


def test_a_forge_that_wrongly_answers_304_is_read_without_its_etag(tmp_path: Path) -> None:
    """Each read with an ETag gets a 304."""
    class Liar:
        answers = iter(range(9))

        def send(self, request: ForgeRequest, timeout: float) -> Response:
            if "If-None-Match" in request.headers:
                return Response(304, {}, b"")
            return Response(200, {"etag": "e"}, f'{{"n": {next(self.answers)}}}'.encode())

    token = Token("t" * 20)
    reads = ForgeSession(Liar(), token, EtagCache(tmp_path, token), clock=lambda: NOW)
    assert [reads.get(dict, "/x")["n"] for _ in range(3)] == [0, 0, 0]
    reads.is_anew = True
    assert reads.get(dict, "/x")["n"] == 1
    reads.is_anew = False
    assert reads.get(dict, "/x")["n"] == 1, "the latest answer is kept"


class _Pull(Value):
    number: int
    title: str = "none"
    draft: bool = False


@pytest.mark.parametrize(("body", "found"), [
    (b'{"number": 1, "title": null, "draft": true, "more": [1]}', _Pull(1, draft=True)),
    (b'{"number": 1, "title": "half \\ud800"}', _Pull(1, "half ?")),
    (b'{"number": "1"}', r"Expected `int`, got `str` - at `\$.number`"),
    (b'{"number": null}', "missing required field"),
    (b"[]", "Expected `object`, got `array`"), (b"{", "not JSON"), (b"", "not JSON")])
def test_an_undocumented_answer_is_refused(body: bytes, found: _Pull | str) -> None:
    asked = ForgeSession(Canned(200, {}, body), Token("t" * 20), clock=lambda: NOW)
    if isinstance(found, _Pull):
        assert asked.get(_Pull, "/x") == found
    else:
        with pytest.raises(ForgeUnreachable, match=found):
            asked.get(_Pull, "/x")


def test_a_log_on_another_host_is_read_without_the_token_and_only_its_end() -> None:
    heard: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            is_log = self.path == "/kept?sig=1"
            self.send_response(200 if is_log else 302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/kept?sig=1")
            self.end_headers()
            self.wfile.write(b"line of the log\n" * 9000 if is_log else b"")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        base, token = f"http://127.0.0.1:{server.server_port}", Token("t" * 20)
        log = ForgeSession(Connections(base, "token ttt"), token).get_log("/jobs/1/logs")
        server.shutdown()
    assert heard == ["token ttt", None]
    assert log == "line of the log\n" * (LOG_TAIL // 16 - (LOG_TAIL % 16 == 0))


# ---- remotes and tokens of forges


HUB = Location(ForgeKind.GITHUB, "github.com", "o", "n")


@pytest.mark.parametrize(("url", "forge", "expected"), [
    ("https://github.com/o/n.git", "", HUB),
    ("https://user:secret@github.com/o/n/", "", HUB),
    ("git@github.com:o/n.git", "", HUB),
    ("ssh://git@ssh.github.com:443/o/n.git", "", HUB),
    ("https://github.example.com:8443/o/n", "", Location(ForgeKind.GITHUB, "github.example.com:8443", "o", "n")),
    ("git@acme.ghe.com:o/n", "", Location(ForgeKind.GITHUB, "acme.ghe.com", "o", "n")),
    ("git@gitlab.com:group/sub/n.git", "", Location(ForgeKind.GITLAB, "gitlab.com", "group/sub", "n")),
    ("https://codeberg.org/o/n", "", Location(ForgeKind.GITEA, "codeberg.org", "o", "n")),
    ("https://git.example.com/o/n", "forgejo", Location(ForgeKind.GITEA, "git.example.com", "o", "n")),
    ("http://127.0.0.1:3000/o/n", "gitea", Location(ForgeKind.GITEA, "127.0.0.1:3000", "o", "n", "http")),
])
def test_a_remote_names_a_repository_on_a_forge(url: str, forge: str, expected: Location) -> None:
    assert parse_remote(url, forge) == expected


@pytest.mark.parametrize("url", [
    "", "/srv/repo.git", "../repo", "file:///srv/o/n", "ext::sh -c evil% o/n", "-oProxyCommand=x:o/n",
    "git://github.com/o/n",
    "https://github.com/o", "https://github.com/o/n/../x", "https://github.com/o/..", "https://github.com/o/n?x=1",
    "https://github.com/o/%2e%2e/n", "https://github.com/o/n\n", "https://-x/o/n", "https://git hub.com/o/n",
    "http://github.com/o/n", "https://github.com:99999/o/n", "https://git.example.com/o/n", "https://github.com/a/b/c",
    "git@github.com:-x/n", "https://github.com\\@evil.example/o/n",
])
def test_a_hostile_or_unsuitable_remote_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_remote(url)
    assert "secret" not in str(caught.value)


def test_a_token_goes_only_to_its_host_is_never_printed_and_reaches_no_child() -> None:
    environ = {"GITHUB_TOKEN": "hub-secret", "GITEA_TOKEN": "tea-secret", "GITEA_HOST": "git.example.com"}
    assert find_token(HUB, environ, lambda *_: "").reveal() == "hub-secret"
    tea = Location(ForgeKind.GITEA, "git.example.com", "o", "n")
    assert find_token(tea, environ, lambda *_: "").reveal() == "tea-secret"
    for elsewhere in (Location(ForgeKind.GITHUB, "github.evil.example", "o", "n"),
                      Location(ForgeKind.GITEA, "gitea.evil.example", "o", "n")):
        with pytest.raises(Unauthorized, match="no token for") as caught:
            find_token(elsewhere, environ, lambda *_: "")
        assert "secret" not in str(caught.value)
    token = Token("very-secret")
    assert "very-secret" not in f"{token} {token!r} {[token]}"
    with pytest.raises(TypeError, match="never stored"):
        pickle.dumps(token)
    passed = child_environment(dict.fromkeys(token_names(), "very-secret") | git_environment(HUB, token))
    assert not passed


@pytest.mark.parametrize("value", ["", "a b", "a\r\nHost: evil", "ü"])
def test_a_token_that_could_add_a_header_is_refused(value: str) -> None:
    with pytest.raises(Unauthorized):
        Token(value)


# ---- markers of texts that garrison writes on a forge


def test_a_marker_is_attached_once_and_found_unless_it_is_quoted_or_of_another_run() -> None:
    marker = make_marker("run-1", "pull")
    body = attach("Text\n", marker)
    assert body == f"Text\n\n{marker}"
    assert attach(body, marker) == body
    assert has_marker(body.replace("\n", "\r\n") + "\nmore", marker)
    assert not has_marker(f"> {marker}", marker)
    assert not has_marker(make_marker("run-10", "pull"), marker)


@pytest.mark.parametrize("part", ["", "a -->", "a b", "a\nb", "x" * 201])
def test_a_part_that_could_end_the_comment_is_refused_and_hyphens_do_not_end_it(part: str) -> None:
    with pytest.raises(ValueError, match="not a marker"):
        make_marker("run", part)
    marker = make_marker("a--b", "pull")
    assert "--" not in marker.removeprefix("<!--").removesuffix("-->")
    assert marker != make_marker("a-b", "pull")
