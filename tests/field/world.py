"""A user's world: a separate HOME at /home/sam with garrison installed, all defaults, the machine unchanged.

A world has its own mount and pid namespaces, and on request a network with only loopback and the doors. Its HOME is
`World.home` outside, where a test reads what a command left. All processes of a world end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from garrison.sandbox.probe import machine
from support import load

HOME = Path("/home/sam")
USER = 1001
"""Uid of an ordinary user, for worlds without the tests' own."""
ROOT = Path(__file__).resolve().parents[2]
KEPT = ("LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
        "PIP_CERT", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO")
"""Variables of a user's shell for locale and certificates."""
PATH = f"{HOME}/.local/bin:{HOME}/.cargo/bin:/usr/local/bin:/usr/bin:/bin"
GITCONFIG = "[user]\n\tname = Sam Doe\n\temail = sam@example.org\n[init]\n\tdefaultBranch = main\n"


def refusal() -> str:
    """Return why no world can be made here, '' if one can."""
    for program in ("unshare", "nsenter", "bwrap", "git"):
        if shutil.which(program) is None:
            return f"the program {program} is missing"
    done = subprocess.run([*_unshare(net=True), "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no namespaces can be made here: {done.stderr.strip()}"


def _unshare(*, net: bool) -> list[str]:
    own = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *own, "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", *(["--net"] if net else [])]


@dataclass
class World:
    """A user, the folder that is their HOME, and the processes that they started."""

    scratch: Path
    shown: Mapping[Path, Path] = field(default_factory=dict)
    """Folder outside → read-only place inside."""
    made: Mapping[Path, Path] = field(default_factory=dict)
    """Folder outside → writable place inside."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name in ~/.local/bin → target."""
    doors: Sequence[Callable[[socket.socket], Any]] = ()
    """If any, the world has a separate network, and each serves a listening socket in it from outside."""
    env: dict[str, str] = field(default_factory=dict)
    uid: int = 0
    """Uid of the user if it differs from the test's; only root can choose it."""
    ports: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.home = self.scratch / "sam"
        for folder in ("", ".local/bin"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        (self.home / ".gitconfig").write_text(GITCONFIG)
        for name, target in self.links.items():
            (self.home / ".local/bin" / name).symlink_to(target)
        self.env = {"HOME": str(HOME), "USER": "sam", "LOGNAME": "sam", "PATH": PATH, "TERM": "xterm",
                    **{name: os.environ[name] for name in KEPT if name in os.environ}, **self.env}
        if self.uid:
            self.scratch.chmod(0o755)
            users = {"root": (0, "/root"), "sam": (self.uid, HOME)}
            (self.scratch / "passwd").write_text("".join(f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n"
                                                         for name, (uid, home) in users.items()))
            self.own()
        self._begin()

    def own(self) -> None:
        """Give the user the files that the test has put into their HOME."""
        if self.uid:
            subprocess.run(["chown", "-hR", f"{self.uid}:{self.uid}", str(self.home)], check=True)

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        plan = {"home": str(HOME), "scratch": str(self.home), "ports": len(self.doors),
                "passwd": str(self.scratch / "passwd") if self.uid else "",
                "kept": [*dict.fromkeys((sys.base_prefix, str(ROOT), sys.prefix))],
                "shown": [[str(source), str(target), which is self.made] for which in (self.shown, self.made)
                          for source, target in which.items()]}
        words = [*_unshare(net=bool(self.doors)), sys.executable, "-P", str(Path(__file__).with_name("holder.py")),
                 json.dumps(plan)]
        self._holder = subprocess.Popen(words, stdin=theirs, start_new_session=True)
        theirs.close()
        self._line = ours
        ready, sockets, _, _ = socket.recv_fds(ours, 16, len(self.doors) or 1)
        assert ready == b"ready", "the world did not begin"
        for serve, number in zip(self.doors, sockets, strict=True):
            listening = socket.socket(fileno=number)
            self.ports.append(listening.getsockname()[1])
            serve(listening)
        [self._pid] = map(int, Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split())

    def close(self) -> list[str]:
        """End the world; return the garrison processes that were still alive after ten seconds."""
        end = time.monotonic() + 10
        while (left := self.garrisons()) and time.monotonic() < end:  # a proxy ends a second after its last user
            time.sleep(0.1)
        with contextlib.suppress(OSError):
            self._line.close()
        self._holder.wait(30)
        return left

    # ------------------------------------------------------------------------------------------------ commands

    def enter(self, folder: Path | str, words: Sequence[str]) -> list[str]:
        """Return the command that runs words in a folder of the world."""
        user = [] if os.getuid() == 0 else ["--user", "--preserve-credentials"]
        other = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"] if self.uid else []
        return ["nsenter", "--target", str(self._pid), *user, "--mount", "--pid", *(["--net"] if self.doors else []),
                f"--wdns={folder}", "--", *other, *words]

    def run(self, folder: Path | str, *words: str, check: bool = False, seconds: float = 120,
            **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder to its end."""
        done = subprocess.run(self.enter(folder, words), env={**self.env, **env}, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL, timeout=seconds, errors="replace")
        assert not check or done.returncode == 0, f"$ {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done

    def shell(self, folder: Path | str, script: str) -> str:
        """Run a shell script that has to succeed; return what it prints."""
        return self.run(folder, "bash", "-euc", script, check=True).stdout.strip()

    def begin(self, folder: Path | str, *words: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a command with its output in `log`."""
        with log.open("ab") as output:
            return subprocess.Popen(self.enter(folder, words), env={**self.env, **env}, stdin=subprocess.DEVNULL,
                                    stdout=output, stderr=output, start_new_session=True)

    def outside(self, path: Path | str) -> Path:
        """Return the path outside of a path in the user's HOME."""
        return self.home / Path(path).relative_to(HOME)

    # ------------------------------------------------------------------------------------------------ processes

    def processes(self) -> dict[int, str]:
        """Return pid inside → command line of the living processes, except the first one and those of this query."""
        script = ("for p in /proc/[0-9]*; do printf '%s %s\\n' \"${p#/proc/}\" \"$(tr '\\0\\n' '  ' < $p/cmdline)\"; "
                  "done 2>/dev/null; true")
        found = {}
        for line in self.run("/", "bash", "-c", script).stdout.splitlines():
            pid, _, words = line.partition(" ")
            if words.strip() and int(pid) != 1 and "/proc/[0-9]*" not in words:
                found[int(pid)] = words.strip()
        return found

    def garrisons(self) -> list[str]:
        """Return the command lines of the living garrison processes."""
        return [line for line in self.processes().values() if "garrison" in line]

    def kill(self, *pids: int) -> None:
        """Kill processes by their pid inside, as `kill -9` does."""
        self.run("/", "bash", "-c", f"kill -9 {' '.join(map(str, pids))}")

    # ------------------------------------------------------------------------------------------------ garrison's files

    @property
    def state(self) -> Path:
        """The default home, outside."""
        return self.home / ".local/state/garrison"

    def configure(self, text: str) -> None:
        """Append to the home's config.toml."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.state / "config.toml").open("a") as file:
            file.write(text)
        self.own()

    def identities(self, role: str) -> list[dict[str, Any]]:
        """Return the identities of a role, the newest run last."""
        paths = sorted((self.state / "identities").glob(f"{role}-*.json"), key=lambda path: path.stat().st_mtime)
        return [load(path) for path in paths]

    def logs(self) -> str:
        """Return the ends of the logs of processes, set-ups, agents and gates, for a failure's message."""
        found = [*self.state.glob("runs/*/layers/*.log"), *self.state.glob("runs/*/nodes/*/*/*.log"),
                 *self.state.glob("queues/*/logs/*.log"), *self.state.glob("merge-queue*/**/*.log")]
        return "\n".join(f"--- {path.relative_to(self.state)}\n{path.read_text(errors='replace')[-1500:]}"
                         for path in sorted(found)[-14:])


Worlds = Callable[..., World]
COLUMNS = ("user", "landlock", "user-landlock", "none")
"""Columns with an ordinary user or another sandbox than bubblewrap, unlike `default`."""


def in_column(column: str, worlds: Worlds, *tools: str, **options: object) -> World:
    """Make a world of a column; another sandbox than bubblewrap is set in config.toml."""
    user, mode = "user" in column, column.removeprefix("user").strip("-")
    if user and os.getuid():
        pytest.skip("another user can be chosen by root alone")
    if mode == "landlock" and not machine().landlock:
        pytest.skip("the kernel has no Landlock")
    home = worlds(*tools, uid=USER if user else 0, **options)
    assert not user or home.shell(HOME, "id -u") == str(USER)
    if mode not in ("", "default"):
        home.configure(f'[sandbox]\nmode = "{mode}"\n')
    return home


# ------------------------------------------------------------------------------------------------------------ doors


def door_to(port: int) -> Callable[[socket.socket], None]:
    """Return a server of a listening socket that forwards to a port of the machine's loopback device."""
    def serve(listening: socket.socket) -> None:
        _accept(listening, lambda client: (socket.create_connection(("127.0.0.1", port)), b""))
    return serve


class RegistryDoor:
    """A team's HTTPS proxy to the package registries; `refused` has the other requested hosts."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.refused, self.passed = frozenset(names), list[str](), list[str]()

    def __call__(self, listening: socket.socket) -> None:
        """Serve a listening socket."""
        _accept(listening, self._dial)

    def _dial(self, client: socket.socket) -> tuple[socket.socket | None, bytes]:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := client.recv(4096)):
                return None, b""
            head += more
        found = re.match(rb"CONNECT ([^ :]+):443 ", head)
        name = found[1].decode() if found else head.partition(b"\r\n")[0].decode(errors="replace")
        if name not in self.names:
            self.refused.append(name)
            return None, b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
        self.passed.append(name)
        return socket.create_connection((name, 443), timeout=30), b"HTTP/1.1 200 OK\r\n\r\n"


def _accept(listening: socket.socket, dial: Callable[[socket.socket], tuple[socket.socket | None, bytes]]) -> None:
    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            server, answer = dial(client)
            if answer:
                client.sendall(answer)
            if server is not None:
                with server:
                    server.settimeout(None)
                    back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                    back.start()
                    _pump(client, server)
                    back.join()

    def loop() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
