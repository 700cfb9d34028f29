"""Launcher: start a container, hold its life line, and clean it up. Started as a file, without site packages.

An engine's client is not the parent of its container, so the client's death does not end the container. Hence the life
line: this process has one end, the first process inside reads from the other, and at end of file it kills everything
inside. The kernel closes this end however this process dies, and kills the client with it.

    python -I -S container_launcher.py HIDDEN FOLDER ENGINE [OPTION]… run OPTION… IMAGE COMMAND…

HIDDEN are names of variables, separated by `=`; all other variables are visible inside. In FOLDER it makes the line as
a named pipe, '' for an engine that passes descriptors. It exits as the command did. It ignores its own TERM: the
processes inside get one, and then what this process started ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

LINE = 3
"""Descriptor of the life line in the container."""
_SUBREAPER = 36
_WAIT, _REMOVAL = 5.0, 20.0
"""Seconds for the engine's remaining processes to exit by themselves, and for the removal of a container."""
_OWN_FAILURES = (125, 126, 127, 137, 255)
"""Exit codes of an engine that may leave its container behind."""


def main(words: list[str]) -> int:
    """Run the container; return its exit code, or die of the client's signal."""
    hidden, folder, *words = words
    variables = [word for name in os.environ.keys() - set(hidden.split("=")) for word in ("--env", name)]
    run = words.index("run")
    name = f"garrison-{os.getpid()}-{time.time_ns():x}"
    # Read by `container.list_left`: the owner of the container.
    owner = f"{os.getpid()} {_ticks()} {_boot()}"
    ours, line = socket.socketpair()
    pipe, shown = "", []
    if folder:
        pipe = f"{folder}/{name}"
        os.mkfifo(pipe, 0o600)
        os.open(pipe, os.O_RDWR)  # closed only by the end of this process
        # Nothing inside can keep the other end open: it has no capabilities, and cannot change the mode there.
        os.chmod(pipe, 0o400)  # noqa: PTH101
        shown = ["--mount", f"type=bind,src={pipe},dst=/run/garrison-line,readonly"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not ignored, which the client and the container would inherit
    terminal = ["--tty"] if os.isatty(0) else []  # the engine creates another terminal inside, with the same size
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(line.fileno(), LINE)
            os.set_inheritable(LINE, True)
            os.execvp("setpriv", ["setpriv", "--pdeathsig", "KILL", "--", *words[:run + 1], *terminal, *variables,
                                  *shown, "--name", name, "--label", f"garrison.owner={owner}", *words[run + 1:]])
        except OSError as error:
            os.write(2, f"setpriv: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    line.close()
    _adopt()
    code = _wait_for(pid)
    ours.close()
    if pipe:
        os.unlink(pipe)  # noqa: PTH108
    _wait_for_rest()
    if code < 0 or code in _OWN_FAILURES:
        _remove([*words[:run], "rm", "-f", *(("-t", "0") if "podman" in words[0] else ()), name])
    if code < 0:
        if -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code if code >= 0 else 128 - code


def _wait_for(client: int) -> int:
    """Return the client's exit code, or the negative signal that ended it or the monitor of its container.

    A client does not notice that the monitor was killed, and would wait for the container forever.
    """
    while True:
        pid, status = os.waitpid(-1, 0)
        code = os.waitstatus_to_exitcode(status)
        if pid == client:
            return code
        if code < 0:
            os.kill(client, signal.SIGKILL)
            return code


def _adopt() -> None:
    """Become the parent of the client's leftovers: no other process should get the engine's processes as children."""
    import ctypes  # after the client's start, which takes longer

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _wait_for_rest() -> None:
    end = time.monotonic() + _WAIT
    while time.monotonic() < end:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            return


def _remove(words: list[str]) -> None:
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        try:
            os.execvp(words[0], words)
        finally:
            os._exit(127)
    end = time.monotonic() + _REMOVAL
    while time.monotonic() < end and os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.01)
    _wait_for_rest()


def _ticks() -> str:
    with open("/proc/self/stat", encoding="latin-1") as file:  # noqa: PTH123  # pathlib takes longer than the rest
        return file.read().rpartition(")")[2].split()[19]


def _boot() -> str:
    if boot := os.environ.get("GARRISON_BOOT_ID"):
        return boot
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        return file.read().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
