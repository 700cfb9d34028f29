"""Sandbox of this machine: which one applies, and the proof, which tries each escape inside it like an agent."""

from __future__ import annotations

import json
import os
import pty
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from garrison.config import read_config
from garrison.directories import trees_root
from garrison.doctor.findings import ExaminedState, Finding, Severity
from garrison.errors import GarrisonError, Refused
from garrison.sandbox import escape_attempts
from garrison.sandbox.collect import collect, git_mounts
from garrison.sandbox.confine import confine
from garrison.sandbox.escape_attempts import GIT_FILES, LEFT, OBEYED, OWN_PROGRAMS, TOKEN, AttemptTargets
from garrison.sandbox.escapes import ESCAPES, Escape, EscapeResult, judge
from garrison.sandbox.git_view import GitView
from garrison.sandbox.layers import LayerMeans, way_at
from garrison.sandbox.network import connect_for
from garrison.sandbox.place import EXCHANGE, Mode, Mount, Place, Rights, Role
from garrison.sandbox.probe import choose_mode, machine, missing_path_notes, summarize_sandbox
from garrison.system import processes, untrusted
from garrison.system.clock import wait_until
from garrison.system.git import Git
from garrison.system.git.repository import EMAIL, NAME
from garrison.system.tmux_server import TmuxServer
from garrison.system.unix_socket import short_path
from garrison.values import Value

ATTEMPTS = Path(escape_attempts.__file__)
TOOLS = "tools"
"""Folder of programs below the home of the trial, on its PATH."""
_MARK = "garrison-doctor-outside"
_DEADLINE = 60.0


class EscapeVerdicts(Value):
    """Verdicts of all attempts."""

    mode: Mode
    verdicts: tuple[tuple[Escape, EscapeResult], ...]
    means: LayerMeans | None = None
    """How set-up output is mounted under worktrees; None if it is not."""

    @property
    def escaped(self) -> list[Escape]:
        return [escape for escape, verdict in self.verdicts if verdict is EscapeResult.ESCAPED]


def prove(rights: Rights, environ: Mapping[str, str], home: Path) -> EscapeVerdicts:
    """Try every escape under these rights; Refused if their mode is unavailable here.

    Without a sandbox nothing is tried: every escape would succeed, on the real machine.
    """
    if rights.mode is Mode.NONE:
        return EscapeVerdicts(Mode.NONE, ())
    mode = choose_mode(rights.mode, machine())
    server = TmuxServer(home / "run")
    succeeded = _try_all(rights, environ, str(server.socket) if server.processes() else "")
    return EscapeVerdicts(mode, tuple((escape, judge(escape, succeeded[escape.key], mode, rights.network, machine()))
                                      for escape in ESCAPES), _means(mode, environ))


def _means(mode: Mode, environ: Mapping[str, str]) -> LayerMeans | None:
    if mode is not Mode.BUBBLEWRAP:
        return None
    folder = trees_root(environ)
    while not folder.is_dir():
        folder = folder.parent
    return way_at(folder)


def _try_all(rights: Rights, environ: Mapping[str, str], tmux: str) -> dict[str, bool]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="garrison-doctor-")))
        home = Path(environ.get("HOME") or "/")
        # in the user's own home, wherever it is: a visible folder may contain it
        user = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".garrison-doctor-", dir=home))
                    ) if os.access(home, os.W_OK) else root / "user"
        facts = stack.enter_context(_targets(root, user))
        facts["tmux"] = tmux
        worktree = root / "trees/node"
        work = _AttackedRepository(root, worktree, stack, environ)
        facts["repository"], facts["address"] = str(work.common or ""), work.address
        exchange = Path(facts["attempt"], EXCHANGE)
        exchange.mkdir(parents=True)
        place = Place(Role.AGENT, rights, worktree, root / "trees/.node.sandbox/agent",
                      (*work.mounts(rights), Mount(exchange, exchange, writable=True)),
                      under_home=(Path(facts["setup"]),))
        path = f"{user / TOOLS / 'bin'}:{environ.get('PATH', os.defpath)}"
        env = {**environ, "HOME": str(home if user.parent == home else user), "GARRISON_HOME": str(root / "home"),
               "GARRISON_TREES": str(root / "trees"), "PATH": path}
        confined = confine([sys.executable, "-I", str(ATTEMPTS), json.dumps(facts)], env, place)
        done = subprocess.run(confined.argv, env=dict(confined.env), cwd=worktree, stdin=_pipe(stack),
                              capture_output=True, text=True, errors="replace", timeout=_DEADLINE, check=False,
                              start_new_session=True)
        # files that an attack in a broken sandbox wrote into the system, if this is root
        Path("/usr/local/escaped").unlink(missing_ok=True)
        if done.returncode or not done.stdout.strip():
            raise GarrisonError(f"the sandbox could not be tried: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        # files inside may be in a private copy of a folder: only the outside counts
        succeeded: dict[str, bool] = json.loads(done.stdout)
        for key, folder in (("write_sibling", facts["sibling"]), ("write_home", facts["home"]),
                            ("write_user", facts["user"])):
            succeeded[key] = Path(folder, "escaped").exists()
        succeeded["write_attempt"] = [path.name for path in exchange.parent.iterdir()] != [EXCHANGE]
        with suppress(OSError, untrusted.UnsafeFile):
            untrusted.remove(exchange.parent, EXCHANGE)
        succeeded["rights"] = exchange.exists()
        left = Path(facts["setup"])
        succeeded["write_setup"] = (left / "escaped").exists() or (left / LEFT).read_text() != "secret"
        succeeded |= work.look()
        succeeded["daemon"] = _is_left(facts["daemon"])
        return succeeded


class _AttackedRepository:
    """Repository with a worktree, in which git is attacked; without git nothing is."""

    def __init__(self, root: Path, worktree: Path, stack: ExitStack, environ: Mapping[str, str]) -> None:
        self.worktree, self.common = worktree, root / "repository/.git" if shutil.which("git") else None
        self._server = stack.enter_context(socket.socket())
        self._server.bind(("127.0.0.1", 0))
        self._server.listen()
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}/m.git"
        if self.common is None:
            worktree.mkdir(parents=True)
            return
        first = Git(root, environ)
        first.run("init", "-q", "-b", "main", str(self.common.parent))
        relative = {**environ, "PATH": f"{OWN_PROGRAMS}::{environ.get('PATH', os.defpath)}"}
        self.git = Git(self.common.parent, relative, home=root / "home")
        self.git.run("-c", f"user.name={NAME}", "-c", f"user.email={EMAIL}", "commit", "-q", "--allow-empty", "-m", "1")
        self.git.run("config", "http.extraheader", TOKEN)
        self.git.add_worktree(worktree, "node", "main")
        (self.common / "modules/inner").mkdir(parents=True)
        (self.common / "logs").mkdir(exist_ok=True)
        self._before, self._tip = self._files(), self.git.branch_tip("main")

    def mounts(self, rights: Rights) -> tuple[Mount, ...]:
        return () if self.common is None else git_mounts(self.git, self.worktree, rights, Role.AGENT)

    def _files(self) -> dict[str, str]:
        assert self.common is not None
        paths = {name: self.common / name for names in GIT_FILES.values() for name in names}
        return {name: "a link" if path.is_symlink() else path.read_text() if path.is_file() else ""
                for name, path in paths.items()}

    def look(self) -> dict[str, bool]:
        """Return which attacks on git succeeded, after garrison's own git has run as at the end of an attempt."""
        if self.common is None:
            return {}
        after = self._files()
        found = {key: any(after[name] != self._before[name] for name in names) for key, names in GIT_FILES.items()}
        with suppress(GarrisonError, untrusted.UnsafeFile, OSError):
            # each step may rightly refuse what it finds: only the effects of the attack count
            collect(GitView(self.git, self.worktree))
        with suppress(GarrisonError, untrusted.UnsafeFile, OSError):
            self.git.populate_submodules(self.worktree, connect=connect_for(self.git))
        with suppress(GarrisonError, untrusted.UnsafeFile, OSError):
            self.git.commit_all(self.worktree, "what it left")
        is_ours = self.git.branch_tip("main") == self._tip and self.git.current_branch(self.worktree) == "node"
        found["git_obeyed"] = not is_ours or (self.worktree / OBEYED).exists()
        # a connection in the backlog: garrison's own git has called the address that the attack planted
        found["git_submodule"] = bool(select.select([self._server], [], [], 0)[0])
        return found


def _pipe(stack: ExitStack) -> int:
    """Return the read end of a pipe whose other end closes with this process, however it ends.

    Processes that must not outlive this one read from it, so even `kill -9` leaves none behind.
    """
    theirs, ours = os.pipe()
    stack.callback(os.close, theirs)
    stack.callback(os.close, ours)
    return theirs


def examine_sandbox(scope: ExaminedState) -> Iterator[Finding]:
    """Find which sandbox applies to this home's configuration, and why no better one does."""
    runtime = scope.runtime
    profiles = read_config(runtime.home).table.values.get("agents", {})
    agents = [name for name, table in profiles.items() if isinstance(table, dict)] if isinstance(profiles, dict) else []
    try:
        summary = summarize_sandbox(runtime.home, agents or ["command"], runtime.environ)
    except Refused as error:
        yield Finding("sandbox", Severity.ERROR, str(error))
        return
    yield Finding("sandbox", Severity.NOTE, summary.words)
    for note in missing_path_notes(runtime.home, agents, runtime.environ):
        yield Finding("sandbox", Severity.NOTE, note)


@contextmanager
def _targets(root: Path, user: Path) -> Iterator[AttemptTargets]:
    """Create the targets of the attempts: folders with a secret, a process, and servers."""
    sibling, home = root / "trees/sibling", root / "home"
    setup = root / "trees/setups/kept"
    setup.mkdir(parents=True)
    (setup / LEFT).write_text("secret")
    for folder in (sibling, home, user):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret").write_text("secret")
    tools = user / TOOLS
    for name, mode in (("bin/node", 0o755), ("lib/token-of-it", 0o600), ("lib/.npmrc", 0o644), ("lib/.lock", 0o644)):
        (tools / name).parent.mkdir(parents=True, exist_ok=True)
        (tools / name).parent.chmod(0o755)
        (tools / name).write_text("secret")
        (tools / name).chmod(mode)
    with ExitStack() as stack:
        path = stack.enter_context(short_path(root / "socket"))  # TMPDIR may be of any length
        for family, address in ((socket.AF_UNIX, path), (socket.AF_UNIX, f"\0{root.name}"),
                                (socket.AF_INET, ("127.0.0.1", 0))):
            server = stack.enter_context(socket.socket(family))
            server.bind(address)
            server.listen()
        outside = subprocess.Popen(["/bin/sh", "-c", "read _", _MARK], start_new_session=True, stdin=_pipe(stack),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(outside.wait)
        stack.callback(outside.kill)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        theirs, terminal = pty.openpty()
        for descriptor in (theirs, terminal):
            stack.callback(os.close, descriptor)
        yield {"sibling": str(sibling), "home": str(home), "user": str(user), "setup": str(setup),
               "tokens": [str(tools / "lib/token-of-it"), str(tools / "lib/.npmrc")],
               "attempt": str(home / "attempt"), "lock": str(tools / "lib/.lock"),
               "files": 0 if files == resource.RLIM_INFINITY else files,
               "pid": outside.pid, "mark": _MARK,
               "terminal": os.ttyname(terminal), "tmux": "", "repository": "", "address": "",
               "daemon": f"garrison-doctor-daemon-{os.getpid()}", "unix": str(root / "socket"), "abstract": root.name,
               "port": server.getsockname()[1]}


def _is_left(mark: str) -> bool:
    """Return whether a process with this word in its command line outlived the sandbox, and end it."""
    def left() -> list[processes.ProcessRow]:
        return [row for row in processes.list_processes() if mark.encode() in _command_line(row.pid)]

    # processes killed with their sandbox stay in /proc until they are reaped
    if wait_until(lambda: not left(), 2.0):
        return False
    remaining = left()
    for row in remaining:
        processes.send(row.pid, row.ticks, 9)
    return bool(remaining)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
