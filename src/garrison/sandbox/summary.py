"""Summary of a run's sandbox: the line that launch and status show, and the refusal of a mode that cannot be held."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.sandbox.place import Mode, Role
from garrison.sandbox.probe import choose_mode, describe_mode, machine
from garrison.sandbox.rights import read_rights

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.sandbox.machine import Machine
    from garrison.sandbox.place import Rights

MISSING = "No such file or directory"
NAMES = {Role.SETUP: "set-up", Role.ACCEPTANCE: "acceptance", Role.GATE: "the gate", Role.TOOL: "tools"}
_LISTS = ("read", "write", "hide")


def summarize_sandbox(home: Path, agents: Iterable[str], environ: Mapping[str, str],
                      roles: Iterable[Role] = NAMES) -> str:
    """Return in one line which modes hold for these agents and roles, and that something is not held; Refused if one of
    them cannot be held on this machine."""
    wanted = {who: rights.mode for who, rights in _rights(home, agents, environ, roles)}
    able = None if set(wanted.values()) == {Mode.NONE} else machine()
    held = {who: mode if able is None else _choose(who, mode, able) for who, mode in wanted.items()}
    return describe_modes(held, able)


def missing_path_notes(home: Path, agents: Iterable[str], environ: Mapping[str, str],
                       roles: Iterable[Role] = NAMES) -> Iterator[str]:
    """Yield a line for each path that the rights of these agents and roles name and that does not exist."""
    missing: dict[tuple[str, Path], list[str]] = {}
    for who, rights in _rights(home, agents, environ, roles):
        for key, paths in zip(_LISTS, (rights.read, rights.write, rights.hide), strict=True):
            for path in paths if rights.mode is not Mode.NONE else ():
                if not os.path.lexists(path):
                    missing.setdefault((key, path), []).append(who)
    for (key, path), users in missing.items():
        yield (f"{key} = [...] of {', '.join(users)} names {path}, which does not exist: "
               + ("what would be hidden is misspelt or not there yet" if key == "hide" else
                  "it is missing in the sandbox; create it, or correct config.toml"))


def _rights(home: Path, agents: Iterable[str], environ: Mapping[str, str],
            roles: Iterable[Role]) -> Iterator[tuple[str, Rights]]:
    """Yield who has which rights."""
    for agent in sorted(agents):
        yield f"agent {agent}", read_rights(home, Role.AGENT, agent, environ)
    for role in roles:
        yield NAMES[role], read_rights(home, role, "", environ)


def explain_missing_file(rights: Rights, table: str, code: int, tail: str) -> str:
    """Return a hint if a confined command may have missed a file that the sandbox does not show, else ''. Pure."""
    if rights.mode is Mode.NONE or code == 0 or (code not in (126, 127) and MISSING not in tail):
        return ""
    return f"; if it needs more than its sandbox shows, add the path to read = [...] in [{table}] of config.toml"


def describe_modes(held: Mapping[str, Mode], able: Machine | None) -> str:
    """Return the line for the modes that hold; `held` says which holds for what. The commonest comes first. Pure."""
    by_mode: dict[Mode, list[str]] = {}
    for who, mode in held.items():
        by_mode.setdefault(mode, []).append(who)
    main, *others = sorted(by_mode, key=lambda mode: -len(by_mode[mode]))
    line = describe_mode(main, able)
    return "".join([line, *(f"; {', '.join(by_mode[mode])}: "
                            f"{describe_mode(mode, able).removeprefix('sandbox: ')}" for mode in others)])


def _choose(who: str, mode: Mode, able: Machine) -> Mode:
    try:
        return choose_mode(mode, able)
    except Refused as error:
        raise Refused(f"{who}: {error}") from error
