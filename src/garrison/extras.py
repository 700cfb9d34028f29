"""Extras: the parts of garrison whose libraries are optional, and the command that installs one.

The core needs few libraries. `plugins.OWN` lists what an extra registers, this module its libraries. They are imported
where they are used: `require` refuses early if one is missing, and `explain` turns an import error elsewhere into the
same line.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from garrison.errors import Refused
from garrison.values import Value


class Extra(Value):
    """Part installed by `pip install 'garrison[NAME]'`."""

    brings: str
    libraries: tuple[str, ...]
    """Packages that it imports, the main one first."""

    @property
    def is_installed(self) -> bool:
        # find_spec imports nothing: importing the Claude SDK takes a second.
        return find_spec(self.libraries[0]) is not None


EXTRAS = {
    "claude": Extra("Claude agents, sessions and the butler",
                    ("claude_agent_sdk", "dateparser", "jsonschema", "pydantic")),
    "acp": Extra("`garrison acp`, and agents that speak the Agent Client Protocol", ("acp", "pydantic")),
    "mcp": Extra("`garrison mcp`, and tools of MCP servers", ("mcp",)),
    "web": Extra("the page of `garrison serve`, and metrics",
                 ("starlette", "uvicorn", "cryptography", "prometheus_client", "pydantic", "segno")),
    "forges": Extra("GitHub, GitLab, Gitea and Forgejo", ("httpx2",)),
    "hosts": Extra("work on other machines", ("temporalio",)),
    "top": Extra("the live screen of `garrison top`", ("textual",)),
    "notify": Extra("notices by services such as ntfy, Slack or mail, and on phones", ("apprise", "cryptography")),
    "graph": Extra("conversion of agent graphs to networkx", ("networkx",)),
}


class MissingExtra(Refused):
    """Refusal for a missing extra; the message contains the command that installs it."""


def require(name: str, what: str) -> None:
    """Raise MissingExtra unless an extra is installed; its message starts with `what`, the part that needs it."""
    if not EXTRAS[name].is_installed:
        raise MissingExtra(_message(name, what))


def explain(error: ImportError) -> MissingExtra | None:
    """Return the refusal for an import that failed because an extra is not installed; None for any other."""
    package = (error.name or "").partition(".")[0]
    names = [name for name, extra in EXTRAS.items() if package in extra.libraries]
    # an installed package that fails to import is broken or too old: installing its extra would not help
    if not names or not isinstance(error, ModuleNotFoundError) or find_spec(package) is not None:
        return None
    name = next((name for name in names if not EXTRAS[name].is_installed), names[0])
    return MissingExtra(_message(name, "this"))


def _message(name: str, what: str) -> str:
    size = ", about 380 MB" if name == "claude" else ""
    return f"{what} needs the extra `{name}` ({EXTRAS[name].brings}{size}); install it: `{install_line(name)}`"


def removal_line() -> str:
    """Return the command that removes this installation, for the installer that was used."""
    match _installer(Path(sys.prefix)):
        case Installer.PIPX:
            return "pipx uninstall garrison"
        case Installer.UV_TOOL:
            return "uv tool uninstall garrison"
        case Installer.UV:
            return shlex.join(["uv", "pip", "uninstall", "--python", sys.executable, "garrison"])
    return shlex.join([*_pip(), "uninstall", "garrison"])


class Installer(StrEnum):
    """Program that created an environment."""

    PIPX = "pipx"
    UV_TOOL = "uv tool"
    UV = "uv"
    PIP = "pip"


def _installer(prefix: Path) -> Installer:
    if (prefix / "pipx_metadata.json").is_file():
        return Installer.PIPX
    if (prefix / "uv-receipt.toml").is_file():
        return Installer.UV_TOOL
    return Installer.UV if "\nuv = " in _read(prefix / "pyvenv.cfg") else Installer.PIP  # uv's has no pip


def _pip() -> list[str]:
    return ["pip"] if os.environ.get("VIRTUAL_ENV") == sys.prefix else [sys.executable, "-m", "pip"]


def install_line(name: str, prefix: Path = Path(sys.prefix), source: Mapping[str, Any] | None = None) -> str:
    """Return the command that adds an extra to an installation, for the installer that was used.

    pipx and uv reinstall a tool, so their commands also name the extras that are already installed.

    Args:
        prefix: the environment's folder.
        source: content of its `direct_url.json` (default: this installation's).
    """
    installer = _installer(prefix)
    is_tool = installer in (Installer.PIPX, Installer.UV_TOOL)
    wanted = sorted({name, *(each for each, extra in EXTRAS.items() if is_tool and extra.is_installed)})
    requirement, is_editable = _requirement(",".join(wanted), _read_source() if source is None else source)
    words = [*(["--editable"] if is_editable else []), requirement]
    match installer:
        case Installer.PIPX | Installer.UV_TOOL:
            return shlex.join([*installer.split(), "install", "--force", *words])
        case Installer.UV:
            return shlex.join(["uv", "pip", "install", "--python", sys.executable, *words])
    return shlex.join([*_pip(), "install", *words])


def _read_source() -> Mapping[str, Any]:
    from importlib.metadata import PackageNotFoundError, distribution  # 15 ms, needed only for this refusal

    try:
        return dict(json.loads(distribution("garrison").read_text("direct_url.json") or "{}"))
    except (PackageNotFoundError, ValueError):
        return {}


def _requirement(extras: str, source: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the requirement for garrison with these extras from its original source, and whether it is editable."""
    # PEP 610: `dir_info` for a folder, `vcs_info` for a repository, neither for a wheel; from an index there is no
    # file.
    url = str(source.get("url", ""))
    if "dir_info" in source:
        return f"{unquote(urlsplit(url).path)}[{extras}]", bool(source["dir_info"].get("editable"))
    if revision := source.get("vcs_info"):
        return f"garrison[{extras}] @ {revision['vcs']}+{url}@{revision['commit_id']}", False
    return f"garrison[{extras}] @ {url}" if url else f"garrison[{extras}]", False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
