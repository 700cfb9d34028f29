"""Refused hosts: what the proxy would not connect a node's programs to, in a file of the attempt's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from garrison.records.json_io import read_json, write_json
from garrison.sandbox.place import DEFAULT_HOSTS
from garrison.values import Value, asdict

REFUSED = "refused.json"
"""File of the refused hosts, in a folder that the proxy keeps for one tree."""
OF_GATE = "gate/network/refused.json"
"""Path below the folder of an attempt: the hosts that the last gate on its work was refused."""
FILES = ("network/refused.json", "validator/network/refused.json", OF_GATE)
"""Paths below the folder of an attempt: of its agent and jobs, of its validator, of its gate."""


@dataclass(slots=True)
class RefusedHost:
    """A host and port that was refused, and how often."""

    place: str
    reason: str
    first: str
    last: str
    count: int = 0
    entry: str = ""
    """Entry of `hosts` that would allow it, '' if none would."""

    def describe(self) -> str:
        """Return it in words."""
        times = "" if self.count == 1 else f" {self.count} times"
        return f"{self.place} was refused{times}: {self.reason}"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class HostSettings(Value):
    """The hosts that may be reached, and the file that states them."""

    path: Path = Path("config.toml")
    hosts: tuple[str, ...] = (DEFAULT_HOSTS,)

    def line_with(self, entries: Iterable[str]) -> str:
        return f"hosts = {json.dumps(list(dict.fromkeys((*self.hosts, *entries))), ensure_ascii=False)}"


def describe_permission(refused: Iterable[RefusedHost], settings: HostSettings) -> str:
    """Return how a person lets all these hosts be reached, with the line to paste; '' if no setting would."""
    entries = {host.entry: None for host in refused if host.entry and host.entry not in settings.hosts}
    return f"to allow {'it' if len(entries) == 1 else 'them'}, write this below [sandbox] in {settings.path}: " \
           f"{settings.line_with(entries)}" if entries else ""


def refused_in_attempt(folder: Path) -> list[RefusedHost]:
    return [host for name in FILES for host in read_refused(folder / name)]


def read_refused(file: Path) -> list[RefusedHost]:
    """Return the refused hosts in a file in the order of their first time; nothing for a torn file."""
    found = read_json(file)
    try:
        return [RefusedHost(**body) for body in found or ()]
    except TypeError:
        return []


def write_refused(file: Path, hosts: Iterable[RefusedHost]) -> None:
    """Replace the refused hosts in a file."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(file, [host.to_json() for host in hosts])
