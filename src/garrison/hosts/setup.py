"""Set-up of a host, from home over ssh: check it, install the same garrison there, and start its service.

Each step can be repeated: the next set-up continues an interrupted one. A failure is one line with the
remedy.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import shlex
import sys
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from garrison import __version__, extras
from garrison.config import read_config
from garrison.directories import checkout
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.hosts import unpack
from garrison.hosts.access import CONTROL, Completed, HostAccess, HostUnreachable, host_python
from garrison.hosts.keeper import ensure_keeper, find_program, host_settings, read_state, server_address
from garrison.records import atomic, record
from garrison.records.host_service import HostProbe, settings_path
from garrison.records.hosts import FOLDER as HOSTS
from garrison.records.hosts import Host, host_path, list_hosts, read_crew, read_host, write_host
from garrison.system import command
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECK_SECONDS = 30.0
INSTALL_SECONDS = 600.0
CONNECT_SECONDS = 120.0
NEEDED_BYTES = 400_000_000
"""Free space for garrison's environment and its wheels."""
LARGEST_OFFSET = 60.0
"""Difference of the clocks, in seconds, above which the user is warned."""
OLDEST = (3, 11)
NO_WHEELS = 9
"""Exit code of INSTALL if neither the bundled wheels nor the host's index fit its Python."""

FACTS = """\
say() { printf '%s\\t%s\\n' "$1" "$2"; }
say home "$HOME"
say user "$(id -un 2>/dev/null || id -u)"
say system "$(uname -s) $(uname -m)"
say git "$(git --version 2>/dev/null)"
say free "$(df -Pk "$HOME" 2>/dev/null | awk 'NR==2 {print $4}')"
version='import sys; print("%d.%d %s" % (*sys.version_info[:2], sys.executable))'
for python in "$@"; do
    found=$("$python" -I -c "$version" 2>/dev/null) && say python "$found"
done
true
"""
PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python",
           "/usr/local/bin/python3", "/usr/bin/python3", "/opt/homebrew/bin/python3")
CLOCK = "import time; print(time.time())"

ALONE = """\
import fcntl, os, sys
base, *words = sys.argv[1:]
lock = os.open(base + "/installing", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX)
except OSError:
    pass
os.set_inheritable(lock, True)
os.execvp(words[0], words)
"""
"""Runs a command alone in a folder: the installation of an interrupted `add` continues there. Without support for
locks it runs unlocked."""
# --without-pip: on Debian ensurepip is a separate package, so the bundled wheel of pip is run directly.
# Bundles of interrupted set-ups go after an hour: a younger one may belong to an `add` that waits for the lock.
INSTALL = """\
set -e
umask 077
base=$1 python=$2 name=$3 bundle=$4
cd "$base"
if [ -e "$name/ready" ]; then
    rm -f "$bundle"
    exit 0
fi
rm -rf "$name" wheels
mkdir wheels
"$python" -I -m zipfile -e "$bundle" wheels
"$python" -I -m venv --without-pip "$name"
pip=$(echo wheels/pip-*.whl)
own=$(echo wheels/garrison-[0-9]*.whl)
if ! "$name/bin/python" -I wheels/unpack.py wheels 2>first.log; then
    timeout 500 "$name/bin/python" "$pip/pip" --disable-pip-version-check --retries 1 --timeout 10 install \\
        --no-compile -q --find-links wheels -c wheels/constraints.txt "$own[acp,hosts]" pip 2>second.log || {
        tail -n 1 first.log >&2  # what follows is printed; pip's last line names a package, though no index answered
        sed -n 's/.* after connection broken by /its package index does not answer: /p' second.log | grep -m 1 . >&2 ||
            tail -n 1 second.log >&2
        exit 9
    }
fi
"$name/bin/garrison" --version >/dev/null
rm -rf wheels "$bundle" first.log second.log
find . -maxdepth 1 -name 'bundle-*' -mmin +60 -exec rm -f {} + || true
: >"$name/ready"
"""
"""Makes the environment, which is complete once its file `ready` exists: from the unpacked bundled wheels, else by pip
from these and the host's own index."""
TIDY = 'cd "$1" && for old in env-*; do [ "$old" = "$2" ] || rm -rf "$old"; done'
TREES = """\
trees=${XDG_CACHE_HOME:-$HOME/.cache}/garrison
for file in "$trees"/*/*/*/.git; do
    case $(cat "$file" 2>/dev/null) in "gitdir: $1/"*) rm -rf -- "${file%/*/*/.git}" ;; esac
done
rmdir -- "$trees" 2>/dev/null || true
"""
"""Removes the worktrees of the clones below a folder, and the root of all worktrees if it is then empty."""
FREE_PORT = """\
import socket, sys
first, *taken = map(int, sys.argv[1:])
for port in range(first, min(first + 200, 65536)):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port if port not in taken else first))
        except OSError:
            continue
    if port not in taken:
        print(port)
        break
"""


class HostFacts(Value):
    """Facts about a host."""

    home: str
    user: str
    system: str
    git: str
    free_bytes: int
    python: str
    python_version: str
    clock_offset: float
    """Seconds by which its clock is ahead."""
    round_trip: float

    @property
    def machine(self) -> str:
        return self.system.rpartition(" ")[2]


def examine(access: HostAccess, python: str = "") -> HostFacts:
    """Return the facts about a host; Refused with the remedy if garrison cannot be installed there."""
    candidates = (python,) if python else PYTHONS
    done = access.run(["sh", "-c", FACTS, "sh", *candidates], timeout=CHECK_SECONDS)
    pairs = [line.split("\t", 1) for line in done.out.decode(errors="replace").splitlines() if "\t" in line]
    facts = {key: value.strip() for key, value in pairs if key != "python"}
    where = access.place
    if not facts.get("home", "").startswith("/"):
        raise Refused(f"{where}: its user has no home directory; give {facts.get('user') or 'it'} one, or use another")
    if not facts.get("system", "").startswith("Linux"):
        raise Refused(f"{where}: garrison works on Linux, it has {facts.get('system') or 'an unknown system'}")
    version, found = choose_python([value for key, value in pairs if key == "python"])
    if not found:
        raise Refused(_no_python(where, python, version))
    if not facts.get("git"):
        raise Refused(f"{where}: it has no git: install git there (for example: sudo apt install git)")
    free = int(facts["free"]) * 1024 if facts.get("free", "").isdigit() else NEEDED_BYTES
    offset, trip = measure_clock(access, found)
    return HostFacts(facts["home"], facts.get("user", ""), facts["system"], facts["git"], free, found, version, offset,
                     trip)


def _no_python(where: str, asked: str, newest: str) -> str:
    wanted = ".".join(map(str, OLDEST))
    if asked:
        return f"{where}: {asked} is not Python {wanted} or newer" + (f", it is {newest}" if newest else "")
    have = f"its newest is {newest}" if newest else "it has none"
    return (f"{where}: garrison needs Python {wanted} or newer, {have}: install one there (for example: sudo apt "
            "install python3), or name it with --python")


def choose_python(found: list[str]) -> tuple[str, str]:
    """Return version and path of the newest Python that is new enough; the newest version and '' if none is. Pure."""
    newest = ((0, 0), "", "")
    for line in found:
        version, _, path = line.partition(" ")
        parts = version.split(".")
        if len(parts) == 2 and all(part.isdigit() for part in parts) and path.startswith("/"):
            newest = max(newest, ((int(parts[0]), int(parts[1])), version, path))
    return newest[1], newest[2] if newest[0] >= OLDEST else ""


def measure_clock(access: HostAccess, python: str) -> tuple[float, float]:
    """Return by how many seconds a host's clock is ahead, and the seconds of the round trip that bound the error."""
    before = time.time()
    done = access.run([python, "-I", "-S", "-c", CLOCK], timeout=CHECK_SECONDS)
    after = time.time()
    try:
        return float(done.text) - (before + after) / 2, after - before
    except ValueError:
        return 0.0, after - before


class HostSetup:
    """Set-up of one host.

    Args:
        say: shows a step to the user.
    """

    def __init__(self, home: Path, wanted: Host, python: str, say: Callable[[str], None]) -> None:
        self.home, self.wanted, self.python, self.say = home, wanted, python, say
        self.access = HostAccess.of(home, wanted)

    def run(self) -> Host:
        """Set the host up, and return its record once its worker answers."""
        known = self._known()
        if not read_config(self.home).hosts().temporal:
            find_program()
        facts = examine(self.access, self.python)
        self.say(f"{facts.user}@{self.access.place}: {facts.system}, Python {facts.python_version}, {facts.git}, "
                 f"{facts.free_bytes / 1e9:.1f} GB free, clock {facts.clock_offset:+.1f} s")
        if abs(facts.clock_offset) > LARGEST_OFFSET + facts.round_trip:
            self.say(f"note: its clock is {facts.clock_offset:+.0f} s off; this affects the times in its logs, "
                     "not leases")
        base = f"{facts.home}/.local/share/garrison-hosts/{read_crew(self.home)}/{self.wanted.name}"
        with tempfile.TemporaryDirectory(prefix="garrison-wheel-") as folder:
            command = self._install(Path(folder), base, facts)
        host = self._choose_address(replace(self.wanted, home=f"{base}/home", command=command, version=__version__,
                                            added_at=self.wanted.added_at), facts)
        self._make_home(host)
        write_host(self.home, host)
        self._start(host, known)
        self._await(host)
        return host

    def _known(self) -> Host | None:
        """Return the earlier record of the host; Refused if another machine has its name."""
        try:
            known = read_host(self.home, self.wanted.name)
        except NotFound:
            return None
        if known.ssh != self.wanted.ssh:
            raise Refused(f"{known.name} is already {known.ssh or 'this machine'}; give this one another --name, or "
                          f"`garrison host remove {known.name}` first")
        return known

    # ---- installation

    def _install(self, own_folder: Path, base: str, facts: HostFacts) -> str:
        """Install this garrison in its own environment; return the path of its command there."""
        own, others = collect(self.home / HOSTS / "wheels", own_folder)
        name = f"env-{fingerprint([own, *others])}-{facts.python_version}"
        command = f"{base}/{name}/bin/garrison"
        ready = self.access.run(["sh", "-c", 'test -e "$1/ready" && "$2" --version', "sh", f"{base}/{name}", command],
                                timeout=CHECK_SECONDS)
        if ready.code == 0:
            self.say("the same garrison is already installed there")
            return command
        if facts.free_bytes < NEEDED_BYTES:
            raise Refused(f"{self.access.place}: its disk has {facts.free_bytes / 1e6:.0f} MB free in {facts.home}, "
                          f"garrison needs {NEEDED_BYTES / 1e6:.0f} MB: make room there")
        self.say("copying garrison and its dependencies")
        if self._known() is None:  # so that `list` shows, and `remove` removes, an interrupted set-up
            write_host(self.home, replace(self.wanted, home=f"{base}/home", command="", port=0))
        made = self.access.run(["sh", "-c", 'umask 077; mkdir -p "$1/home"', "sh", base], timeout=CHECK_SECONDS)
        if made.code:
            raise Refused(f"{self.access.place}: {base} cannot be made: {made.last_error}")
        bundle = own_folder / "bundle.zip"
        done = self._try_install([own, *others], bundle, base, name, facts)
        if done.code == NO_WHEELS:
            self.say(f"fetching packages for its Python {facts.python_version} from home's package index")
            folder = self.home / HOSTS / "wheels" / f"{facts.python_version}-{facts.machine}"
            try:
                fetched = download(others, facts.python_version, facts.machine, folder)
            except (GarrisonError, OSError) as error:
                raise Refused(f"{self._explain_install(done.err, facts)} (home's index: {error})") from None
            done = self._try_install([own, *fetched], bundle, base, name, facts)
        if done.code:
            raise Refused(self._explain_install(done.err, facts))
        return command

    def _try_install(self, paths: list[Path], bundle: Path, base: str, name: str, facts: HostFacts) -> Completed:
        _bundle(paths, bundle)
        there = f"bundle-{secrets.token_hex(4)}.zip"
        self.access.copy_in(bundle, f"{base}/{there}")
        self.say("installing it in its own environment")
        return self.access.run([facts.python, "-I", "-S", "-c", ALONE, base, "sh", "-c", INSTALL, "sh", base,
                                facts.python, name, there], timeout=INSTALL_SECONDS)

    def _explain_install(self, err: bytes, facts: HostFacts) -> str:
        text = err.decode(errors="replace").strip()
        last = text.splitlines()[-1][:300] if text else "no output"
        where = self.access.place
        if "No space left" in text or "quota exceeded" in text:
            return f"{where}: its disk became full during the installation: make room in {facts.home}"
        if "venv" in text and "No module named" in text:
            return (f"{where}: its Python lacks the module venv: install it there (for example: sudo apt install "
                    "python3-venv)")
        return (f"{where}: garrison cannot be installed for its Python {facts.python_version}: {last}; it needs the "
                "same Python as home, or a package index")

    def _make_home(self, host: Host) -> None:
        content = record.encode(host_settings(self.home, host))
        push_file(self.access, content, str(settings_path(Path(host.home))))

    # ---- connection

    def _choose_address(self, host: Host, facts: HostFacts) -> Host:
        """Return the host with the address at which it reaches the Temporal server, and its end of the tunnel."""
        own = read_config(self.home).hosts().temporal
        if host.address and not host.port:
            return host  # the user's
        if own:
            return replace(host, address=own, port=0)
        known = self._known()
        if known is None or not known.is_set_up:  # the keeper starts for a host only, whose server's port is needed
            write_host(self.home, replace(host, port=0))
            known = None
        ensure_keeper(self.home)
        address = server_address(self.home)
        if not host.ssh:
            return replace(host, address=address, port=0)
        taken = {other.port for other in list_hosts(self.home)[0] if other.name != host.name and other.ssh == host.ssh}
        ours = known.port if known is not None else 0
        port = self._free_port(ours or int(address.rpartition(":")[2]), taken, facts, is_ours=bool(ours))
        return replace(host, address=f"127.0.0.1:{port}", port=port)

    def _free_port(self, first: int, taken: set[int], facts: HostFacts, *, is_ours: bool) -> int:
        if is_ours and self.wanted.name in read_state(self.home).tunnels:
            return first
        done = self.access.run([facts.python, "-I", "-c", FREE_PORT, str(first), *map(str, sorted(taken))],
                               timeout=CHECK_SECONDS)
        if not done.text.isdigit():
            raise Refused(f"{self.access.place}: no free port on its loopback: {done.last_error}")
        return int(done.text)

    def _start(self, host: Host, known: Host | None) -> None:
        base, _, name = host.command.removesuffix("/bin/garrison").rpartition("/")
        if known is not None and known.command not in ("", host.command):
            self.say("ending the service of the earlier installation")
            control(self.access, host, "stop", timeout=CONNECT_SECONDS)
            self.access.run(["sh", "-c", TIDY, "sh", base, name], timeout=INSTALL_SECONDS)
        self.say("starting its service")
        if host.port:
            ensure_keeper(self.home)  # whose tunnel starts the service
            return
        done = control(self.access, host, "start", timeout=CONNECT_SECONDS)
        if done.code:
            raise GarrisonError(f"{self.access.place}: {done.message}")

    def _await(self, host: Host) -> None:
        """Wait until the host's worker answers."""
        end = time.monotonic() + CONNECT_SECONDS
        why = "it sent nothing"
        while time.monotonic() < end:
            if host.port and host.name not in read_state(self.home).tunnels:
                why = read_state(self.home).troubles.get(host.name, "its tunnel is not open yet")
                time.sleep(0.2)
                continue
            try:
                seen = probe(self.access, host)
            except GarrisonError as error:
                why = str(error)
            else:
                if seen.connected and seen.running:
                    return
                why = seen.why or "its service has not started"
            time.sleep(0.3)
        own = read_config(self.home).hosts()
        needed = f"put the keys tls_… of [hosts] into {host.home}/config.toml there; " \
            if own.tls_ca or own.tls_certificate or own.api_key_file else ""
        raise GarrisonError(f"{host.name} is installed, but its worker does not answer within {CONNECT_SECONDS:g} s: "
                            f"{why}; {needed}run `garrison host add HOST` again to continue")


def _bundle(paths: list[Path], bundle: Path) -> None:
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_STORED) as archive:
        for path in paths:
            archive.write(path, path.name)
        archive.writestr("constraints.txt", "".join(f"{_pin(path)}\n" for path in paths[1:]))
        archive.write(unpack.__file__, "unpack.py")


def _pin(wheel: Path) -> str:
    return "==".join(wheel.name.split("-")[:2])


def push_file(access: HostAccess, content: bytes, path: str) -> None:
    """Write a file atomically on a host, with its folder; GarrisonError if that failed."""
    script = 'umask 077; mkdir -p "${1%/*}" && cat >"$1.part" && mv -f "$1.part" "$1"'
    done = access.run(["sh", "-c", script, "sh", path], stdin=content, timeout=CHECK_SECONDS)
    if done.code:
        raise GarrisonError(f"{access.place}: {path} cannot be written: {done.last_error}")


def push_settings(home: Path, host: Host) -> None:
    """Bring a host its settings, as after `drain`."""
    push_file(HostAccess.of(home, host), record.encode(host_settings(home, host)), str(settings_path(Path(host.home))))


def control(access: HostAccess, host: Host, verb: str, *, timeout: float) -> Completed:
    """Run a verb of `control.py` on a host."""
    return access.run([host_python(host), "-P", "-c", CONTROL, host.home, verb], timeout=timeout)


def probe(access: HostAccess, host: Host, timeout: float = CHECK_SECONDS) -> HostProbe:
    """Return a host's own report, with the offset of its clock; GarrisonError if it is unusable."""
    before = time.time()
    done = control(access, host, "probe", timeout=timeout)
    after = time.time()
    if done.code:
        why = done.message or "its garrison does not run"
        raise GarrisonError(f"{access.place}: {why}")
    try:
        seen = record.from_data(HostProbe, json.loads(done.out))
    except ValueError:
        raise GarrisonError(f"{access.place}: its garrison gave no usable answer") from None
    return replace(seen, clock_offset=seen.time - (before + after) / 2)


def remove(home: Path, host: Host, say: Callable[[str], None], *, reach: bool = True) -> None:
    """End a host's service, remove everything that `add` created there, and its record here."""
    access = HostAccess.of(home, host)
    base = host.home.rpartition("/")[0]
    if reach and host.home:
        try:
            if host.is_set_up:
                done = control(access, host, "stop", timeout=CONNECT_SECONDS)
                if done.code and done.code != 127:  # 127: its Python is gone
                    raise GarrisonError(f"{access.place}: {done.message}")
            if "/.local/share/garrison-hosts/" in base:
                access.run(["sh", "-c", TREES, "sh", base], timeout=INSTALL_SECONDS)
                done = access.run(["rm", "-rf", "--", base], timeout=INSTALL_SECONDS)
                if done.code:
                    raise GarrisonError(f"{access.place}: {base} cannot be removed: {done.last_error}")
        except HostUnreachable as error:
            raise Refused(f"{error}; --here removes it from this home only, and leaves {shlex.quote(base)} "
                          "there") from None
        say(f"removed {base} there")
    host_path(home, host.name).unlink(missing_ok=True)
    access.disconnect()


# ---- Wheels of the running installation, to install the same one on a host without an index.
#
# garrison itself is built from its checkout, or repacked from its installed files, like its dependencies. A
# packed wheel keeps its tags, so pip on the host refuses one for another Python or machine.


ROOT = "garrison"
EXTRAS = frozenset({"hosts", "acp"})
"""Extras that a host gets, for the work on a node. Claude's is installed on the host itself."""
BUILD_SECONDS = 120.0
DOWNLOAD_SECONDS = 300.0
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?")
_LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_required() -> list[metadata.Distribution]:
    """Return the installed distributions that garrison needs on a host, without itself; MissingExtra without them."""
    extras.require("hosts", "`garrison host`")
    found: dict[str, metadata.Distribution] = {}
    queue = [(ROOT, EXTRAS)]
    while queue:
        name, wanted = queue.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # a marker excludes it here
        if normalize(name) in found:
            continue
        found[normalize(name)] = distribution
        queue += list(_requirements(distribution, wanted))
    return [found[name] for name in sorted(found) if name != ROOT]


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in distribution.requires or []:
        requirement, _, marker = line.partition(";")
        match = _REQUIREMENT.match(requirement.strip())
        wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if match is not None and (wanted is None or wanted[1] in extras):
            yield match["name"], frozenset(re.split(r"\s*,\s*", match["extras"] or ""))


def pack(distribution: metadata.Distribution, folder: Path) -> Path:
    """Pack an installed distribution as a wheel in `folder`; return its path."""
    files = distribution.files
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    stem = f"{name}-{distribution.version}"
    wheel = distribution.read_text("WHEEL")
    if files is None or wheel is None:
        raise GarrisonError(f"{distribution.metadata['Name']} was not installed from a wheel, so it cannot be copied")
    path = folder / f"{stem}-{wheel_tag(wheel)}.whl"
    if path.is_file():
        return path
    record: list[str] = []
    info = f"{stem}.dist-info"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(files):
            here = Path(str(distribution.locate_file(file)))
            if ".." in file.parts or file.suffix == ".pyc" or file.is_absolute() or not here.is_file():
                continue  # scripts, which pip recreates, and compiled files
            inside = file.as_posix()
            if file.parts[0].endswith(".dist-info"):
                inside = f"{info}/{'/'.join(file.parts[1:])}"
                if file.name in _LEFT_OUT:
                    continue
            data = here.read_bytes()
            archive.writestr(zipfile.ZipInfo(inside), data, zipfile.ZIP_DEFLATED, 1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f'"{inside}",sha256={digest},{len(data)}')
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    part.replace(path)
    return path


def wheel_tag(wheel: str) -> str:
    """Return the compressed tag of a WHEEL file: the sets of its pythons, ABIs and platforms."""
    tags = [line.partition(":")[2].strip().split("-") for line in wheel.splitlines() if line.startswith("Tag:")]
    return "-".join(".".join(dict.fromkeys(tag[place] for tag in tags)) for place in range(3))


def pack_garrison(folder: Path) -> Path:
    """Return a wheel of this garrison, built from its checkout if it runs from one."""
    source = checkout()
    if source is None:
        return pack(metadata.distribution(ROOT), folder)
    done = command.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], BUILD_SECONDS,
                       cwd=source)
    built = sorted(folder.glob(f"{ROOT}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not done.ok or not built:
        last = done.last_error if done.err.strip() else (done.out.strip() or done.last_error).splitlines()[-1]
        raise GarrisonError(f"no wheel of garrison can be built from {source}: {last}")
    return built[-1]


def find_pip(folder: Path) -> Path:
    """Return a wheel of pip: a host's Python may come without it."""
    try:
        return pack(metadata.distribution("pip"), folder)
    except metadata.PackageNotFoundError:
        pass
    try:
        import ensurepip

        bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    except ImportError:
        bundled = []
    if not bundled:
        raise NotFound("there is no pip here to bring to the host: `python -m ensurepip`, or install pip next to "
                       "garrison")
    return bundled[-1]


def collect(kept: Path, own: Path) -> tuple[Path, list[Path]]:
    """Return the wheel of garrison, made in the folder `own`, and the other wheels that a host needs, pip's first,
    made once in the folder `kept`."""
    atomic.make_directory(kept)
    with atomic.locked(kept / "lock"):
        others = [find_pip(kept), *(pack(distribution, kept) for distribution in list_required())]
    return pack_garrison(own), others


def download(others: list[Path], python: str, machine: str, folder: Path) -> list[Path]:
    """Fetch home's packages in the same versions, for another Python or processor, from home's package index.

    GarrisonError if an index does not answer, or has no wheel for it.
    """
    atomic.make_directory(folder)
    platforms = [word for libc in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
                 for word in ("--platform", f"{libc}_{machine}")]
    done = command.run(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
         "--only-binary=:all:", "--python-version", python, *platforms, "-d", str(folder), *map(_pin, others)],
        DOWNLOAD_SECONDS)
    if not done.ok:
        raise GarrisonError(done.last_error[:300])
    return sorted(folder.glob("*.whl"))


def fingerprint(paths: list[Path]) -> str:
    """Return a digest of the content of wheels."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        with zipfile.ZipFile(path) as archive:
            digest.update(f"{path.name}\n".encode())
            for item in sorted(archive.infolist(), key=lambda item: item.filename):
                digest.update(f"{item.filename} {item.CRC}\n".encode())
    return digest.hexdigest()[:16]
