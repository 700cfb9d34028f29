"""A program of garrison's that is started as a copy of its parent is what a new interpreter would have become."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from garrison.system import processes
from garrison.system.tmux_server import supported_version
from support import until

PROGRAM = '''
import json, os, signal, sys, time

def main():
    while not os.path.exists(os.path.join(os.path.dirname(sys.argv[1]), "marked")):
        time.sleep(0.01)
    if "fail" in sys.argv:
        raise ValueError("as told")
    if "leave" in sys.argv:
        sys.exit(7)
    names = [name for name in signal.Signals if callable(signal.getsignal(name)) and name != signal.SIGINT]
    seen = {
        "cmdline": open("/proc/self/cmdline").read().split("\\0")[:-1], "argv": sys.argv, "cwd": os.getcwd(),
        "environ": dict(line.split("=", 1) for line in open("/proc/self/environ").read().split("\\0")[:-1]),
        "own": dict(os.environ), "session": os.getsid(0) == os.getpid(), "handlers": names,
        "foreground": os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp(),
        "fds": {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{name}")},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "parent": getattr(sys, "parent_of_copies", None), "orig": sys.orig_argv,
        "has_library": "library" in sys.modules}
    with open(sys.argv[1], "w") as file:
        json.dump(seen, file)
    print("said")
    return 3
'''
PARENT = '''
import fcntl, json, os, signal, sys, threading, time
from pathlib import Path
from garrison.system import forks, processes
from garrison.system.machine import module_argv

folder = Path(sys.argv[1])
words = json.loads(sys.argv[2])
sys.parent_of_copies = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: None)
signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1])
lock = open(folder / "lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("not written by the copy", end="")
library = folder / "library.py"
env = {name: value for name, value in os.environ.items() if name != "OF_PARENT"} | words.get("env", {})
argv = [*module_argv("program"), str(folder / "seen"), *words.get("more", ())]
exec(words.get("before", ""))
if in_tmux := words.get("tmux"):
    from garrison.system.tmux import TmuxTerminal
    terminal = TmuxTerminal(folder / "home")
    child = session = terminal.open("orchestrator-a@r1", argv, env=env, cwd=folder, log=folder / "log")
elif "early" in words:
    library.touch()
    (folder / "last.py").write_text(f"open({str(folder / 'loaded')!r}, 'w')")
    with forks.start_early(["library", "last"]) as start_program:
        exec(words["early"])
        child = start_program(argv, env=env, cwd=folder, log=folder / "log")
else:
    child = forks.start(argv, env=env, cwd=folder, log=folder / "log")
marked = processes.life_marker(child.pid)
exec(words.get("after", "(folder / 'marked').touch()"))
while processes.exit_code(child.pid, child.ticks) is None and processes.is_running(child.pid, child.ticks):
    time.sleep(0.01)
again = open(folder / "lock")
lock.close()
fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
told = {"code": processes.exit_code(child.pid, child.ticks), "marked": marked, "pid": child.pid}
if in_tmux:
    told |= {"ended": terminal.exit_code(session), "shown": terminal.capture(session)}
    terminal.close(session)
    terminal.shutdown()
print(json.dumps(told), file=sys.stderr)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def start(folder: Path, **words: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Start the program from a process of garrison's; return what that saw of it, and what it saw."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OF_PARENT": "1"}
    done = subprocess.run([sys.executable, *words.pop("flags", ["-P"]), "-c", PARENT, folder, json.dumps(words)],
                          env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads((folder / "seen").read_text()) if (folder / "seen").exists() else {}
    return json.loads(done.stderr.splitlines()[-1]), seen


@pytest.mark.parametrize("words", [{}, {"early": ""}], ids=["at once", "early"])
def test_a_copy_is_seen_and_sees_itself_as_a_new_interpreter_would(folder: Path, words: dict[str, Any]) -> None:
    long = {"GARRISON_LIFE": "home:r1:runner-a#1", "LONG": "x" * 100_000}
    told, seen = start(folder, env=long, **words)
    assert seen["parent"] is not None  # else it was no copy
    assert seen["has_library"] is bool(words)
    assert told["marked"] == "home:r1:runner-a#1"
    assert told["code"] == 3
    assert seen["environ"] == seen["own"]
    assert long.items() <= seen["environ"].items()
    assert "OF_PARENT" not in seen["environ"]
    assert seen["cmdline"] == seen["orig"]
    assert seen["cmdline"][-2:] == ["program", str(folder / "seen")]
    assert seen["argv"] == ["-c", str(folder / "seen")]
    assert seen["cwd"] == str(folder)
    assert seen["session"]
    assert seen["handlers"] == []
    assert seen["blocked"] == []
    log = str(folder / "log")
    assert seen["fds"] == {"0": "/dev/null", "1": log, "2": log}
    assert (folder / "log").read_text() == "said\n"


def test_a_copy_ends_as_its_program_does(folder: Path) -> None:
    assert start(folder, more=["fail"])[0]["code"] == 1
    assert (folder / "log").read_text().endswith("ValueError: as told\n")
    assert start(folder, more=["leave"])[0]["code"] == 7


@pytest.mark.parametrize("words", [
    {"before": "threading.Thread(target=time.sleep, args=(3,), daemon=True).start()"},
    {"env": {"LANG": "de_DE.UTF-8"}},
    {"env": {"PYTHONHASHSEED": "7"}},
    {"before": "Path('program.py').resolve(); forks._loaded_since = os.stat(forks.__file__).st_ctime"},
    {"before": "library.touch(); forks.load('library'); library.rename(folder / 'old'); library.touch()"},
    {"before": "forks._PR_SET_MM_MAP_SIZE = 0"},
    {"before": "forks._PR_SET_MM_MAP = 0"},
    {"before": "sys.settrace(lambda *_: None)"},
    {"flags": ["-B"]},
    {"early": "env['LC_ALL'] = 'C'"},
], ids=["threads", "locale", "python", "upgrade", "library", "old kernel", "refused", "traced", "unsafe path",
        "locale since early"])
def test_what_would_differ_from_a_new_interpreter_is_started_in_one(folder: Path, words: dict[str, Any]) -> None:
    told, seen = start(folder, **words)
    assert seen["parent"] is None
    assert told["code"] == 3
    assert seen["fds"].keys() == {"0", "1", "2"}


def test_an_early_copy_that_has_loaded_what_was_replaced_is_not_used(folder: Path) -> None:
    told, seen = start(folder, early="while not (folder / 'loaded').exists(): time.sleep(0.01)\nos.utime(library)")
    assert told["code"] == 3
    assert not seen["has_library"]


def test_what_is_only_used_later_is_not_loaded_before_the_first_copy(folder: Path) -> None:
    load = "library.touch(); forks.load_for_later(['library']); sys.parent_of_copies = 'library' in sys.modules"
    assert start(folder, before=load)[1]["parent"] is False
    first = "forks.start([*argv, 'fail'], env=env, cwd=folder, log=folder / 'log')"
    assert start(folder, before=f"{first}; {load}")[1]["parent"] is True


# ---- in a terminal

needs_tmux = pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")
TERMINAL = """
signal.signal(signal.SIGINT, signal.SIG_DFL)
pane = lambda form: subprocess.run(["tmux", "-S", session.socket, "list-panes", "-a", "-F", form], check=True,
                                   capture_output=True, text=True).stdout.strip()
"""


@needs_tmux
def test_a_copy_takes_over_a_pane(folder: Path) -> None:
    told, seen = start(folder, tmux=True, env={"GARRISON_LIFE": "home:r1:runner-a#1"})
    assert seen["parent"] is not None
    assert (told["code"], told["ended"], told["marked"]) == (3, 3, "home:r1:runner-a#1")
    assert told["shown"].splitlines()[0] == "said"
    assert seen["environ"] == seen["own"]
    assert seen["session"]
    assert seen["handlers"] == []
    assert seen["blocked"] == []
    assert seen["foreground"]
    assert set(seen["fds"]) == {"0", "1", "2"}
    assert len(set(seen["fds"].values())) == 1
    assert seen["fds"]["0"].startswith("/dev/pts/")


@needs_tmux
@pytest.mark.parametrize(("what", "signal_"), [
    ("terminal.press(session, 'C-c', literal=False)", signal.SIGINT),
    ("os.kill(int(pane('#{pane_pid}')), signal.SIGKILL)", signal.SIGHUP),
    ("subprocess.run(['tmux', '-S', session.socket, 'kill-session', '-t', session.session_id], check=True)",
     signal.SIGHUP),
    ("os.kill(int(pane('#{pid}')), signal.SIGKILL)", signal.SIGHUP)],
    ids=["Ctrl-C", "program of the pane killed", "session closed", "server killed"])
def test_a_copy_in_a_pane_gets_the_signals_of_its_terminal(folder: Path, what: str, signal_: int) -> None:
    told, _ = start(folder, tmux=True, after=f"import subprocess\n{TERMINAL}\n{what}")
    # Python's own handler ends a program after Ctrl-C with an exit code, a signal without one with itself.
    assert told["code"] in (-signal_, 1)
    assert told["code"] == -signal_ or "KeyboardInterrupt" in told["shown"]


@needs_tmux
def test_a_copy_that_gets_no_terminal_leaves_the_pane_to_a_new_interpreter(folder: Path) -> None:
    told, seen = start(folder, tmux=True, before="""
enter = forks.WaitingCopy.enter
forks.WaitingCopy.enter = lambda copy, tty, keeper: enter(copy, '/nowhere', keeper)""")
    assert seen["parent"] is None
    assert told["ended"] == 3
    assert seen["fds"]["0"].startswith("/dev/pts/")


_IN_TERMINAL = """forks.start_waiting([*module_argv("program"), str(folder / "seen")], env=dict(os.environ), cwd=folder,
                                   log=folder / "log")"""
_EARLY = "forks._fork_waiting(lambda order: forks._load_early(['shutil'], order), Path(os.devnull))"


@pytest.mark.parametrize("end", ["copy.cancel()", "os._exit(0)"], ids=["cancelled", "opener gone"])
@pytest.mark.parametrize("copy", [_IN_TERMINAL, _EARLY], ids=["in a terminal", "early"])
def test_a_copy_whose_order_never_comes_ends(folder: Path, copy: str, end: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PARENT, folder, json.dumps({"before": f"""
copy = {copy}
print(copy.child.pid, copy.child.ticks, flush=True)
{end}
os._exit(0)"""})], env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)
    pid, ticks = map(int, done.stdout.removeprefix("not written by the copy").split())
    assert until(lambda: not processes.is_running(pid, ticks))
    assert not (folder / "seen").exists()
