"""Runs a command where no network is, in an environment without keys: the real CLI against a scripted model, safely.

`python -m garrison.testing.isolation -- COMMAND…` enters a network namespace in which only the loopback device exists.
Pids, files and /proc stay the same, so garrison judges lives in there as outside; uid 0 inside is the user outside.
The server must be started by COMMAND, for the namespace is new. Where namespaces are not allowed, connections to
well-known ports are refused by the kernel (`landlock`); where that is missing too, nothing is run: exit code 77 and the
reason. `GARRISON_ISOLATION` tells COMMAND which it is: `namespace` or `landlock`.

Rule: the environment is built, never inherited. A key, a token, a proxy or a user's settings cannot get in.
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

from garrison.testing import landlock

SKIPPED = 77
"""Exit code: nothing was run, because nothing could be isolated."""
SWITCHES = {
    "ANTHROPIC_API_KEY": "sk-ant-fake-0000",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_MAX_RETRIES": "1", "API_TIMEOUT_MS": "5000",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
"""What keeps the CLI to its one URL, gives up early and has a key that opens nothing."""
_KEPT = ("PATH", "LANG", "LC_ALL", "TERM", "TZ")
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


def environment(folder: Path, url: str = "", source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for the CLI and all around it: HOME, CLAUDE_CONFIG_DIR and TMPDIR lie in `folder` (made here),
    the model is at `url`, and of `source` (default: ours) only PATH, locale, terminal and time zone remain."""
    source = os.environ if source is None else source
    kept = {name: source[name] for name in _KEPT if name in source}
    places = {"HOME": folder / "home", "CLAUDE_CONFIG_DIR": folder / "claude", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    base = {"ANTHROPIC_BASE_URL": url} if url else {}
    return {**kept, **SWITCHES, **base, **{name: str(place) for name, place in places.items()}}


def namespace_refusal() -> str | None:
    """Why no network namespace can be had here; None if it can."""
    program = shutil.which("unshare")
    if program is None:
        return "the program unshare (util-linux) is missing"
    done = subprocess.run([program, "-rn", "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"network namespaces are not allowed here ({done.stderr.strip()})"


def refusal() -> str | None:
    """Why nothing can be isolated here; None if something can. The words for a skipped test."""
    reasons = [namespace_refusal(), landlock.why_not()]
    return None if None in reasons else "; ".join(str(reason) for reason in reasons)


def attempts() -> int:
    """How often something in this namespace tried to reach elsewhere since it began, by TCP or UDP, name look-ups
    included: what had no route, and datagrams to a loopback port where nobody listens (a local resolver's)."""
    tables = _table(Path("/proc/net/snmp").read_text())
    sixth = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return (tables["Ip"]["OutNoRoutes"] + tables["Udp"]["NoPorts"]
            + int(sixth["Ip6OutNoRoutes"]) + int(sixth["Udp6NoPorts"]))


def raise_loopback() -> None:
    """Bring the loopback device up, without iproute2."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def _table(text: str) -> dict[str, dict[str, int]]:
    """/proc/net/snmp: for each protocol a line of names and a line of values."""
    lines = [line.split() for line in text.splitlines()]
    return {names[0].rstrip(":"): dict(zip(names[1:], map(int, values[1:]), strict=True))
            for names, values in zip(lines[::2], lines[1::2], strict=True)}


# ------------------------------------------------------------------------------------------------ the program


def main(arguments: list[str] | None = None) -> int:
    """The program: COMMAND's exit code, 77 with the reason when nothing can be isolated, 2 for bad usage."""
    given = _parsed(arguments)
    if given.inside:
        return _inside(given.inside, given.command)
    way, reason = _way(given.by)
    if reason:
        print(reason, file=sys.stderr)
    if not way:
        return SKIPPED
    enter = ["unshare", "-rn", "--"] if way == "namespace" else []
    again = [sys.executable, "-P", "-m", "garrison.testing.isolation", "--inside", way, "--"]
    with _folder(given.folder) as folder:
        return _wait([*enter, *again, *given.command], environment(folder) | _passed(given.env))


def _way(wanted: str | None) -> tuple[str, str]:
    """How to isolate (empty: not at all), and what there is to say about it."""
    reasons = {"namespace": namespace_refusal(), "landlock": landlock.why_not()}
    ways = [wanted] if wanted else list(reasons)
    possible = [way for way in ways if reasons[way] is None]
    told = "; ".join(str(reasons[way]) for way in ways if reasons[way])
    if not possible:
        return "", f"not run, nothing can be isolated here: {told}"
    return possible[0], f"isolated by {possible[0]} only: {told}" if told and possible[0] == "landlock" else ""


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m garrison.testing.isolation", description=(
        "Runs COMMAND with no network but loopback and an environment without keys."))
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]",
                        help="let this variable in as well (again for more)")
    parser.add_argument("--folder", type=Path, help="where HOME and the CLI's files lie; default: a temporary place")
    parser.add_argument("--by", choices=("namespace", "landlock"), help="this way or not at all; default: the first")
    parser.add_argument("--inside", choices=("namespace", "landlock"), help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args(arguments)


def _inside(how: str, command: list[str]) -> int:
    """Become the command, isolated."""
    if how == "namespace":
        raise_loopback()
    else:
        landlock.guard()
    os.environ["GARRISON_ISOLATION"] = how
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="garrison-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _passed(wanted: list[str]) -> dict[str, str]:
    pairs = (one.partition("=") for one in wanted)
    return {name: value if sign else os.environ[name] for name, sign, value in pairs if sign or name in os.environ}


def _wait(command: list[str], env: dict[str, str]) -> int:
    """Run to the end, passing on the signals that ask us to end; the exit code as a shell tells it."""
    child = subprocess.Popen(command, env=env)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
