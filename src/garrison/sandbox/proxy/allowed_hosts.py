"""Hosts: which names, ports and addresses a confined tree may reach through the proxy. Pure.

An entry of `hosts` is `NAME`, `NAME:PORT`, `NAME:*`, an address, `default` for the table below, or `*` for every public
host. `*.NAME` stands for all names below NAME. Without a port, an entry admits 80 and 443.

An admitted name must resolve to a public address. `private NAME` admits a name that resolves to an address of the
user's own network; an address in an entry is admitted unconditionally.
"""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import UsageError
from garrison.records.json_io import read_json, write_json
from garrison.sandbox.place import DEFAULT_HOSTS
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MODEL_HOSTS = (
    "api.anthropic.com", "platform.claude.com", "console.anthropic.com", "claude.ai",
    "api.openai.com", "auth.openai.com", "chatgpt.com",
    "generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com", "accounts.google.com",
    "openrouter.ai", "api.mistral.ai", "api.deepseek.com", "api.groq.com", "api.x.ai",
)
"""Model APIs, and the log-in hosts of their command-line programs."""
REGISTRY_HOSTS = (
    "pypi.org", "files.pythonhosted.org", "conda.anaconda.org", "repo.anaconda.com",
    "registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org", "jsr.io", "npm.jsr.io", "deno.land",
    "crates.io", "index.crates.io", "static.crates.io", "static.rust-lang.org",
    "proxy.golang.org", "sum.golang.org", "go.dev",
    "repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "plugins-artifacts.gradle.org",
    "services.gradle.org", "downloads.gradle.org",
    "rubygems.org", "index.rubygems.org", "repo.packagist.org", "packagist.org", "repo.hex.pm", "hex.pm",
    "api.nuget.org", "hackage.haskell.org", "cdn.cocoapods.org",
    "deb.debian.org", "security.debian.org", "archive.ubuntu.com", "*.archive.ubuntu.com", "security.ubuntu.com",
    "ports.ubuntu.com", "dl-cdn.alpinelinux.org",
)
"""Package registries. Code hosts are missing: an agent could leak data to any host it can push to."""
DEFAULT_PORTS = frozenset({80, 443})
METADATA = frozenset({"169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"})
"""Addresses where clouds give a machine its credentials; some are public."""
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class HostRule(Value):
    """One entry of the allow-list."""

    name: str
    """Name or address in lower case; `*.NAME` for the names below it, `*` for all."""
    ports: frozenset[int] | None = DEFAULT_PORTS
    """None: every port."""
    private: bool = False
    """True if the name may resolve to an address that is not public."""

    def admits(self, host: str, port: int) -> bool:
        """Return whether this entry names that host and port."""
        if self.ports is not None and port not in self.ports:
            return False
        if self.name == "*":
            return parse_address(host) is None
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and parse_address(host) is None
        return host == self.name


def parse_rules(entries: Iterable[str]) -> tuple[HostRule, ...]:
    """Return the rules of a list of entries; UsageError names one that is malformed."""
    rules: list[HostRule] = []
    for entry in entries:
        if entry == DEFAULT_HOSTS:
            rules += [HostRule(name) for name in (*MODEL_HOSTS, *REGISTRY_HOSTS)]
        else:
            rules.append(_parse_rule(entry))
    return tuple(rules)


def _parse_rule(entry: str) -> HostRule:
    words = entry.lower().split()
    private = len(words) == 2 and words[0] == "private"
    text = words[-1] if private or (len(words) == 1 and words != ["private"]) else ""
    name, ports = _split_ports(text)
    address = parse_address(name)
    if address is not None:
        return HostRule(str(address), ports, private=True)
    if name == "localhost":
        return HostRule(name, ports, private=True)
    if name != "*" and not is_name(name.removeprefix("*.")):
        raise UsageError(f"hosts: {entry!r} is not a host; write NAME, NAME:PORT, *.NAME, an address, or private NAME")
    return HostRule(name, ports, private)


def _split_ports(text: str) -> tuple[str, frozenset[int] | None]:
    if parse_address(text) is not None:
        return text, DEFAULT_PORTS
    name, sign, port = text.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    if not sign:
        return text, DEFAULT_PORTS
    if port == "*":
        return name, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return "", DEFAULT_PORTS
    return name, frozenset({int(port)})


def entry_for(host: str, port: int, *, private: bool = False) -> str:
    """Return the entry of `hosts` that would admit a host and port; '' for a cloud's metadata, which must never be
    admitted.

    Args:
        private: admit it even if its address is not public.
    """
    if is_metadata(host):
        return ""
    name = f"[{host}]" if ":" in host and port not in DEFAULT_PORTS else host
    return f"{'private ' if private else ''}{name}{'' if port in DEFAULT_PORTS else f':{port}'}"


def find_rule(rules: Sequence[HostRule], host: str, port: int) -> HostRule | None:
    """Return the rule that admits a host and port, one for private addresses first; None if there is none."""
    found = [rule for rule in rules if rule.admits(host, port)]
    return next((rule for rule in found if rule.private), found[0] if found else None)


def normalize_host(text: str) -> str:
    """Return a host of a request in lower case, an address in its usual form; '' if it is not a host."""
    address = parse_address(text)
    if address is not None:
        return str(address)
    name = text.lower().removesuffix(".")
    return name if is_name(name) else ""


def is_name(text: str) -> bool:
    """Return whether a text is a host name in lower case; a number is not: resolvers read it as an address."""
    last = text.rpartition(".")[2]
    return len(text) <= 253 and bool(_NAME.match(text)) and not last.isdigit() and not last.startswith("0x")


def parse_address(text: str) -> Address | None:
    """Parse an address, without zone; None if the text is not one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if isinstance(address, ipaddress.IPv6Address) and address.scope_id else address


_KINDS: Mapping[str, Callable[[Address], bool]] = {
    "a loopback address": lambda address: address.is_loopback,
    "a link-local address": lambda address: address.is_link_local,
    "a multicast address": lambda address: address.is_multicast,
    "an unspecified address": lambda address: address.is_unspecified,
    "a private address": lambda address: address.is_private,
    "an address that is not public": lambda address: address.is_reserved or not address.is_global,
}
"""Kind of address that no name may resolve to → its test."""


def forbidden_reason(text: str) -> str:
    """Return why a name may not resolve to an address ('private' and the like); '' if it is public."""
    address = parse_address(text)
    if address is None:
        return "an invalid address"
    if is_metadata(text):
        return "a metadata address"
    embedded = _embedded(address)
    if embedded is not None:
        return forbidden_reason(str(embedded))
    return next((name for name, is_of_kind in _KINDS.items() if is_of_kind(address)), "")


def may_be_private(addresses: Iterable[str]) -> bool:
    """Return whether an entry `private` would admit a refused name: it has addresses, and no metadata one."""
    found = list(addresses)
    return bool(found) and not any(map(is_metadata, found))


def is_metadata(text: str) -> bool:
    """Return whether clouds serve a machine's credentials at an address."""
    address = parse_address(text)
    return address is not None and str(_embedded(address) or address) in METADATA


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def permitted_addresses(addresses: Iterable[str], rule: HostRule | None) -> tuple[list[str], str]:
    """Return the reachable addresses of a name, and the reason for the user if there is none.

    One forbidden address refuses the name: a name server that mixes them may be rebinding.
    """
    found = list(dict.fromkeys(addresses))
    if rule is not None and rule.private:
        named = rule.name if parse_address(rule.name) else ""
        found = [address for address in found if address == named or not is_metadata(address)]
        return found, "" if found else "it resolves to a metadata address"
    reasons = [reason for address in found if (reason := forbidden_reason(address))]
    if reasons:
        return [], f"it resolves to {reasons[0]}"
    return found, "" if found else "it has no address"


# ---- Refused hosts: what the proxy refused to a node's programs, in a file of the attempt's folder.


REFUSED = "refused.json"
"""File of the refused hosts, in the proxy's folder for one tree."""
REFUSED_PORTS = "ports.json"
"""The same for ports of the machine, which only the owner of a tree's network notices."""
REFUSED_SERVICES = "services.json"
"""The same for services that do not run."""
OF_GATE = "gate/network/refused.json"
"""Path below the folder of an attempt: the hosts refused to the last gate on its work."""
FILES = ("network/refused.json", "network/ports.json", "network/services.json", "validator/network/refused.json",
         "validator/network/ports.json", OF_GATE)
"""Paths below the folder of an attempt: for its agent and jobs, its validator, its gate."""


class RefusedHost(msgspec.Struct):
    """A refused host and port, with a count."""

    place: str
    reason: str
    first: str
    last: str
    count: int = 0
    entry: str = ""
    """Entry of `hosts` that would allow it, '' if none would."""
    port: int = 0
    """Entry of `host_ports` that would allow it, 0 if none would."""

    def describe(self) -> str:
        """Describe it."""
        times = "" if self.count == 1 else f" {self.count} times"
        return f"{self.place} was refused{times}: {self.reason}"


class HostRights(Value):
    """The allowed hosts, and the file that sets them."""

    path: Path = Path("config.toml")
    hosts: tuple[str, ...] = (DEFAULT_HOSTS,)
    host_ports: tuple[tuple[str, int], ...] = ()

    def port_line_with(self, ports: Iterable[int]) -> str:
        """Return the line that also allows these ports of the machine."""
        known = [port if name == "127.0.0.1" else f"{name}:{port}" for name, port in self.host_ports]
        return f"host_ports = {json.dumps(list(dict.fromkeys((*known, *ports))))}"

    def line_with(self, entries: Iterable[str]) -> str:
        return f"hosts = {json.dumps(list(dict.fromkeys((*self.hosts, *entries))), ensure_ascii=False)}"


def describe_permission(refused: Iterable[RefusedHost], settings: HostRights) -> str:
    """Return how the user allows all these hosts, with the line to paste; '' if no setting would."""
    refused = list(refused)
    entries = {host.entry: None for host in refused if host.entry and host.entry not in settings.hosts}
    ports = sorted({host.port for host in refused if host.port and ("127.0.0.1", host.port) not in settings.host_ports})
    lines = [*([settings.line_with(entries)] if entries else ()), *([settings.port_line_with(ports)] if ports else ())]
    return f"to allow {'it' if len(entries) + len(ports) == 1 else 'them'}, write this below [sandbox] in " \
           f"{settings.path}: {'; '.join(lines)}" if lines else ""


def refused_in_attempt(folder: Path) -> list[RefusedHost]:
    return [host for name in FILES for host in read_refused(folder / name)]


def read_refused(file: Path) -> list[RefusedHost]:
    """Return the refused hosts in a file in order of first occurrence; nothing for a torn file."""
    found = read_json(file)
    try:
        return [RefusedHost(**body) for body in found or ()]
    except TypeError:
        return []


def write_refused(file: Path, hosts: Iterable[RefusedHost]) -> None:
    """Replace the refused hosts in a file."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(file, [asdict(host) for host in hosts])
