"""The environment of children: built from an allow-list, never copied. Pure: the source is an argument.

`child_environment` is what every agent, gate, set-up and layer gets; `held_back` names what it did not get, for the
message when a command exits 127 or complains. Values never leave this file in a message.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR", "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT",
    "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE",
})
_PROXIES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})
_PREFIXES = ("LC_", "GARRISON_")
_OF_ONE_LIFE = frozenset({"GARRISON_LIFE", "GARRISON_INCARNATION"})
"""True of the parent only; a child has its own, or none."""
_NEVER = frozenset({"CLAUDECODE", "CLAUDE_SESSION_ID"})
_NEVER_PREFIX = "CLAUDE_CODE_"
"""An agent that sees these believes that it runs inside its caller's session."""


def child_environment(source: Mapping[str, str], extra: Iterable[str] = (),
                      own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a child: what the allow-list and `extra` (names) take from `source`, then `own` on top.

    VIRTUAL_ENV passes only if it lies in `own["GARRISON_TREE"]`: an outer environment would test the wrong code.
    """
    own = own or {}
    wanted = frozenset(extra)
    kept = {name: value for name, value in source.items() if _passes(name, wanted)}
    virtual, tree = source.get("VIRTUAL_ENV", ""), own.get("GARRISON_TREE", "")
    if tree and virtual and _inside(virtual, tree):
        kept["VIRTUAL_ENV"] = virtual
    return {**kept, **own}


def held_back(source: Mapping[str, str], extra: Iterable[str] = ()) -> list[str]:
    """The names (never the values) in `source` that a child does not get, sorted."""
    wanted = frozenset(extra)
    return sorted(name for name in source if not _passes(name, wanted))


def _passes(name: str, wanted: frozenset[str]) -> bool:
    if name in _NEVER or name.startswith(_NEVER_PREFIX) or name in _OF_ONE_LIFE or name == "VIRTUAL_ENV":
        return False
    return name in wanted or name in _NAMES or name.lower() in _PROXIES or name.startswith(_PREFIXES)


def _inside(path: str, tree: str) -> bool:
    return posixpath.normpath(path).startswith(posixpath.normpath(tree).rstrip("/") + "/")
