"""Remotes and tokens of forges."""

from __future__ import annotations

import pickle

import pytest

from garrison.errors import UsageError
from garrison.forge.credentials import Token, find_token, git_environment, token_names
from garrison.forge.errors import Unauthorized
from garrison.forge.model import ForgeKind, Location
from garrison.forge.remote import parse_remote
from garrison.system.environment import child_environment

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


def no_helper(*_: object) -> str:
    return ""


def test_a_token_of_the_environment_goes_only_to_its_host() -> None:
    environ = {"GITHUB_TOKEN": "hub-secret", "GITEA_TOKEN": "tea-secret", "GITEA_HOST": "git.example.com"}
    assert find_token(HUB, environ, no_helper).reveal() == "hub-secret"
    tea = Location(ForgeKind.GITEA, "git.example.com", "o", "n")
    assert find_token(tea, environ, no_helper).reveal() == "tea-secret"
    for elsewhere in (Location(ForgeKind.GITHUB, "github.evil.example", "o", "n"),
                      Location(ForgeKind.GITEA, "gitea.evil.example", "o", "n")):
        with pytest.raises(Unauthorized, match="no token for") as caught:
            find_token(elsewhere, environ, no_helper)
        assert "secret" not in str(caught.value)


def test_a_token_shows_nowhere_and_reaches_no_child() -> None:
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
