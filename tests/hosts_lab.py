"""Three hosts on one machine: each has a network namespace, processes, a user with a home, and a real ssh server.

    home namespace ── veth ── box1 …          `HostsLab.garrison` runs a command of home in its namespace

Cuts are silent, as those of a real network are: a wrong address of the neighbour drops what is sent in one direction.
A host is `boot`ed from a folder that outlives it, so `power_off` and `boot` are a power loss and a reboot.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from support import wait_for, write_program

USER = "builder"
FILLER = "filler"
NOWHERE = "02:00:00:00:00:ff"
PROGRAMS = ("ip", "unshare", "mount", "/usr/sbin/sshd", "ssh", "ssh-keygen")

BOOT = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /home
mkdir /home/{user} /home/python /home/lab
{mount_home}
mount --bind {folder}/passwd /etc/passwd
cp {keys}/user.pub /home/keys
mount --bind {python} /home/python
mount --bind {lab} /home/lab
mount -t tmpfs -o mode=755 tmpfs /root
mkdir -p {python} {lab}
mount --bind /home/python {python}
mount --bind /home/lab {lab}
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -E {folder}/sshd.log -f {folder}/sshd_config
"""

SSHD = """\
Port 22
ListenAddress {address}
HostKey {keys}/host
AuthorizedKeysFile /home/keys
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
MaxSessions 50
MaxStartups 100:30:200
SetEnv PATH={path}
"""


def find_hindrance() -> str:
    """Return why this machine cannot have the laboratory, '' if it can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    probe = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "namespaces cannot be made here"


def run(*argv: object) -> str:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout


class LabHost:
    """A host in the hands of a test."""

    def __init__(self, lab: HostsLab, name: str, number: int) -> None:
        self.lab, self.name, self.number = lab, name, number
        self.space = f"{lab.token}-{name}"
        self.folder = lab.folder / name
        self.home = self.folder / "home"
        self.address, self.way_home = f"10.213.{number}.2", f"10.213.{number}.1"
        self.link, self.peer = f"v{lab.token}{number}a", f"v{lab.token}{number}b"
        self.uid = 21000 + number
        self.mount_home = f"mount --bind {self.home} /home/{USER}"
        self.clock_ahead = 0
        """Seconds by which its monotonic clock is ahead of this machine's, from its next boot on."""
        self.disk = lab.disk
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        self.home.mkdir(parents=True)
        if self.disk:
            run("mount", "-t", "tmpfs", "-o", f"size={self.disk},mode=755", "tmpfs", self.home)
        os.chown(self.home, self.uid, self.uid)
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", self.link, "netns", self.lab.space, "type", "veth", "peer", "name", self.peer, "netns",
            self.space)
        self.lab.ip("addr", "add", f"{self.way_home}/30", "dev", self.link)
        self.lab.ip("link", "set", self.link, "up")
        self.ip("addr", "add", f"{self.address}/30", "dev", self.peer)
        self.ip("link", "set", self.peer, "up")
        self.ip("link", "set", "lo", "up")

    def ip(self, *words: str) -> str:
        return run("ip", "-n", self.space, *words)

    def switch_on(self) -> None:
        if self._process is not None:
            return
        (self.folder / "passwd").write_text(
            f"root:x:0:0::/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
            f"{USER}:x:{self.uid}:{self.uid}::/home/{USER}:/bin/sh\n")
        (self.folder / "sshd_config").write_text(SSHD.format(
            address=self.address, keys=self.lab.keys, path=f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"))
        skew = ["--time", "--boottime", str(self.clock_ahead), "--monotonic", str(self.clock_ahead)]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", self.space, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
             *(skew if self.clock_ahead else []), "sh", "-c",
             BOOT.format(user=USER, folder=self.folder, mount_home=self.mount_home, keys=self.lab.keys,
                         lab=self.lab.folder, python=sys.base_prefix)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)

    def boot(self) -> None:
        """Switch it on, and wait until its ssh server answers."""
        self.switch_on()
        wait_for(f"{self.name} answers", lambda: self.lab.ssh(self.name, "true").returncode == 0)

    def pids(self) -> list[int]:
        """Return its processes, as this machine numbers them; none if it is off."""
        if self._process is None:
            return []
        outer = self._process.pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        if not children:
            return []
        space = _pid_space(children[0])
        found = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [int(name) for name in found if space and _pid_space(name) == space]

    # ---- faults

    def power_off(self) -> None:
        """Kill everything on it at once; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def fill_disk(self) -> None:
        """Leave no byte free in its home, which is a file system of its own."""
        assert self.disk, "its home is on the disk of this machine"
        with (self.home / FILLER).open("ab", buffering=0) as filler:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free_disk(self) -> None:
        (self.home / FILLER).unlink(missing_ok=True)

    def signal(self, signum: int) -> None:
        """Send a signal to all its processes: SIGSTOP makes it a machine that swaps or sleeps."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    def cut(self, *, sends: bool = True, hears: bool = True) -> None:
        """Drop what it sends, what it would hear, or both; without a word."""
        if sends:
            self.ip("neigh", "replace", self.way_home, "lladdr", NOWHERE, "dev", self.peer, "nud", "permanent")
        if hears:
            self.lab.ip("neigh", "replace", self.address, "lladdr", NOWHERE, "dev", self.link, "nud", "permanent")

    def heal(self) -> None:
        for space, address, link in ((self.space, self.way_home, self.peer),
                                     (self.lab.space, self.address, self.link)):
            subprocess.run(["ip", "-n", space, "neigh", "del", address, "dev", link], capture_output=True, check=False)

    def copy_installation(self, other: LabHost) -> None:
        """Take over another host's environment of garrison, as its own installation would be: that takes a minute."""
        (source,) = other.home.glob(".local/share/garrison-hosts/*/*/env-*")
        base = source.parent.with_name(self.name)
        old, new = (f"/home/{USER}/{path.relative_to(other.home)}" for path in (source.parent, base))
        target = self.home / base.relative_to(other.home) / source.name
        target.parent.mkdir(parents=True)
        shutil.copytree(source, target, symlinks=True)
        for path in (target / "bin").iterdir():
            if not path.is_symlink() and old.encode() in (data := path.read_bytes()):
                path.write_bytes(data.replace(old.encode(), new.encode()))
        run("chown", "-hR", f"{self.uid}:{self.uid}", self.home / ".local")

    def remove(self) -> None:
        self.power_off()
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True, check=False)
        if self.disk:
            subprocess.run(["umount", "--lazy", self.home], capture_output=True, check=False)


class HostsLab:
    """The laboratory; use it as a context manager."""

    def __init__(self, folder: Path, names: Sequence[str] = ("box1", "box2", "box3"), disk: str = "") -> None:
        """`disk` gives each host's home a file system of its own, of that size."""
        self.disk = disk
        self.folder, self.token = folder, uuid.uuid4().hex[:6]
        self.space, self.keys, self.home = f"{self.token}-home", folder / "keys", folder / "garrison"
        self.hosts = {name: LabHost(self, name, 1 + number + 10 * (os.getpid() % 20)) for number, name in
                      enumerate(names)}
        self.environ: dict[str, str] = {}
        self.program = str(Path(sys.executable).with_name("garrison"))

    def __enter__(self) -> HostsLab:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _make(self) -> None:
        self.keys.mkdir(parents=True)
        for name in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / name)
        run("ip", "netns", "add", self.space)
        self.ip("link", "set", "lo", "up")
        known = (self.keys / "host.pub").read_text().split()[:2]
        lines, trusted = [], []
        for host in self.hosts.values():
            lines.append(f"Host {host.name}\n  HostName {host.address}\n  User {USER}\n"
                         f"  IdentityFile {self.keys}/user\n  IdentitiesOnly yes\n"
                         f"  UserKnownHostsFile {self.keys}/known\n")
            trusted.append(f"{host.address} {' '.join(known)}\n")
        (self.keys / "config").write_text("\n".join(lines))
        (self.keys / "known").write_text("".join(trusted))
        programs = self.folder / "bin"
        programs.mkdir()
        # ssh reads the configuration of the system's user, whatever HOME is.
        write_program(programs / "ssh", f"#!/bin/sh\nexec {shutil.which('ssh')} -F {self.keys}/config \"$@\"\n")
        venv = Path(sys.executable).parent
        self.environ = {"PATH": f"{programs}:{venv}:{os.environ['PATH']}", "HOME": str(self.folder),
                        "GARRISON_HOME": str(self.home), "GARRISON_TREES": str(self.folder / "trees"),
                        "LANG": "C.UTF-8", "USER": "root"}
        for host in self.hosts.values():
            host.make()

    def boot(self) -> None:
        for host in self.hosts.values():
            host.boot()

    def ip(self, *words: str) -> str:
        return run("ip", "-n", self.space, *words)

    # ---- home

    def command(self, *argv: str) -> list[str]:
        """Return a command that runs in the network of home."""
        return ["ip", "netns", "exec", self.space, *argv]

    def execute(self, *argv: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*argv), env=self.environ, text=True, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=timeout, check=False)

    def garrison(self, *arguments: str, timeout: float = 1200.0) -> subprocess.CompletedProcess[str]:
        """Run a command of garrison at home."""
        return self.execute(self.program, *arguments, timeout=timeout)

    def ssh(self, name: str, script: str) -> subprocess.CompletedProcess[str]:
        return self.execute("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, script, timeout=60.0)

    def close(self) -> None:
        """Remove everything that it made."""
        from garrison.hosts.keeper import is_running, read_state
        from garrison.system import processes

        if self.home.is_dir() and is_running(self.home):
            state = read_state(self.home)
            processes.send(state.pid, state.ticks, signal.SIGTERM)
            wait_for("the keeper's end", lambda: not is_running(self.home), 15)
        for host in self.hosts.values():
            host.remove()
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True, check=False)


def _pid_space(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""

