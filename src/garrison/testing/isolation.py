"""Run a command without a network and without keys: the real CLI against a scripted model, safely.

`python -m garrison.testing.isolation -- COMMAND…` enters a network namespace in which only the loopback device exists.
Pids, files and /proc are unchanged, so garrison judges processes there as it does outside; uid 0 inside is the user
outside. COMMAND must start the server itself, since the namespace is new. Where namespaces are not allowed, the kernel
refuses connections to well-known ports (Landlock, Linux 6.7 and later); without that, nothing is run: exit code 77 and
the reason. `--by root`, on request only, is for commands that start containers: an engine that runs as root refuses a
user namespace. It runs as the machine's root, and therefore with its own pids, /proc, /run and /dev/shm, none of which
leads to another network namespace. Podman gets a separate store, on top of the machine's images. `GARRISON_ISOLATION`
tells COMMAND which one is used: `namespace`, `landlock` or `root`.

The environment is built, never inherited: no key, token, proxy or user's setting can get in.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from garrison.system import landlock

SKIPPED = 77
"""Exit code when nothing was run because isolation is impossible."""
CLI_SETTINGS = {
    "ANTHROPIC_API_KEY": "sk-ant-fake-0000",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_MAX_RETRIES": "1", "API_TIMEOUT_MS": "5000",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
"""Settings that restrict the CLI to one URL, make it fail early and give it a worthless key."""
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TERM", "TZ")
_ENTER = {"namespace": ("unshare", "-rn", "--"),
          "root": ("unshare", "--net", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc", "--")}
"""Way of isolation → command that enters it."""
_STORE = "/var/lib/containers/storage"
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP: Python has no names for them


def environment(folder: Path, url: str = "", source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for the CLI and its children.

    HOME, CLAUDE_CONFIG_DIR and TMPDIR are in `folder` (created here), the model is at `url`, and of `source` (default:
    this process's environment) only PATH, locale, terminal and time zone remain.
    """
    source = os.environ if source is None else source
    kept = {name: source[name] for name in _KEPT_VARIABLES if name in source}
    places = {"HOME": folder / "home", "CLAUDE_CONFIG_DIR": folder / "claude", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    base = {"ANTHROPIC_BASE_URL": url} if url else {}
    return {**kept, **CLI_SETTINGS, **base, **{name: str(place) for name, place in places.items()}}


def namespace_refusal() -> str | None:
    """Return why a network namespace is not possible here; None if it is."""
    program = shutil.which("unshare")
    if program is None:
        return "the program unshare (util-linux) is missing"
    done = subprocess.run([program, "-rn", "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"network namespaces are not allowed here ({done.stderr.strip()})"


def root_refusal() -> str | None:
    """Return why root cannot have its own network, pids and mounts here; None if it can."""
    if os.geteuid():
        return "only root has a network namespace without a user namespace"
    done = subprocess.run([*_ENTER["root"], "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"namespaces are not allowed here ({done.stderr.strip()})"


def landlock_refusal() -> str | None:
    """Return why this kernel cannot guard connections; None if it can."""
    version = landlock.abi()
    if not version:
        return "Landlock is not enabled in this kernel"
    return None if version >= landlock.PORTS_ABI else f"Landlock {version} of this kernel does not support ports"


def refusal() -> str | None:
    """Return why isolation is not possible here, for a skipped test; None if it is."""
    reasons = [namespace_refusal(), landlock_refusal()]
    return None if None in reasons else "; ".join(str(reason) for reason in reasons)


def attempts() -> int:
    """Return how often something in this namespace tried to reach another host, by TCP or UDP, including name look-ups.

    Counts packets without a route, and datagrams to a closed loopback port (a local resolver's).
    """
    tables = _table(Path("/proc/net/snmp").read_text())
    sixth = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return (tables["Ip"]["OutNoRoutes"] + tables["Udp"]["NoPorts"]
            + int(sixth["Ip6OutNoRoutes"]) + int(sixth["Udp6NoPorts"]))


def raise_loopback() -> None:
    """Bring the loopback device up, without iproute2."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _GET_FLAGS, request))[1]
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def _table(text: str) -> dict[str, dict[str, int]]:
    """Parse /proc/net/snmp: for each protocol a line of names and a line of values."""
    lines = [line.split() for line in text.splitlines()]
    return {names[0].rstrip(":"): dict(zip(names[1:], map(int, values[1:]), strict=True))
            for names, values in zip(lines[::2], lines[1::2], strict=True)}


# ------------------------------------------------------------------------------------------------ the program


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return COMMAND's exit code, 77 with the reason if isolation is impossible, 2 for wrong usage."""
    given = _parse_arguments(arguments)
    if given.inside:
        return _run_isolated(given.inside, given.command)
    way, reason = _choose_isolation(given.by)
    if reason:
        print(reason, file=sys.stderr)
    if not way:
        return SKIPPED
    command = [sys.executable, "-P", "-m", "garrison.testing.isolation", "--inside", way, "--"]
    with _folder(given.folder) as folder:
        pairs = (text.partition("=") for text in given.env)
        passed = {name: value if sign else os.environ[name] for name, sign, value in pairs
                  if sign or name in os.environ}
        return _wait([*_ENTER.get(way, ()), *command, *given.command], environment(folder) | passed)


def _choose_isolation(requested: str | None) -> tuple[str, str]:
    """Return the way to isolate ('' for none) and a message about it ('' for none)."""
    tried = {"namespace": namespace_refusal, "landlock": landlock_refusal, "root": root_refusal}
    ways = [requested] if requested else ["namespace", "landlock"]
    reasons = {way: tried[way]() for way in ways}
    possible = [way for way in ways if reasons[way] is None]
    refusals = "; ".join(str(reasons[way]) for way in ways if reasons[way])
    if not possible:
        return "", f"not run, isolation is not possible here: {refusals}"
    return possible[0], f"isolated by {possible[0]} only: {refusals}" if refusals and possible[0] == "landlock" else ""


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m garrison.testing.isolation", description=(
        "Run COMMAND with no network but loopback and an environment without keys."))
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]",
                        help="pass this variable as well (repeatable)")
    parser.add_argument("--folder", type=Path, help="folder for HOME and the CLI's files (default: a temporary one)")
    parser.add_argument("--by", choices=("namespace", "landlock", "root"),
                        help="use only this (default: the first of namespace and landlock that works)")
    parser.add_argument("--inside", choices=("namespace", "landlock", "root"), help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args(arguments)


def _run_isolated(how: str, command: list[str]) -> int:
    """Replace this process by the command, isolated."""
    if how != "landlock":
        raise_loopback()
    if how == "root":
        os.environ["CONTAINERS_STORAGE_CONF"] = str(_separate_from_machine(Path(os.environ["TMPDIR"])))
    elif how == "landlock":
        # ports, not addresses: the ephemeral ones stay open for servers on port 0. Real services (443, 80, 22, 53) do
        # not use them; a UDP name look-up is not prevented, but cannot be followed by a connection
        landlock.restrict(connect=landlock.ephemeral_ports())
    os.environ["GARRISON_ISOLATION"] = how
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _separate_from_machine(folder: Path) -> Path:
    """Hide what outside processes share in memory; return the settings of a Podman that reads the machine's images and
    stores the rest in `folder`."""
    for path in ("/run", "/dev/shm"):  # hidden, not written
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    settings = folder / "storage.conf"
    settings.write_text(f'[storage]\ndriver = "overlay"\nrunroot = "/run/containers"\ngraphroot = "{folder}/podman"\n'
                        f'[storage.options]\nadditionalimagestores = ["{_STORE}"]\n')
    return settings


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="garrison-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _wait(command: list[str], env: dict[str, str]) -> int:
    """Run the command to its end, forwarding termination signals; return its exit code as a shell reports it."""
    child = subprocess.Popen(command, env=env)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
