"""Forks: start one of garrison's programs as a copy of this process, which has already loaded most of what it needs.

A new interpreter takes 130 ms of CPU and 15 MiB to load the modules of a run's process; a copy takes 5 ms, and shares
with its parent what neither changes. It becomes a process as if `processes.spawn` had started it:

- its own session, working directory and descriptors: none of its parent's stays open, no lock and no journal;
- its own command line and environment in /proc, where `ps` and `processes.life_marker` read them: the kernel is told
  their new addresses (`PR_SET_MM_MAP`, which needs no privilege), and `start` returns only after that;
- no signal handler, no child, no thread of its parent's. The parent's objects are never freed, since that might close a
  descriptor that has been reused: the copy runs on the parent's stack and ends by `os._exit`.

If such a copy might differ from a new interpreter, `start` starts a new one: also after an upgrade, since a successor
must be of the new version.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from garrison.errors import Shortage
from garrison.system import processes
from garrison.system.machine import is_shortage, module_argv, program_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from garrison.system.processes import Child

    StartProcess = Callable[..., Child]
    """A function with the arguments of `start`."""

_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_MM_MAP_SIZE = 35, 14, 15
_MAP_BYTES = 104
"""Size of `struct prctl_mm_map`: eleven addresses, the auxiliary vector's address and size, a descriptor."""
_UNCHANGED = 0xFFFFFFFF << 32
"""Last word of that structure: no auxiliary vector, no other program file."""
_STAT_FIELDS = (26, 27, 45, 46, 47, 0, 28)
"""Fields of /proc/PID/stat in the order of that structure: code, data, start of the heap, its end (in none), stack."""
_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_")
"""Prefixes of variables that a program reads only when it starts."""
_TERMINAL_SECONDS = 10.0
"""Seconds for another process to give its terminal up."""
_PATIENCE = 0.2
"""Seconds between two looks at that process."""
GIVEN_UP = signal.SIGUSR1
"""Signal by which it tells a waiting copy that it has."""
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_OURS = 4
"""Words that start the command lines of all garrison's programs (`machine.module_argv`)."""


def _begun() -> float:
    """Return when this process was started, in seconds since 1970."""
    me = processes.probe(os.getpid())
    assert me is not None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + me.ticks / processes.TICKS_PER_SECOND


_loaded_since = _begun()
"""When this process, or the one that it is a copy of, was started and began to load its modules."""


def _starts_with_scripts() -> bool:
    """Return whether modules are searched first in the folder of Python's own scripts, as in the command `garrison`.
    """
    return sys.path[:1] == [os.path.dirname(sys.executable)]  # noqa: PTH120  # as Python writes it


_has_safe_path = bool(sys.flags.safe_path) or _starts_with_scripts()
"""True if our modules are not searched in the working directory, nor in the folder of a foreign script."""
_has_copies = False
"""True once this process has started a copy."""
_libraries: dict[str, tuple[int, int]] = {}
"""Files of the libraries that `load` has loaded, one of each: path → inode and time of change."""
_of_parent: list[object] = []
"""The parent's objects that must not be freed."""
_THRESHOLDS = (700, 10, 10)
"""Python's default, for `gc.set_threshold`; garrison's commands set others."""


class _Program(NamedTuple):
    """Program that a copy becomes."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
    """Start a program as `processes.spawn` does, one of garrison's as a copy of this process if possible."""
    if _can_copy(argv, env):
        program = _Program(list(argv), dict(env), str(cwd), str(log))
        forked = _fork(lambda order: _show(program), log)
        if forked is not None:
            pid, told = forked
            is_begun = os.read(told, 1)
            os.close(told)
            if is_begun:
                return processes.adopt_child(pid)
            os.waitpid(pid, 0)
    return processes.spawn(argv, env=env, cwd=cwd, log=log)


def start_waiting(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> WaitingCopy | None:
    """Start a copy that waits until it is given a terminal; None if a new interpreter is needed."""
    if not _can_copy(argv, env):
        return None

    program = _Program(list(argv), dict(env), str(cwd), str(log))

    def enter(order: int) -> _Program:
        _show(program)
        _enter_terminal(*_read_order(order))
        return program

    return _fork_waiting(enter, log)


@contextmanager
def start_early(modules: Iterable[str]) -> Iterator[StartProcess]:
    """Start a copy that loads modules while this process finds out what to start; yield a function like `start`, whose
    program it becomes. It ends if that is not called, and evaluates `modules` itself."""
    copy = _fork_waiting(partial(_load_early, modules), Path(os.devnull)) if is_possible() else None

    def start_program(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        if copy is not None and _can_copy(argv, env):
            program = _Program(list(argv), dict(env), str(cwd), str(log))
            if copy.begin(list(program)):
                return copy.child
        return start(argv, env=env, cwd=cwd, log=log)

    try:
        yield start_program
    finally:
        if copy is not None:
            copy.cancel()


def _fork_waiting(wait: Callable[[int], _Program], log: Path) -> WaitingCopy | None:
    """Start a copy that calls `wait` with the descriptor of its order; None if it cannot be made."""
    try:
        listens, order = os.pipe2(os.O_CLOEXEC)
    except OSError:
        return None
    forked = _fork(wait, log, listens)
    os.close(listens)
    if forked is None:
        os.close(order)
        return None
    return WaitingCopy(processes.adopt_child(forked[0]), forked[1], order)


class WaitingCopy:
    """A copy of this process that begins its program on an order."""

    def __init__(self, child: Child, told: int, order: int) -> None:
        self.child, self._told, self._order = child, told, order

    def enter(self, tty: str, keeper: processes.ProcessId) -> bool:
        """Have it lead the session of a terminal that `keeper` gives up; False if it cannot, and has ended."""
        return self.begin([tty, keeper.pid, keeper.ticks])

    def begin(self, order: object) -> bool:
        """Have it begin; False if it cannot, and has ended."""
        file, self._order = os.fdopen(self._order, "wb"), -1
        with suppress(BrokenPipeError), file:
            file.write(json.dumps(order).encode() + b"\n")
        is_begun = os.read(self._told, 1)
        os.close(self._told)
        if not is_begun:
            self._wait()
        return bool(is_begun)

    def cancel(self) -> None:
        """End it, unless it was told to begin."""
        if self._order >= 0:
            os.close(self._order)
            os.close(self._told)
            self._order = -1
            processes.send(self.child.pid, self.child.ticks, signal.SIGKILL)
            self._wait()

    def _wait(self) -> None:
        """Wait for its end, which its closed order brings."""
        poller = select.poll()
        poller.register(self.child.pidfd, select.POLLIN)
        poller.poll()
        processes.exit_code(self.child.pid)
        self.child.close()


def load(module: str) -> None:
    """Load a module that copies of this process use, so that they share it; if that fails, they load it themselves and
    report why."""
    if module in sys.modules or not is_possible():
        return
    gc.disable()  # as in `machine.FIRST_LINES`
    before = set(sys.modules)
    with suppress(ImportError, SyntaxError, AttributeError, OSError):
        importlib.import_module(module)
    for name in sys.modules.keys() - before - sys.stdlib_module_names:
        if "." not in name and (path := getattr(sys.modules[name], "__file__", None)):
            _libraries[path] = _stamp(path)
    gc.freeze()
    gc.enable()


def load_for_later(modules: Iterable[str]) -> None:
    """Load modules that copies use only later, unless this process has started none yet: the first one must not wait
    for it."""
    if _has_copies:
        for module in modules:
            load(module)


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes if a file is replaced, but not if a package manager links it into another environment."""
    try:
        found = os.stat(path)  # noqa: PTH116  # before each copy
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _can_copy(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a copy of this process can become a program."""
    is_ours = tuple(argv[:_OURS]) == module_argv("")[:_OURS]
    return is_ours and is_possible() and _at_start(os.environ) == _at_start(env)


def is_possible() -> bool:
    """Return whether a copy of this process would be equivalent to a new interpreter."""
    has_threads = len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208  # names only
    is_traced = sys.gettrace() is not None or sys.getprofile() is not None  # a tracer saves nothing at `os._exit`
    return _has_safe_path and not (has_threads or is_traced) and _can_show() and not _is_upgraded()


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}


def _is_upgraded() -> bool:
    """Return whether a loaded module of garrison, or a library that `load` loaded, differs from the one on disk."""
    if any(_stamp(path) != stamp for path, stamp in _libraries.items()):
        return True
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "garrison" and (path := getattr(module, "__file__", None)):
            try:
                changed = os.stat(path).st_ctime  # noqa: PTH116  # 200 of them
            except OSError:
                return True
            if changed > _loaded_since - 1:
                return True
    return False


def _fork(prepare: Callable[[int], _Program], log: Path, order: int = -1) -> tuple[int, int] | None:
    """Start the copy, which becomes the program that `prepare` returns; return its pid, and what it writes a byte to
    then.

    None if no descriptor is left, or the copy cannot be made. Shortage if there is no room for another process.
    """
    global _has_copies  # noqa: PLW0603  # of the process as a whole
    output = os.open(log, _LOG_FLAGS, 0o600)
    try:
        told, tell = os.pipe2(os.O_CLOEXEC)
    except OSError:  # no descriptor is left, which `spawn` reports
        os.close(output)
        return None
    # A signal for the parent must not reach its handlers in the copy.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        _has_copies = bool(pid)
        if not pid:
            _become(prepare, (output, tell, order), mask)
    except OSError as error:
        os.close(told)
        if is_shortage(error):
            raise Shortage(f"no room to start {sys.executable}: {error.strerror}; it is tried again") from error
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(tell)
        os.close(output)
    return pid, told


# ---- in the copy


def _become(prepare: Callable[[int], _Program], descriptors: tuple[int, int, int],
            mask: set[int | signal.Signals]) -> NoReturn:
    """Become a program; exit with its exit code, or before it starts if that fails.

    Args:
        prepare: called with the descriptor of its order.
        descriptors: of the log, of what tells the parent that it has begun, and of the order to begin, -1 for a program
            that waits for none.
    """
    try:
        gc.disable()
        os.setsid()
        tell, order = _take_descriptors(*descriptors)
        _reset_signals()
        processes.forget_children()
        if _starts_with_scripts():
            del sys.path[0]
        argv, env, _, _ = prepare(order)
        _open_streams()
        os.environ.clear()
        os.environ.update(env)
        module, words = program_of(argv)
        sys.argv, sys.orig_argv = ["-c", *words], list(argv)
        sys.missing_since = time.monotonic()  # type: ignore[attr-defined]
        gc.set_threshold(*_THRESHOLDS)
        gc.freeze()
        gc.enable()
        with suppress(BrokenPipeError):  # the parent was killed: its successor adopts what it started
            os.write(tell, b".")
        os.close(tell)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except BaseException:  # nothing has started: the parent spawns it
        os._exit(1)
    code: object = 1
    try:
        code = importlib.import_module(module).main()
    except SystemExit as error:
        code = error.code
    except BaseException:  # nothing may return to the parent's frames
        import traceback

        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _take_descriptors(output: int, tell: int, order: int) -> tuple[int, int]:
    """Read nothing, write into the log, and close every descriptor of the parent's but `tell` and `order`; return their
    numbers now."""
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    empty, output, tell = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (empty, output, tell))
    order = fcntl.fcntl(order, fcntl.F_DUPFD_CLOEXEC, 10) if order >= 0 else -1
    for number, source in enumerate((empty, output, output)):
        os.dup2(source, number)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names only
        if int(name) not in (0, 1, 2, tell, order):
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    return tell, order


def _read_order(order: int) -> list[Any]:
    """Wait for the order to begin; OSError if there will be none."""
    with open(order, "rb") as file:
        if not (text := file.readline()).endswith(b"\n"):
            raise OSError("the parent has ended, or has nothing for this program to do")
    found: list[Any] = json.loads(text)
    return found


def _load_early(modules: Iterable[str], order: int) -> _Program:
    """Load modules, wait for the order, and appear as its program, with output in its log."""
    for module in modules:
        load(module)
    program = _Program(*_read_order(order))
    if _is_upgraded():
        raise OSError("garrison was upgraded")
    output = os.open(program.log, _LOG_FLAGS, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    return _show(program)


def _enter_terminal(path: str, *keeper: int) -> None:
    """Wait until the terminal's session has no leader; then lead it, and read and write there."""
    import termios  # only a program with a terminal needs it

    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    until = time.monotonic() + _TERMINAL_SECONDS
    # All signals are blocked still. Without one it might be too early: a process that has just been forked for the pane
    # does not lead the session yet, and would end if another did.
    while signal.sigtimedwait([GIVEN_UP], _PATIENCE) is None:
        if not processes.is_running(*keeper) or time.monotonic() > until:
            raise OSError(f"{path} was not given up")
    # As long as its keeper lives, a terminal of that name is no other one's.
    if not processes.is_running(*keeper):
        raise OSError(f"{path} is closed")
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)
    os.close(terminal)


def _open_streams() -> None:
    """Make new standard streams: the parent's may have lines that are not written yet."""
    _of_parent.extend((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


# ---- /proc


def _prctl(operation: int, address: int, size: int) -> bool:
    import ctypes  # commands that only preload this module start nothing

    call = ctypes.CDLL(None, use_errno=True).prctl
    return bool(call(_PR_SET_MM, operation, ctypes.c_ulong(address), ctypes.c_ulong(size), ctypes.c_ulong(0)) == 0)


def _can_show() -> bool:
    """Return whether the kernel lets a process set the addresses of its command line and environment."""
    import ctypes

    size = ctypes.c_uint()
    return _prctl(_PR_SET_MM_MAP_SIZE, ctypes.addressof(size), 0) and size.value == _MAP_BYTES


def _show(program: _Program) -> _Program:
    """Make /proc show the command line, environment and folder of this program; OSError if the kernel refuses."""
    import ctypes

    argv, env, cwd, _ = program
    os.chdir(cwd)
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    block = words + b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    shown = ctypes.create_string_buffer(block, len(block))
    _of_parent.append(shown)
    fields = processes.read_kernel_file("/proc/self/stat").rpartition(b")")[2].split()
    begin = ctypes.addressof(shown)
    middle, end = begin + len(words), begin + len(block)
    areas = [int(fields[number - 3]) if number else 1 for number in _STAT_FIELDS]
    if not all(areas):
        raise OSError("the kernel does not reveal the memory layout of this process")
    table = (ctypes.c_uint64 * 13)(*areas, begin, middle, middle, end, 0, _UNCHANGED)
    library = ctypes.CDLL(None, use_errno=True)
    prctl, heap_end = library.prctl, library.sbrk
    heap_end.restype = ctypes.c_void_p
    address, size = ctypes.c_ulong(ctypes.addressof(table)), ctypes.c_ulong(_MAP_BYTES)
    operation, nothing = ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.c_ulong(0)
    # The kernel also takes the end of the heap from the table, so the heap must not have grown since it was read.
    table[5] = heap_end(0)
    if prctl(_PR_SET_MM, operation, address, size, nothing) or heap_end(0) != table[5]:
        raise OSError(ctypes.get_errno(), "the kernel does not show the new command line")
    return program
