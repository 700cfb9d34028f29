"""Requests to a forge: when a rate limit ends, and what a moved repository means."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path

import pytest

from garrison.forge.credentials import Token
from garrison.forge.errors import RateLimited, Refused
from garrison.forge.session import Answer, EtagCache, Request, Session

NOW = 1_800_000_000.0


class Canned:
    """A transport with one answer."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.answer = Answer(status, headers, b'{"message": "rate limit exceeded"}')

    def send(self, request: Request, timeout: float) -> Answer:
        return self.answer


def session(status: int, **headers: str) -> Session:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Session(Canned(status, named), Token("t" * 20), clock=lambda: NOW)


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
    """The forge names times by its own clock, which its Date header tells."""
    date = formatdate(NOW + skew, usegmt=True)
    for headers in ({"x_ratelimit_remaining": "0", "x_ratelimit_reset": reset(skew + 40)},
                    {"retry_after": formatdate(NOW + skew + 40, usegmt=True)}):
        with pytest.raises(RateLimited) as caught:
            session(403, date=date, **headers).get(dict, "/x")
        assert caught.value.until == NOW + 40
    with pytest.raises(RateLimited) as caught:
        session(403, date="Tomorrow", x_ratelimit_remaining="0", x_ratelimit_reset=reset(40)).get(dict, "/x")
    assert caught.value.until == NOW + 40


def test_a_repository_that_was_renamed_is_told_and_not_followed() -> None:
    with pytest.raises(Refused, match="the repository has moved; change the remote's URL"):
        session(301, location="https://elsewhere.example/repositories/1").get(dict, "/x")


def test_a_forge_that_lies_about_what_has_not_changed_is_not_asked_for_that(tmp_path: Path) -> None:
    """Each read but those that are to be anew gets a 304 for what it has an ETag of."""
    class Liar:
        answers = iter(range(9))

        def send(self, request: Request, timeout: float) -> Answer:
            if "If-None-Match" in request.headers:
                return Answer(304, {}, b"")
            return Answer(200, {"etag": "e"}, f'{{"n": {next(self.answers)}}}'.encode())

    token = Token("t" * 20)
    reads = Session(Liar(), token, EtagCache(tmp_path, token), clock=lambda: NOW)
    assert [reads.get(dict, "/x")["n"] for _ in range(3)] == [0, 0, 0]
    reads.is_anew = True
    assert reads.get(dict, "/x")["n"] == 1
    reads.is_anew = False
    assert reads.get(dict, "/x")["n"] == 1, "what was read anew is kept"
