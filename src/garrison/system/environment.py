"""Environment of child processes: built from an allow-list, never copied.

Every agent, gate, set-up and process of ours gets `child_environment`. `list_withheld` lists the names it withheld;
they are printed when a command exits 127. Values never appear in a message. The source environment is an argument.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from garrison.ends import NOT_FOUND, End

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR", "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT",
    "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE",
})
_OF_SHELLS = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
"""Variables that every shell sets itself: a child does not need them."""
_PROXIES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})
_PREFIXES = ("LC_", "GARRISON_")
_OF_ONE_INCARNATION = frozenset({"GARRISON_LIFE", "GARRISON_INCARNATION", "GARRISON_AGENT_SOCKET"})
"""Variables that belong to the parent; a child has its own, or none."""
NOTIFY_URLS = "GARRISON_NOTIFY_URLS"
"""Variable with addresses of services, as in `urls_file` of `[notify]`; only the launcher gets it."""
_NEVER = frozenset({"CLAUDECODE", "CLAUDE_SESSION_ID", NOTIFY_URLS})
_NEVER_PREFIX = "CLAUDE_CODE_"
"""With these, an agent would believe that it runs inside its caller's session."""
_ACCESS = frozenset({"CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX",
                     "CLAUDE_CODE_USE_FOUNDRY"})
"""Variables with that prefix that select how an agent reaches its model: they pass if named."""


def child_environment(source: Mapping[str, str], extra: Iterable[str] = (),
                      own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a child: what the allow-list and `extra` (names) admit from `source`, then `own`.

    VIRTUAL_ENV passes only if it lies in `own["GARRISON_TREE"]`: an outer environment would test the wrong code.
    """
    own = own or {}
    wanted = frozenset(extra)
    kept = {name: value for name, value in source.items() if _passes(name, wanted)}
    virtual, tree = source.get("VIRTUAL_ENV", ""), own.get("GARRISON_TREE", "")
    if tree and virtual and _is_within(virtual, tree):
        kept["VIRTUAL_ENV"] = virtual
    return {**kept, **own}


def absolute_path(path: str) -> str:
    """Return the absolute folders of a PATH; without any, those of the system.

    Programs that garrison itself starts are found only there: `node_modules/.bin`, `.` or an empty entry would be a
    folder of the current worktree, which belongs to the agent.
    """
    return ":".join(part for part in path.split(":") if part.startswith("/")) or os.defpath


TYPED: dict[str, str] = {}
"""The user's PATH, if it differs from this process's."""


def seal_path(typed: dict[str, str] = TYPED) -> None:
    """Let this process find programs only in absolute folders (`absolute_path`)."""
    path = os.environ.get("PATH", "")
    if path != absolute_path(path):
        typed["PATH"] = path
        os.environ["PATH"] = absolute_path(path)


def typed_environment(typed: Mapping[str, str] = TYPED) -> dict[str, str]:
    """Return this process's variables, with the user's original PATH, for starting agents and gates."""
    return {**os.environ, **typed}


def list_withheld(source: Mapping[str, str], extra: Iterable[str] = ()) -> list[str]:
    """Return the sorted names (never the values) in `source` that a child does not get."""
    wanted = frozenset(extra)
    return sorted(name for name in source if name not in _OF_SHELLS and not _passes(name, wanted))


def _passes(name: str, wanted: frozenset[str]) -> bool:
    is_foreign = name in _NEVER or (name.startswith(_NEVER_PREFIX) and name not in _ACCESS)
    if is_foreign or name in _OF_ONE_INCARNATION or name == "VIRTUAL_ENV":
        return False
    return name in wanted or name in _NAMES or name.lower() in _PROXIES or name.startswith(_PREFIXES)


def _is_within(path: str, tree: str) -> bool:
    return posixpath.normpath(path).startswith(posixpath.normpath(tree).rstrip("/") + "/")


def explain_missing_command(names: Sequence[str], log: Path, end: End) -> str:
    """Return a hint if a command was not found; list the withheld `names` in its log."""
    if end.code != NOT_FOUND or not names:
        return ""
    with log.open("a") as file:
        file.write(f"garrison: these variables were withheld, --env NAME passes one: {', '.join(names)}\n")
    return f"; {len(names)} variables were withheld, its log names them"
