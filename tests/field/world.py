"""A user's world: a HOME of its own at /home/sam, garrison installed there, every default, the machine untouched.

A world has its own mount and pid namespaces, and if asked a network of its own in which only loopback and the doors
exist. The folder that is HOME inside is `World.home` outside, so a test reads there what a command left. Whatever the
world started ends with it.
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
"""Number of an ordinary user, for worlds in which the tests' own is not used."""
ROOT = Path(__file__).resolve().parents[2]
KEPT = ("LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
        "PIP_CERT", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO")
"""What a user's shell may have that has the machine's certificates known."""
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
    """Folder outside → place inside, which the user may only read."""
    made: Mapping[Path, Path] = field(default_factory=dict)
    """The same, and they may write there."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name in ~/.local/bin → what it leads to."""
    doors: Sequence[Callable[[socket.socket], Any]] = ()
    """With any: a network of its own, and for each a listening socket in there, given to what serves it outside."""
    env: dict[str, str] = field(default_factory=dict)
    uid: int = 0
    """The user's number, if that is not the one of who runs the test; only root can choose it."""
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
        """Give the user what the test has put into their HOME."""
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
        """End the world; return the processes of garrison that were still there after a grace of ten seconds."""
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
        """Run a command to its end, as typed in that folder."""
        done = subprocess.run(self.enter(folder, words), env={**self.env, **env}, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL, timeout=seconds, errors="replace")
        assert not check or done.returncode == 0, f"$ {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done

    def shell(self, folder: Path | str, script: str) -> str:
        """Run a shell script that has to succeed; return what it prints."""
        return self.run(folder, "bash", "-euc", script, check=True).stdout.strip()

    def begin(self, folder: Path | str, *words: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a command; what it prints is in `log`."""
        with log.open("ab") as output:
            return subprocess.Popen(self.enter(folder, words), env={**self.env, **env}, stdin=subprocess.DEVNULL,
                                    stdout=output, stderr=output, start_new_session=True)

    def outside(self, path: Path | str) -> Path:
        """Return where a path of the user's HOME is outside."""
        return self.home / Path(path).relative_to(HOME)

    # ------------------------------------------------------------------------------------------------ processes

    def processes(self) -> dict[int, str]:
        """Return pid inside → command line of the living processes, without the first one and those that look."""
        script = ("for p in /proc/[0-9]*; do printf '%s %s\\n' \"${p#/proc/}\" \"$(tr '\\0\\n' '  ' < $p/cmdline)\"; "
                  "done 2>/dev/null; true")
        found = {}
        for line in self.run("/", "bash", "-c", script).stdout.splitlines():
            pid, _, words = line.partition(" ")
            if words.strip() and int(pid) != 1 and "/proc/[0-9]*" not in words:
                found[int(pid)] = words.strip()
        return found

    def garrisons(self) -> list[str]:
        """Return the command lines of the living processes of garrison."""
        return [line for line in self.processes().values() if "garrison" in line]

    def kill(self, *pids: int) -> None:
        """Kill processes by their pid inside, as `kill -9` does."""
        self.run("/", "bash", "-c", f"kill -9 {' '.join(map(str, pids))}")

    # ------------------------------------------------------------------------------------------------ garrison's files

    @property
    def state(self) -> Path:
        """The default home, as it is outside."""
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
        """Return the ends of what garrison's processes, set-ups, agents and gates wrote, for a failure's message."""
        found = [*self.state.glob("runs/*/layers/*.log"), *self.state.glob("runs/*/nodes/*/*/*.log"),
                 *self.state.glob("queues/*/logs/*.log"), *self.state.glob("merge-queue*/**/*.log")]
        return "\n".join(f"--- {path.relative_to(self.state)}\n{path.read_text(errors='replace')[-1500:]}"
                         for path in sorted(found)[-14:])


Worlds = Callable[..., World]
COLUMNS = ("user", "landlock", "user-landlock", "none")
"""An ordinary user, and other sandboxes than bubblewrap; `default` is neither."""


def in_column(column: str, worlds: Worlds, *tools: str, **options: object) -> World:
    """Make a world of a column; another sandbox than bubblewrap is chosen by word, in config.toml."""
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
    """Return what serves a listening socket by a port of the machine's loopback device."""
    def serve(listening: socket.socket) -> None:
        _accept(listening, lambda client: (socket.create_connection(("127.0.0.1", port)), b""))
    return serve


class RegistryDoor:
    """A team's HTTPS proxy that lets out to the package registries alone; `refused` are the other hosts asked for."""

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
