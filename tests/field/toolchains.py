"""Toolchains and released projects, fetched once by package name and kept for later runs.

They are in $XDG_CACHE_HOME/garrison-tests (default: ~/.cache/garrison-tests), which may be removed at any time. Each
tool is where its user has it: Python's in a separate environment as with pipx, Node's below ~/.local/lib, Rust's in
~/.cargo. What cannot be fetched raises `Missing` with the reason.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from garrison.sandbox.proxy.allowed_hosts import REGISTRY_HOSTS
from real_agents import CODEX, CODEX_ACP
from world import HOME, World

PYTHON_TOOLS = {"uv": "uv==0.9.11", "poetry": "poetry==2.2.1", "tox": "tox==4.32.0", "nox": "nox==2025.11.12"}
NODE_TOOLS = {"pnpm": ("pnpm@9.15.9", "bin/pnpm.cjs"), "yarn": ("yarn@1.22.22", "bin/yarn.js"),
              "codex": (CODEX, "bin/codex.js"), "codex-acp": (CODEX_ACP, "dist/index.js")}
"""Tool → its package of npm, and its program in there."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAMS = {"python": "python3", "go": "go", "npm": "npm", "make": "make", "cmake": "cmake", "cc": "cc"}
"""Tool → its program among the machine's own."""
_PIP = str(HOME / ".local/share/pipx/venvs/uv/bin/pip")
RETRIES = {"npm_config_fetch_retries": "4", "npm_config_fetch_retry_factor": "2",
           "npm_config_fetch_retry_mintimeout": "2000"}
"""Settings of npm: 4 retries within half a minute instead of 2 within 70 s."""
PACKAGES = {"go": "golang-go", "cmake": "cmake", "make": "make", "cc": "gcc", "npm": "npm"}
"""Tool → its package of Debian."""


class Missing(Exception):
    """A tool, a project or a registry is missing; its text is the reason of a skipped test."""


@dataclass
class Kit:
    """Mounts and links of some tools in a world."""

    shown: dict[Path, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def cache() -> Path:
    """Return the folder of everything that was fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "garrison-tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _alone(name: str) -> Iterator[Path]:
    """Yield a path to make something at, locked against other processes."""
    path = cache() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


def kit(*tools: str) -> Kit:
    """Return the locations of these tools; fetch what is missing."""
    found = Kit()
    for tool in tools:
        if tool in PYTHON_TOOLS:
            found.shown[_python_tool(tool)] = place = HOME / ".local/share/pipx/venvs" / tool
            found.links[tool] = f"{place}/bin/{tool}"
        elif tool in NODE_TOOLS:
            found.shown[_node_tool(tool)] = place = HOME / ".local/lib/node_modules" / _name(NODE_TOOLS[tool][0])
            found.links[tool] = f"{place}/{NODE_TOOLS[tool][1]}"
        elif tool == "cargo":
            found.shown |= _cargo()
        elif shutil.which(PROGRAMS[tool], path=SYSTEM_PATH) is None:
            _install_package(tool)
    return found


def _python() -> str:
    python = shutil.which("python3", path=SYSTEM_PATH)
    if python is None or subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True,
                                        check=False).returncode:
        raise Missing("the machine's own python3 has no venv; to have it: apt-get install -y python3-venv")
    return python


def _python_tool(tool: str) -> Path:
    with _alone(f"pipx/{PYTHON_TOOLS[tool]}") as path:
        if not (path / "made").exists():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            place = HOME / ".local/share/pipx/venvs" / tool
            _make({path: place}, f"{_python()} -m venv {place} && {place}/bin/pip install -q {PYTHON_TOOLS[tool]}")
            (path / "made").touch()
    return path


def _node_tool(tool: str) -> Path:
    kit("npm")
    package = NODE_TOOLS[tool][0]
    with _alone(f"npm/{package}") as path:
        if not path.exists():
            prefix = path.with_name(f"{path.name}.new")
            shutil.rmtree(prefix, ignore_errors=True)
            prefix.mkdir()
            _make({prefix: HOME / "prefix"}, f"npm install --global --prefix {HOME}/prefix {package}")
            (prefix / "lib/node_modules" / _name(package)).rename(path)
            shutil.rmtree(prefix)
    return path


def _name(package: str) -> str:
    """Return the name of a package of npm without its version; the name may start with @."""
    return package.rpartition("@")[0]


def _make(made: dict[Path, Path], script: str, shown: dict[Path, Path] | None = None) -> None:
    with _bare_world(shown or {}, made) as world:
        done = world.run(HOME, "bash", "-euc", script, seconds=600)
    if done.returncode:
        raise Missing(f"cannot be fetched: {done.stderr.strip().splitlines()[-1:] or script}")


@contextmanager
def _bare_world(shown: dict[Path, Path], made: dict[Path, Path]) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="gf-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        world = World(Path(folder), shown, made, env=RETRIES)
        try:
            yield world
        finally:
            world.close()


def _cargo() -> dict[Path, Path]:
    program = shutil.which("cargo")
    if program is None:
        raise Missing("there is no cargo; to have it: apt-get install -y cargo")
    if program.startswith("/usr/"):
        return {}
    folder = Path(program).parent
    rustup = Path(os.environ.get("RUSTUP_HOME") or folder.parents[1] / ".rustup")
    return {folder: HOME / ".cargo/bin", **({rustup: HOME / ".rustup"} if rustup.is_dir() else {})}


def _install_package(tool: str) -> None:
    """Install a tool's package if `scripts/_setup.sh` allows that."""
    package, root = PACKAGES[tool], Path(__file__).resolve().parents[2]
    script = f'root={root}; . "$root/scripts/_setup.sh"; try_install {package}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode or shutil.which(PROGRAMS[tool], path=SYSTEM_PATH) is None:
        raise Missing(f"there is no {tool}; to have it: apt-get install -y {package}")


# ---------------------------------------------------------------------------------------------------------- registries


@dataclass(frozen=True)
class Registry:
    """Hosts from which a tool gets packages on this machine."""

    names: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the entries of `hosts` that these need in addition to `default`."""
        private = [name for name in self.names if not _is_public(name)]
        return [f"private {name}" for name in private] + [
            name for name in self.names if name not in private and name not in REGISTRY_HOSTS]


def _is_public(name: str) -> bool:
    return all(ip_address(str(found[4][0])).is_global for found in socket.getaddrinfo(name, 443))


@functools.cache
def registry(kind: str) -> Registry:
    """Return the registry of `python`, `node` or `yarn`; `Missing` if it cannot be reached."""
    tools = {"python": "uv", "node": "npm", "yarn": "yarn"}
    with _bare_world(kit(tools[kind]).shown, {}) as world:
        if kind == "python":
            words = [_PIP, "install", "--dry-run", "--no-deps", "--ignore-installed",
                     "--report", "-", "-q", "six"]
            done = world.run(HOME, *words, seconds=60)
            urls = ([each["download_info"]["url"] for each in json.loads(done.stdout)["install"]]
                    if done.returncode == 0 else [])
            script = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
            urls.append(world.run(HOME, _PIP.replace("bin/pip", "bin/python"), "-c", script).stdout.strip())
        elif kind == "yarn":
            program = str(HOME / ".local/lib/node_modules/yarn" / NODE_TOOLS["yarn"][1])
            done = world.run(HOME, program, "config", "get", "registry")
            urls = [done.stdout.strip()]
        else:
            done = world.run(HOME, "npm", "view", "ms", "dist.tarball", seconds=60)
            urls = [done.stdout.strip(), world.run(HOME, "npm", "config", "get", "registry").stdout.strip()]
    if done.returncode:
        raise Missing(f"the registry of {kind} packages cannot be reached")
    return Registry(tuple(sorted({name for url in urls if (name := urlsplit(url).hostname)})))


def open_registries(home: World, *kinds: str) -> None:
    """Let a home admit the registries of this machine, as in docs/network.md, if `default` is not enough."""
    if lines := [line for kind in kinds for line in registry(kind).lines()]:
        hosts = ", ".join(f'"{line}"' for line in ("default", *lines))
        home.configure(f"[sandbox]\nhosts = [{hosts}]\n")
        print(f'config.toml: hosts names {len(lines)} of this machine\'s registries beside "default"')


# ---------------------------------------------------------------------------------------------------- released projects


def released(source: str) -> Path:
    """Return the unpacked release `pypi:NAME==VERSION` or `npm:NAME@VERSION`."""
    kind, _, package = source.partition(":")
    shown = kit("uv").shown  # before the lock, which it takes itself
    with _alone(f"sources/{package}") as path:
        if not path.exists():
            new = path.with_name(f"{package}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            name = package.partition("==")[0]
            words = (f"{_PIP} download -q --no-deps --no-binary {name} -d . {package}" if kind == "pypi" else
                     f"npm pack --silent {package}")
            _make({new: HOME / "new"}, f"cd {HOME}/new && {words} && mkdir out && "
                                       "tar -xzf *.t*gz -C out --strip-components=1 --no-same-owner", shown)
            (new / "out").rename(path)
            shutil.rmtree(new)
    return path
