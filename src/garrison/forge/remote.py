"""Find the forge and repository that a remote's URL names. Pure."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from garrison.errors import UsageError
from garrison.forge.model import ForgeKind, Location

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SEGMENT = re.compile(r"[A-Za-z0-9_.~+-]{1,255}")
_SCP = re.compile(r"(?:[A-Za-z0-9_.-]+@)?(?P<host>[^/:@\[\]]+):(?P<path>[^:]+)")
_ALIASES = {"ssh.github.com": "github.com", "www.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}
"""Hosts that serve SSH on port 443 → the host of their API."""
_KNOWN = {"github.com": ForgeKind.GITHUB, "gitlab.com": ForgeKind.GITLAB, "codeberg.org": ForgeKind.GITEA,
          "gitea.com": ForgeKind.GITEA}
_WORDS = {"github": ForgeKind.GITHUB, "gitlab": ForgeKind.GITLAB, "gitea": ForgeKind.GITEA, "forgejo": ForgeKind.GITEA}
"""Values of the setting, and words in a host's name → the forge."""


def parse_remote(url: str, forge: str = "") -> Location:
    """Return the repository that a remote's URL names; `forge` is the setting, for hosts whose name does not show it.

    Credentials in the URL are ignored, and never appear in a message.

    Raises:
        UsageError: the URL names no repository on a host or is unsafe to send a token to, or the kind is unknown.
    """
    scheme, host, path = _split(url)
    if not _HOST.fullmatch(host.partition(":")[0]) or ".." in host:
        raise UsageError("the remote's URL has no valid host name: set it to https://HOST/OWNER/NAME")
    parts = path.strip("/").removesuffix(".git").split("/")
    if len(parts) < 2 or not all(_SEGMENT.fullmatch(each) and set(each) != {"."} and each[0] != "-" for each in parts):
        raise UsageError(f"the remote's URL on {host} does not end with OWNER/NAME")
    if scheme == "http" and not _is_loopback(host.partition(":")[0]):
        raise UsageError(f"the remote on {host} uses http, which would send the token in the clear: use https")
    host = _ALIASES.get(host, host)
    kind = _find_kind(host, forge)
    if kind is not ForgeKind.GITLAB and len(parts) != 2:
        raise UsageError(f"the remote's URL on {host} should end with OWNER/NAME, but has {len(parts)} parts")
    return Location(kind, host, "/".join(parts[:-1]), parts[-1], scheme)


def _split(url: str) -> tuple[str, str, str]:
    """Return scheme of the API, host with port, and path."""
    if not url or any(ord(char) <= 32 or ord(char) == 127 for char in url) or url.startswith("-"):
        raise UsageError("the remote has no URL, or a URL with spaces or control characters")
    if "://" not in url:
        found = _SCP.fullmatch(url)
        if found is None or "::" in url:
            raise UsageError("the remote is not on a forge: it is a path or uses a remote helper")
        return "https", found["host"].lower(), found["path"]
    try:
        parsed = urlsplit(url)
        host, port = (parsed.hostname or "").lower(), parsed.port
    except ValueError as error:
        raise UsageError("the remote's URL is malformed") from error
    if parsed.query or parsed.fragment or "%" in parsed.path:
        raise UsageError(f"the remote's URL on {host} has more than a path")
    if parsed.scheme == "ssh":
        return "https", host, parsed.path  # the port is that of SSH
    if parsed.scheme not in {"https", "http"}:
        raise UsageError(f"the remote uses {parsed.scheme}://; use https or ssh")
    usual = {"https": 443, "http": 80}[parsed.scheme]
    return parsed.scheme, host if port in {None, usual} else f"{host}:{port}", parsed.path


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_kind(host: str, forge: str) -> ForgeKind:
    if forge:
        if forge not in _WORDS:
            raise UsageError(f"forge = {forge!r} is not known; there are {', '.join(_WORDS)}")
        return _WORDS[forge]
    name = host.partition(":")[0]
    if name.endswith(".ghe.com"):
        return ForgeKind.GITHUB
    found = _KNOWN.get(name) or next((kind for word, kind in _WORDS.items() if word in name.split(".")), None)
    if found is None:
        raise UsageError(f"{host} is an unknown kind of forge: set forge = \"github\", \"gitlab\", \"gitea\" "
                         "or \"forgejo\" below [pull_requests] in config.toml")
    return found
