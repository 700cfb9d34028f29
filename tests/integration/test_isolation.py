"""Isolation seen from inside: what the environment contains, that only loopback is reachable, and what is printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from garrison.testing import isolation
from support import DEADLINE, PROGRAM, Node, Place, wait_for

ISOLATED = [sys.executable, "-P", "-m", "garrison.testing.isolation"]
LOOK = """
import json, os, socket, threading
from garrison.testing import isolation

def tried(family, kind, address, port):
    with socket.socket(family, kind) as any:
        try:
            any.connect((address, port))
            any.send(b"x")
        except OSError as error:
            return error.strerror

served = socket.create_server(("127.0.0.1", 0))
told = {"env": dict(os.environ), "before": isolation.attempts(), "uid": os.getuid(), "pid": os.getpid(),
        "loopback": tried(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", served.getsockname()[1]),
        "https": tried(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", 443)}
told["quiet"] = isolation.attempts()
if os.environ["GARRISON_ISOLATION"] == "namespace":
    told["tcp"] = tried(socket.AF_INET, socket.SOCK_STREAM, "192.0.2.1", 443)
    told["one"] = isolation.attempts()
    told["udp"] = tried(socket.AF_INET, socket.SOCK_DGRAM, "192.0.2.1", 53)
    told["six"] = tried(socket.AF_INET6, socket.SOCK_STREAM, "2001:db8::1", 443)
    told["three"] = isolation.attempts()
print(json.dumps(told))
"""
needs_namespaces = pytest.mark.skipif(isolation.namespace_refusal() is not None,
                                      reason=str(isolation.namespace_refusal()))
needs_landlock = pytest.mark.skipif(isolation.landlock_refusal() is not None, reason=str(isolation.landlock_refusal()))


def isolated(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ISOLATED, *map(str, arguments)], env={**os.environ, **env}, capture_output=True, text=True,
                          check=False, timeout=DEADLINE)


@needs_namespaces
def test_in_a_namespace_only_loopback_is_there_and_every_try_is_counted(tmp_path: Path) -> None:
    done = isolated("--folder", tmp_path, "--env", "KNOWN=yes", "--env", "NAMED", "--", sys.executable, "-c", LOOK,
                    ANTHROPIC_API_KEY="real", SECRET="s", HTTPS_PROXY="p", CLAUDECODE="1", NAMED="n", HOME="/nowhere")
    told = json.loads(done.stdout)
    assert (told["loopback"], told["https"]) == (None, "Connection refused")
    assert {told["tcp"], told["udp"], told["six"]} == {"Network is unreachable"}
    assert (told["before"], told["quiet"], told["one"], told["three"]) == (0, 0, 1, 3)
    assert told["uid"] == 0
    env = told["env"]
    assert env["ANTHROPIC_API_KEY"] == isolation.CLI_SETTINGS["ANTHROPIC_API_KEY"]
    assert {name: env[name] for name in ("HOME", "CLAUDE_CONFIG_DIR", "TMPDIR", "KNOWN", "NAMED")} == {
        "HOME": f"{tmp_path}/home", "CLAUDE_CONFIG_DIR": f"{tmp_path}/claude", "TMPDIR": f"{tmp_path}/tmp",
        "KNOWN": "yes", "NAMED": "n"}
    allowed = {*isolation.CLI_SETTINGS, "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "HOME", "CLAUDE_CONFIG_DIR",
               "TMPDIR", "KNOWN", "NAMED", "GARRISON_ISOLATION"}
    assert set(env) <= allowed


@needs_landlock
def test_landlock_leaves_only_the_ephemeral_ports() -> None:
    done = isolated("--by", "landlock", "--", sys.executable, "-c", LOOK)
    told = json.loads(done.stdout)
    assert (told["loopback"], told["https"]) == (None, "Permission denied")
    assert told["env"]["GARRISON_ISOLATION"] == "landlock"


def test_without_isolation_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(isolation, "landlock_refusal", lambda: "no Landlock here")
    told = "the program unshare (util-linux) is missing; no Landlock here"
    assert isolation.refusal() == told
    assert isolation.main(["--", "touch", str(tmp_path / "ran")]) == isolation.SKIPPED
    assert capsys.readouterr().err == f"not run, isolation is not possible here: {told}\n"
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(isolation.refusal() is not None, reason=str(isolation.refusal()))
def test_exit_codes_signals_and_what_is_left(tmp_path: Path) -> None:
    assert isolated("--", "sh", "-c", "exit 5").returncode == 5
    gone = isolated("--", "no-such-program")
    assert (gone.returncode, gone.stderr.splitlines()[-1]) == (127, "no-such-program: No such file or directory")
    ready = tmp_path / "ready"
    with subprocess.Popen([*ISOLATED, "--", "sh", "-c", f"echo $TMPDIR > {ready}.new; mv {ready}.new {ready};"
                                                        " exec sleep 600"]) as child:
        wait_for("the command runs", ready.exists)
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE) == 128 + signal.SIGTERM
    assert not Path(ready.read_text().strip()).parent.exists()


@needs_namespaces
def test_garrison_itself_runs_in_there(places: Callable[..., Place]) -> None:
    """Life locks, /proc, git's idea of who owns a tree, and tmux where it is installed: all as outside."""
    place = places(terminal="tmux" if isolation.shutil.which("tmux") else "process")
    graph = place.graph(Node("alpha"))
    passed = [word for name, value in place.env.items() if name not in isolation.CLI_SETTINGS
              for word in ("--env", f"{name}={value}")]
    done = subprocess.run([*ISOLATED, *passed, "--", *PROGRAM, *place.launch_arguments(graph, "r1")], env=place.env,
                          cwd=place.root, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr + place.logs()
    place.check("alpha")
