"""Tokens: where they come from, and how git gets one. They are never shown, and passed to no child except git.

A token from the environment is sent only to its own host: a remote may name any host. For hosts other than github.com,
gitlab.com and codeberg.org, another variable names the host. Otherwise git's credential helpers are asked.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from garrison.forge.errors import Unauthorized
from garrison.forge.model import ForgeKind, Location
from garrison.system.command import run
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILL_DEADLINE = 15.0


class Token:
    """A secret that neither `repr`, `str`, formatting nor pickling reveals."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value or any(not 33 <= ord(char) < 127 for char in value):
            raise Unauthorized("the token is empty or has invalid characters: check how it is set")
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a token is never stored")


class _Variables(Value):
    names: tuple[str, ...]
    hosts: tuple[str, ...]
    """Hosts that the variables are for by default."""
    host_name: str
    """Variable that names another host."""
    elsewhere: tuple[str, ...]
    """Variables for that other host."""


_VARIABLES = {
    ForgeKind.GITHUB: _Variables(("GH_TOKEN", "GITHUB_TOKEN"), ("github.com",), "GH_HOST",
                                 ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")),
    ForgeKind.GITLAB: _Variables(("GITLAB_TOKEN",), ("gitlab.com",), "GITLAB_HOST", ("GITLAB_TOKEN",)),
    ForgeKind.GITEA: _Variables(("FORGEJO_TOKEN", "GITEA_TOKEN"), ("codeberg.org",), "GITEA_HOST",
                                ("GITEA_TOKEN", "FORGEJO_TOKEN")),
}
_USERS = {ForgeKind.GITHUB: "x-access-token", ForgeKind.GITLAB: "oauth2", ForgeKind.GITEA: "oauth2"}
"""User names under which git's HTTP takes a token as the password."""


def token_names() -> frozenset[str]:
    """Return the variables that may contain a token: no agent gets them, whatever its profile passes."""
    return frozenset(name for each in _VARIABLES.values() for name in (*each.names, *each.elsewhere))


def find_token(location: Location, environ: Mapping[str, str],
               fill: Callable[[Location, Mapping[str, str]], str] | None = None) -> Token:
    """Return the token for a forge, from `environ` or git's credential helpers.

    Raises:
        Unauthorized: there is none; the message says what to set.
    """
    known = _VARIABLES[location.kind]
    if location.host in known.hosts or location.host.endswith(".ghe.com"):
        names = known.names
    else:
        names = known.elsewhere if environ.get(known.host_name, "").strip() == location.host else ()
    for name in names:
        if value := environ.get(name, "").strip():
            return Token(value)
    if value := (fill or fill_credential)(location, environ):
        return Token(value)
    there = f"set {known.names[0]}" if location.host in known.hosts else \
        f"set {known.elsewhere[0]} and {known.host_name}={location.host}"
    raise Unauthorized(f"no token for {location.host}: {there}, or keep one in a credential helper of git")


def fill_credential(location: Location, environ: Mapping[str, str]) -> str:
    """Return the password that git's credential helpers have for a repository; empty if none. It never prompts."""
    asked = f"protocol={location.scheme}\nhost={location.host}\npath={location.path}.git\n\n"
    quiet = {**environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true",
             "GCM_INTERACTIVE": "never"}
    # in the root directory: the configuration of a repository, which agents may write, must not name a helper
    done = run(["git", "credential", "fill"], FILL_DEADLINE, text=asked, env=quiet)
    lines = done.out.splitlines() if done.ok else []
    return next((line.partition("=")[2] for line in lines if line.startswith("password=")), "")


def git_environment(location: Location, token: Token) -> dict[str, str]:
    """Return variables with which git sends the token to this host only; arguments would show in `ps`.

    They do not change the caller's `GIT_CONFIG_COUNT`: git reads both. Credential helpers are not asked.
    """
    user = base64.b64encode(f"{_USERS[location.kind]}:{token.reveal()}".encode()).decode()
    site = f"{location.scheme}://{location.host}/"
    settings = [(f"http.{site}.extraHeader", f"Authorization: Basic {user}"), ("credential.helper", ""),
                ("http.followRedirects", "false")]
    packed = " ".join(f"'{key}'='{value}'" for key, value in settings)  # none of them can contain a quote
    return {"GIT_CONFIG_PARAMETERS": packed, "GIT_TERMINAL_PROMPT": "0"}
