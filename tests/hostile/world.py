"""World of a hostile agent: a user's HOME with secrets, other programs, a run with a hostile and an honest agent.

It is observed from outside, without garrison's code. The hostile agent knows all paths and pids: its scripts get them
as variables (`World.known`), so that nothing but the confinement makes it fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from container_support import IMAGE, missing
from garrison.system import landlock
from hostile import enclosure
from hostile.services import SHM_KEY
from support import DEADLINE, Node, Place, checkout_in, git, load, make_repository, stat, wait_for

HERE = Path(__file__).parent
CHECKOUT = Path(os.environ.get("HOSTILE_CHECKOUT", HERE.parents[1]))
"""Checkout of the attacked garrison: this one, or an older edition."""
NOBODY = 65534
RUN = "r1"
HOSTILE, HONEST = "evil", "good"


class Confinement(StrEnum):
    """How the agents of a run are confined, and where."""

    NONE = "none"
    BUBBLEWRAP = "bubblewrap"
    UNPRIVILEGED = "bubblewrap, unprivileged"
    NESTED = "bubblewrap, in a container"
    LANDLOCK = "landlock"
    UNPRIVILEGED_LANDLOCK = "landlock, unprivileged"
    CONTAINER = "container"

    @property
    def setting(self) -> str:
        """The value of `sandbox` in the configuration."""
        return str(self.value) if self in (Confinement.NONE, Confinement.CONTAINER) else \
            "landlock" if self.is_landlock else "bubblewrap"

    @property
    def is_landlock(self) -> bool:
        return self in (Confinement.LANDLOCK, Confinement.UNPRIVILEGED_LANDLOCK)

    @property
    def is_unprivileged(self) -> bool:
        """Whether an ordinary user runs garrison."""
        return self in (Confinement.UNPRIVILEGED, Confinement.UNPRIVILEGED_LANDLOCK)


def why_impossible(confinement: Confinement) -> str:
    """Return why this machine cannot show a confinement; '' if it can."""
    if confinement in (Confinement.NONE, Confinement.CONTAINER):
        return "" if confinement is Confinement.NONE else missing()
    if not (CHECKOUT / "src/garrison/sandbox/confine.py").exists():
        return "this garrison confines nothing"
    if confinement.is_unprivileged:
        if os.geteuid() != 0:
            return "needs root, to become another user"
        if plain_python() is None:
            return "no Python of this version that every user may run, or the checkout is not readable for all"
    if confinement.is_landlock:
        return "" if landlock.abi() else "Landlock is not enabled in this kernel"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    if confinement is Confinement.UNPRIVILEGED:
        words = [*become_nobody(), "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    elif confinement is Confinement.NESTED:
        words = [*container(), "bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc",
                 "true"]
    else:
        words = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    return "" if done.returncode == 0 else f"not possible on this machine: {done.stderr.strip()}"


def become_nobody() -> list[str]:
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--"]


def container() -> list[str]:
    """Return the words that enter a container: new namespaces, root in them only."""
    return ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            "--ipc", "--uts", "--"]


def plain_python() -> Path | None:
    """Return a Python of our version that every user may run; None without one, or if our code is not readable."""
    program = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    site = CHECKOUT / f".venv/lib/python3.{sys.version_info.minor}/site-packages"
    done = subprocess.run([*become_nobody(), "test", "-x", program, "-a", "-r", site / "click/core.py"], check=False)
    return program if done.returncode == 0 else None


def make_environment(folder: Path, program: Path) -> Path:
    """Make a virtual environment with our packages for another Python; return its program."""
    version = f"python3.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text(f"{CHECKOUT}/src\n{CHECKOUT}/.venv/lib/{version}/site-packages\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(program)
    (folder / "pyvenv.cfg").write_text(f"home = {program.parent}\ninclude-system-site-packages = false\n")
    return folder / "bin" / "python"


class World(Place):
    """One run with a hostile and an honest agent, and everything around it that could be harmed."""

    __hash__ = object.__hash__

    def __init__(self, root: Path, confinement: Confinement, hostile: str = "", **env: str) -> None:
        make_repository(checkout_in(root))
        self.confinement = confinement
        self.secret = f"secret-{secrets.token_hex(8)}"
        self.python = Path(sys.executable) if HERE.parents[1] == CHECKOUT else CHECKOUT / ".venv/bin/python"
        self.services: subprocess.Popen[bytes] | None = None
        self.orders = 0
        self.most_memory = 0
        self.pids: dict[Path, tuple[int, int]] = {}
        """File of an identity → its time of change, and its pid."""
        super().__init__(root, env={"GARRISON_RESCAN": "0.3", **env}, terminal="auto")  # as a user has it
        self.root = root  # nothing in it is open to the agents
        self.env["GARRISON_HOME"] = str(self.home)  # an older edition's checkout would have it in its own state/
        self.enter: list[str] = []
        self.is_apart = False
        """Whether only `enter` reaches its files and its Python."""
        if confinement.is_unprivileged:
            self.is_apart = True
            self.enter = become_nobody()
            program = plain_python()
            self.python = make_environment(root / "environment", program)
            self.env["PATH"] = "/usr/local/bin:/usr/bin:/bin"
        elif confinement is Confinement.NESTED and enclosure.INSIDE not in os.environ:
            self.is_apart = True
            self.enter = container()
        elif os.geteuid() == 0:  # a separate host name, which may be changed
            self.enter = ["unshare", "--uts", "--"]
        self.enter += [str(self.python), "-I", str(HERE / "login.py"), self.secret]
        self.gate = root / "gate.sh"
        self.remote = root / "remote.git"
        self.others = root / "others"
        self.port = free_port()
        self.terminals = pty.openpty()
        """Both ends of a terminal that the user has open."""
        self.furnish()
        self.env["PATH"] = f"own-bin:{self.user}/.local/bin:{self.env['PATH']}"
        self.env["SSH_AUTH_SOCK"] = str(self.others / "ssh-agent.sock")
        self.env["ANTHROPIC_API_KEY"] = f"sk-ant-{self.secret}"
        self.hostile = hostile or f"exec {self.python} .hostile/agent.py"

    # ------------------------------------------------------------------------------------------------ making

    def furnish(self) -> None:
        """Write the user's files, a remote, the gate and what the other programs need."""
        for name in (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".git-credentials", ".config/gh/hosts.yml",
                     ".claude/.credentials.json", ".docker/config.json", ".gnupg/private-keys-v1.d/key",
                     ".bash_history", ".local/share/keyrings/login.keyring", "projects/other/notes.txt",
                     ".nvm/token-of-it", ".local/share/uv/credentials/credentials.toml"):
            path = self.user / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{self.secret}\n")
            path.chmod(0o600)
        (self.user / ".nvm/bin").mkdir(mode=0o755)
        (self.user / ".nvm/bin/node").touch(mode=0o755)
        (self.user / ".config/app").mkdir()
        self.trees.parent.mkdir(parents=True, exist_ok=True)
        state = {"status": "fail", "failure_reason": self.secret, "notes": self.secret}
        (self.user / ".config/app/state.json").write_text(json.dumps(state))
        for name in (".bashrc", ".profile", ".local/bin/tool", ".cargo/bin/rustup-tool",
                     ".config/systemd/user/timer.service", ".config/git/ignore"):
            path = self.user / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("# the user's own\n")
        if (Path.home() / ".rustup").is_dir():
            (self.user / ".rustup").symlink_to(Path.home() / ".rustup")
        (self.user / ".gitconfig").write_text("[user]\n\tname = A User\n\temail = user@example.org\n")
        self.gate.write_text("test -f calc.py\n")
        self.others.mkdir()
        (self.root / "tmp-of-another").write_text(self.secret)
        (self.home / "web").mkdir()
        (self.home / "web/tokens.json").write_text(self.secret)
        (self.home / "config.toml").write_text(
            f'[sandbox]\nmode = "{self.confinement.setting}"\nnetwork = "allow"\n'
            f'image = "{IMAGE}"\n'
            f'\n[sandbox.gate]\nread = ["{self.gate}"]\n')
        Path(f"/dev/shm/hostile-{self.port}").write_text(self.secret)
        folder = self.repo / ".hostile"
        folder.mkdir()
        shutil.copy(HERE / "agent.py", folder)
        (self.repo / ".gitignore").write_text(".orders/\n")
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-qm", "Add an agent")
        git(self.repo, "branch", "keep")
        git(self.repo, "tag", "v1")
        (self.repo / "calc.py").write_text("stashed\n")
        git(self.repo, "stash")
        git(self.root, "init", "-q", "--bare", str(self.remote))
        git(self.repo, "remote", "add", "origin", str(self.remote))
        git(self.repo, "push", "-q", "origin", "main")
        self.start = git(self.repo, "rev-parse", "main")
        self.lost = self.write_object()
        self.give_away()

    def give_away(self) -> None:
        """Give everything to the user who runs garrison."""
        if self.confinement.is_unprivileged:
            give_away(self.root)
            os.fchown(self.terminals[1], NOBODY, NOBODY)

    def write_object(self) -> str:
        """Write an object that nothing refers to yet, as the user's `git add` does."""
        done = subprocess.run(["git", "hash-object", "-w", "--stdin"], cwd=self.repo, input="a moment ago\n", text=True,
                              capture_output=True, check=True, env=neutral())
        return done.stdout.strip()

    def spawn(self, words: list[object], log: str) -> subprocess.Popen[bytes]:
        """Start a program as the world's user, in its container."""
        with (self.root / log).open("ab") as output:
            child = subprocess.Popen([*self.enter, *map(str, words)], env=self.env, cwd=self.root,
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.started.append(child)
        return child

    def program(self, *arguments: object) -> list[object]:
        return [self.python, "-P", "-m", "garrison.cli.main", *arguments]

    def run_command(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a garrison command as the user, outside."""
        return subprocess.run([*self.enter, *map(str, self.program(*arguments))], env=self.env, cwd=self.root,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=DEADLINE)

    def run_in_terminal(self, *arguments: object) -> bytes:
        """Run a garrison command in a new terminal; return what the terminal was sent."""
        ours, theirs = pty.openpty()
        child = subprocess.Popen([*self.enter, *map(str, self.program(*arguments))], env=self.env | {"TERM": "xterm"},
                                 cwd=self.root, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
        child.wait(DEADLINE)
        return shown

    def begin_services(self) -> None:
        """Start the user's other programs: in the run's container, outside of any agent's boundary."""
        env = {**self.env, "VICTIM_TOKEN": self.secret}
        words = [*self.enter, str(self.python), str(HERE / "services.py"), str(self.others), self.secret,
                 str(self.port)]
        with (self.root / "services.log").open("ab") as output:
            self.services = subprocess.Popen(words, env=env, cwd=self.root, stdin=subprocess.DEVNULL, stdout=output,
                                             stderr=output, start_new_session=True)
        self.started.append(self.services)
        wait_for("services", (self.others / "ready").exists)

    def open(self, *, nodes: list[Node] | None = None, options: tuple[object, ...] = ()) -> subprocess.Popen[bytes]:
        """Start the other programs and the run."""
        self.begin_services()
        wait = "until test -e .orders/end; do sleep 0.1; done"
        honest = f"mkdir -p .orders; touch .orders/ready; {wait}; echo fine > fine.txt; git add -A; git commit -qm Fine"
        graph = self.graph(*(nodes or [Node(HOSTILE, command=self.hostile), Node(HONEST, command=honest)]))
        words = [*self.launch_arguments(graph, RUN, "--max-agents", "4", *options, gate=f"sh {self.gate}")]
        words = [word for word in words if word not in ("--env", "LEDGER", "WITNESS")]
        if self.confinement.is_unprivileged:
            os.chown(graph, NOBODY, NOBODY)
        return self.spawn(self.program(*words), "out")

    def open_orders(self) -> None:
        """Start a run and wait until the hostile agent obeys."""
        child = self.open()
        for name in (HOSTILE, HONEST):
            wait_for(f"{name} is at work", lambda name=name: child.poll() is not None
                     or list(self.trees.glob(f"*/{RUN}/{name}/.orders/ready")))
        assert child.poll() is None, self.logs()
        self.orders = 0
        self.first_pids = {name: int(str(pid)) for name, pid in self.known().items() if name in ("SIB", "GUARD")}

    # ------------------------------------------------------------------------------------------------ the agent

    def tree(self, name: str = HOSTILE) -> Path:
        """Return a node's worktree; one that is not there if it has none."""
        return next(iter(self.trees.glob(f"*/{RUN}/{name}")), self.trees / "none" / name)

    def agent_pids(self, name: str) -> list[int]:
        """Return the processes that work in a node's worktree."""
        tree = str(self.tree(name))
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((path / "cwd").readlink()) == tree and (state := stat(int(path.name))) and state[0] != "Z":
                    found.append(int(path.name))
        return sorted(found)

    def known(self) -> dict[str, object]:
        """Return what the hostile agent knows."""
        sibling = self.agent_pids(HONEST)
        return {"R": self.repo, "GH": self.home, "U": self.user, "T": self.tree(), "S": self.tree(HONEST),
                "GATE": self.gate, "REMOTE": self.remote, "O": self.others, "PORT": self.port, "PY": self.python,
                "ROOT": self.root, "RT": self.runtime, "V": self.services_pid(), "LOST": self.lost,
                "SIB": sibling[0] if sibling else 0, "SUP": self.identity("runner-good").get("pid", 0),
                "GUARD": self.identity("guardian-crew").get("pid", 0), "ORCH": self.identity("orchestrator-evil").get(
                    "pid", 0), "G": f"{self.python} -P -m garrison.cli.main", "RUN": RUN,
                "PARENT": f"/proc/{os.getpid()}", "TTY": os.ttyname(self.terminals[1])}

    def services_pid(self) -> int:
        return int.from_bytes((self.others / "ready").read_bytes()[:4], sys.byteorder)

    def attack(self, script: str, seconds: float = 30) -> str:
        """Have the hostile agent run a shell script; return its output ('' if it died)."""
        folder = self.tree() / ".orders"
        settings = "".join(f"{name}='{value}'; export {name}\n" for name, value in self.known().items())
        part = folder / f"{self.orders}.part"
        part.write_text(f"{settings}{script}\n")
        if self.confinement.is_unprivileged:
            os.chown(part, NOBODY, NOBODY)
        order = part.rename(part.with_suffix(".sh"))
        self.orders += 1
        with contextlib.suppress(AssertionError):
            wait_for("the order", lambda: order.with_suffix(".done").exists() or not folder.exists(), seconds)
        try:
            return order.with_suffix(".out").read_text(errors="replace")
        except OSError:
            return ""

    @property
    def is_at_work(self) -> bool:
        """Return whether both agents and their supervisors are still the first ones."""
        stems = ("guardian-crew", f"runner-{HOSTILE}", f"runner-{HONEST}", f"orchestrator-{HOSTILE}",
                 f"orchestrator-{HONEST}")
        found = [self.identity(stem) for stem in stems]
        return all(one.get("status") == "active" and one.get("incarnation") == 1 for one in found) and bool(
            list(self.trees.glob(f"*/{RUN}/{HOSTILE}/.orders/ready"))) and bool(self.agent_pids(HOSTILE)) and (
            self.services is not None and self.services.poll() is None and (self.others / "ready").exists())

    # ------------------------------------------------------------------------------------------------ watching

    def file(self, path: Path | str) -> tuple[object, ...] | None:
        """Return what identifies a file's state; None if there is none."""
        path = Path(path)
        try:
            found = path.lstat()
        except OSError:
            return None
        if path.is_symlink():
            return ("link", str(path.readlink()))
        content = hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else ""
        return (found.st_mode, found.st_uid, content)

    def files(self, folder: Path, *skip: str) -> dict[str, tuple[object, ...] | None]:
        """Return the state of all files of a folder except the named subfolders and files."""
        named = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
        return {name: self.file(path) for name, path in named.items()
                if not any(name == one or name.startswith(f"{one}/") for one in skip)}

    def git(self, *words: str) -> str:
        """Return what a git command prints in the repository, in which nothing that was planted is run."""
        return subprocess.run(["git", *words], cwd=self.repo, env=neutral(), capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL).stdout.strip()

    def refs(self, prefix: str = "") -> dict[str, str]:
        """Return the repository's refs but the hostile node's own."""
        pairs = (line.split() for line in self.git("for-each-ref", "--format=%(refname) %(objectname)",
                                                    *prefix.split()).splitlines())
        return {name: value for name, value in pairs
                if not name.startswith((f"refs/heads/garrison/{RUN}/{HOSTILE}", "refs/garrison/rescue"))}

    def alive(self, pid: int) -> bool:
        found = stat(pid)
        return found is not None and found[0] not in "ZTt"

    def measure(self) -> None:
        """Record the most memory (KiB) that any garrison process has needed so far."""
        for path in (self.home / "identities").glob(f"*@{RUN}.json"):
            with contextlib.suppress(OSError, StopIteration):
                if (changed := path.stat().st_mtime_ns) != self.pids.get(path, (0, 0))[0]:
                    self.pids[path] = changed, load(path).get("pid") or 0
                lines = Path(f"/proc/{self.pids[path][1]}/status").read_text().splitlines()
                most = next(line for line in lines if line.startswith("VmHWM"))
                self.most_memory = max(self.most_memory, int(most.split()[1]))

    def heard(self) -> str:
        """Return what strangers sent to the user's other programs."""
        return (self.others / "heard").read_text(errors="replace")

    def reaches(self, port: int) -> bool:
        """Return whether a server listens on the user's own loopback."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    def untouched(self) -> dict[str, object]:
        """Return the state of everything that no agent may change."""
        own = (str(self.home.relative_to(self.user)), str(self.trees.relative_to(self.user)),
               str((self.repo / ".git").relative_to(self.user)))  # garrison's, and what is looked at by itself
        return {"user": self.files(self.user, *own), "gate": self.file(self.gate), "remote": self.files(self.remote),
                "refs": self.refs(), "hooks": self.files(self.repo / ".git/hooks"),
                "info": self.files(self.repo / ".git/info"), "config": self.file(self.repo / ".git/config"),
                "checkout": self.files(self.repo, ".git"), "sibling": self.files(self.tree(HONEST)),
                "stash": self.git("stash", "list"), "head": self.file(self.repo / ".git/HEAD"),
                "alternates": self.file(self.repo / ".git/objects/info/alternates"),
                "lost": self.git("cat-file", "-t", self.lost),
                "services": self.alive(self.services_pid()), "status": self.status(RUN)}

    def close(self) -> None:
        """End everything."""
        self.kill_all()
        for child in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for descriptor in self.terminals:
            os.close(descriptor)
        for path in Path("/dev/shm").glob(f"hostile-{self.port}*"):
            path.unlink()
        for kind in ("-M", "-Q"):
            subprocess.run(["ipcrm", kind, str(SHM_KEY + self.port)], check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)


def describe_change(before: object, after: object) -> str:
    """Return the difference between two states of something that is watched."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        return ", ".join(f"{name}: {before.get(name)} → {after.get(name)}" for name in names)[:500]
    return f"{before} → {after}"[:500]


def neutral() -> Mapping[str, str]:
    """Return an environment in which git runs nothing that was planted."""
    return {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def give_away(folder: Path) -> None:
    """Give a folder to the user `nobody`."""
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", folder], check=True)
    folder.chmod(0o755)
