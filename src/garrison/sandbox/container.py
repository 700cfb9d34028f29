"""Containers as places: an engine runs the command in an image, with what the place provides and nothing else.

The image replaces the machine's system folders and toolchains. Everything else is as with bubblewrap: worktree, home,
temporary folder and git view at the same paths, the network of the place, no capabilities, the same blocked system
calls. Podman as root enters the network namespace that garrison has made; an engine that cannot (rootless Podman,
Docker) supports only `network = "none"` and `"open"`.

An engine is found by running the image once (`ready`), with the options that this machine needs: default limits and
cgroup managers often fail. The result is kept until the machine reboots.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.directories import homes_list
from garrison.errors import Refused
from garrison.records import atomic
from garrison.records.names import parse_marker
from garrison.records.record import from_data, to_dict
from garrison.sandbox.file_system import BuildStep, FileSystemStep
from garrison.sandbox.place import Network
from garrison.system import processes
from garrison.system.command import run
from garrison.system.processes import MARKER
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from garrison.sandbox.place import Place
    from garrison.system.command import Done

ENGINES = ("podman", "docker")
LAUNCHER = Path(__file__).with_name("container_launcher.py")
LABEL = "garrison.owner"
"""Label of each of garrison's containers: pid, start ticks and boot of its launcher."""
RUN_LABEL, NODE_LABEL, HOME_LABEL, ROLE_LABEL = "garrison.run", "garrison.node", "garrison.home", "garrison.role"
# kill -1: every process of the container except the caller and the first, which then exits with its command.
_INIT = """\
watch() { read -r _; kill -KILL -1; }
watch <&3 >/dev/null 2>&1 3<&- &
exec 3<&-
"$@"
exit
"""
"""First process of a container: exits with the command, or at the end of its launcher's life line (descriptor 3)."""
LINE = "/run/garrison-line"
"""Path of the life line, a named pipe, for an engine that does not pass descriptors."""
PATH_OF_IMAGE = "${containerEnv:PATH}"
_CALLS = "calls.json"
_REFUSED_CALLS = frozenset({"io_uring_setup", "io_uring_enter", "io_uring_register", "add_key", "request_key", "keyctl",
                            "syslog", "setns", "clone3", "socketcall"})
"""System calls that are blocked inside, as with bubblewrap; programs fall back."""
_BY_ARGUMENT: Mapping[str, tuple[int, int, str]] = {
    "fcntl": (1, 1024, "SCMP_CMP_NE"), "fcntl64": (1, 1024, "SCMP_CMP_NE"),  # F_SETLEASE
    "socket": (0, 40, "SCMP_CMP_NE"), "socketpair": (0, 40, "SCMP_CMP_NE"),  # AF_VSOCK
    "unshare": (0, 0x10000000, "SCMP_CMP_MASKED_EQ"), "clone": (0, 0x10000000, "SCMP_CMP_MASKED_EQ"),  # CLONE_NEWUSER
}
"""Call → argument, value and comparison for which it is allowed."""
_GLOBAL_OPTIONS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "podman": ((), ("--cgroup-manager=cgroupfs",), ("--runtime=runc",),
               ("--runtime=runc", "--cgroup-manager=cgroupfs")),
    "docker": ((),)}
"""Options to try with an engine, in order."""
_OF_MACHINE = frozenset({"PATH", "SHELL", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV",
                         "PWD", "OLDPWD", "SHLVL", "_"})
"""Variables about the machine's own programs and their places: the image has others."""
_TIMEOUT, _PULL_TIMEOUT = 60.0, 1800.0


class ContainerEngine(Value):
    """An engine that runs an image on this machine, and what it needs for that."""

    program: str
    options: tuple[str, ...] = ()
    """Options before the word `run`."""
    limits: tuple[str, ...] = ()
    image: str = ""
    """Name of the image, and the id that this name had."""
    image_id: str = ""
    path: str = ""
    """Search path of the image."""
    seccomp: str = ""
    """File with the engine's own list of allowed system calls, '' if unknown."""

    @property
    def is_podman(self) -> bool:
        return Path(self.program).name == "podman"

    @property
    def keeps_namespaces(self) -> bool:
        """Return whether a container joins its starter's network namespace, and sees mounts of its mount namespace.
        """
        return self.is_podman and os.geteuid() == 0


class _KeptEngine(Value):
    """An engine, and the boot, user and installed program for which it was found."""

    key: tuple[str, ...]
    engine: ContainerEngine


# ---- finding an engine -----------------------------------------------------------------------------------------------


def ready(image: str) -> ContainerEngine:
    """Return the engine that runs an image, as found in this boot; Refused with the reason if none does."""
    if not image:
        raise Refused("mode = \"container\" needs an image here: image = \"…\" in [sandbox] of config.toml")
    return _kept(image) or find_engine(image)


def at_launch(image: str) -> ContainerEngine:
    """Return the engine that runs what the image's name means now: it may have been pulled or built since."""
    kept = _kept(image) if image else None
    if kept is not None:
        done = run([kept.program, "image", "inspect", "--format", "{{.Id}}", image], _TIMEOUT)
        if done.ok and done.out.strip() == kept.image_id:
            return kept
        return find_engine(image)
    return ready(image)


def find_engine(image: str) -> ContainerEngine:
    """Try which engine runs an image now, pull it if missing, and store the result; Refused if none does."""
    refusals = []
    for name, program in _installed():
        found = _try(program, image)
        if isinstance(found, ContainerEngine):
            _keep(found)
            return found
        refusals.append(f"{name}: {found}")
    if not refusals:
        raise Refused(f"no container: neither {' nor '.join(ENGINES)} is installed; install one, or set mode = "
                      "\"auto\" in [sandbox] of config.toml")
    raise Refused(f"no container of {image} runs here: {'; '.join(refusals)}")


def _installed() -> Iterator[tuple[str, str]]:
    """Yield name and program of each engine that is installed."""
    for name in ENGINES:
        if (program := shutil.which(name)) is not None:
            yield name, program


def _try(program: str, image: str) -> ContainerEngine | str:
    """Return the engine if it runs the image, else why it does not."""
    state = run([program, "image", "inspect", image], _TIMEOUT)
    if not state.ok:
        server = run([program, "info"], _TIMEOUT)
        if not server.ok:
            return server.last_error
        pulled = run([program, "pull", "--quiet", image], _PULL_TIMEOUT)
        if not pulled.ok:
            return pulled.last_error
        state = run([program, "image", "inspect", image], _TIMEOUT)
        if not state.ok:
            return state.last_error
    facts = json.loads(state.out)[0]
    variables = dict(entry.split("=", 1) for entry in (facts.get("Config") or {}).get("Env") or [] if "=" in entry)
    path = variables.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    refusal = ""
    for options in _GLOBAL_OPTIONS[Path(program).name]:
        for limits in _limits():
            engine = ContainerEngine(program, options, limits, image, facts["Id"], path, _seccomp_file())
            if (done := ask(engine, ":")).ok:
                return engine
            refusal = refusal or first_error(done)
    return refusal


def first_error(done: Done) -> str:
    """Return the engine's error; its last line may be only a hint."""
    lines = [line for line in done.err.strip().splitlines() if "rror" in line]
    return lines[-1].strip() if lines else done.last_error


def _limits() -> Iterator[tuple[str, ...]]:
    """Yield options for the limits inside: half of ours, as with bubblewrap; else low ones; else the engine's own."""
    hard = {name: resource.getrlimit(number)[1] for name, number in (("nofile", resource.RLIMIT_NOFILE),
                                                                    ("nproc", resource.RLIMIT_NPROC))}
    for divisor in (2, 4, 16):
        yield tuple(word for name, limit in hard.items() if limit != resource.RLIM_INFINITY
                    for word in ("--ulimit", f"{name}={limit // divisor}:{limit // divisor}"))
    yield ()


def _seccomp_file() -> str:
    return next((path for path in ("/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json")
                 if os.access(path, os.R_OK)), "")


def _file() -> Path:
    return homes_list().with_name("containers.json")


def _key(program: str) -> list[str]:
    return [processes.boot_id(), str(os.geteuid()), program, str(Path(program).stat().st_mtime_ns)]


@cache
def _kept(image: str) -> ContainerEngine | None:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        kept = from_data(_KeptEngine, json.loads(_file().read_text())[image])
        if list(kept.key) == _key(kept.engine.program):
            return kept.engine
    return None


def _keep(engine: ContainerEngine) -> None:
    _kept.cache_clear()
    with suppress(OSError):  # without it the next process tries again
        atomic.make_directory(_file().parent)
        with atomic.locked(_file().with_suffix(".lock")):
            known = {}
            with suppress(OSError, ValueError):
                known = json.loads(_file().read_text())
            known[engine.image] = to_dict(_KeptEngine(tuple(_key(engine.program)), engine))
            atomic.write(_file(), json.dumps(known).encode(), durable=False)


@cache
def find_program(engine: ContainerEngine, name: str) -> str:
    """Return the path of a program in the image, '' if missing."""
    return ask(engine, 'command -v -- "$1"', name).out.strip()


def ask(engine: ContainerEngine, script: str, *arguments: str) -> Done:
    """Run a shell script in the image, isolated from this machine, and return its output."""
    return run([engine.program, *engine.options, "run", "--rm", "--network", "none", *_fixed_words(engine),
                "--entrypoint", "/bin/sh", engine.image_id, "-c", script, "sh", *arguments], _TIMEOUT)


# ---- the command line ------------------------------------------------------------------------------------------------


def command_line(engine: ContainerEngine, argv: Sequence[str], place: Place, steps: Iterable[FileSystemStep],
                 env: Mapping[str, str], *, start: Path | None, hidden: Iterable[str] = ()) -> list[str]:
    """Return the command that runs `argv` in a container of the place; `env` are its variables inside.

    Refused if the engine cannot enforce the place's network. Start the command in the place's network namespace
    (`Place.entry`), with these variables in its environment: no value appears on the command line. Variables added by
    the starter, such as the SDK of an agent's CLI, are also visible inside.

    Args:
        hidden: variables of the command that must not be visible inside.
    """
    if place.entry and not engine.keeps_namespaces:
        raise Refused(f"network = \"{place.rights.network}\" in a container needs Podman as root: {engine.program} "
                      "cannot start one in garrison's network; set network = \"none\" or \"open\" in [sandbox] of "
                      "config.toml")
    network = "host" if place.entry or place.rights.network is Network.OPEN else "none"
    words = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-I", "-S", str(LAUNCHER),
             "=".join(sorted({*hidden, *_OF_MACHINE})), "" if engine.is_podman else str(place.private), engine.program,
             *engine.options, "run", "--rm", "-i", "--network", network, *_fixed_words(engine), *_labels(place, env)]
    if engine.is_podman:
        words += ["--preserve-fds", "1", "--no-hosts", "--replace"]
        words += ["--security-opt", f"seccomp={_write_calls(engine, place)}"] if engine.seccomp else []
    for step in steps:
        words += _mount_words(step)
    stated = dict(place.rights.container_env)
    for name, value in {"PATH": engine.path, **stated}.items():
        if name not in env:
            words += ["--env", f"{name}={value.replace(PATH_OF_IMAGE, engine.path)}"]
    words += place.rights.container_options
    if start is not None:
        words += ["--workdir", str(start)]
    init = _INIT if engine.is_podman else f"exec 3<{LINE}\n{_INIT}"
    return [*words, "--entrypoint", "/bin/sh", engine.image_id, "-c", init, "garrison", *argv]


def environment_inside(env: Mapping[str, str], steps: Sequence[FileSystemStep]) -> dict[str, str]:
    """Return the variables without those about the machine's programs and files that are not inside. Pure except for
    checking that such a file exists."""
    targets = [f"{step.target}/" for step in steps if step.step in (BuildStep.READ, BuildStep.WRITE)]
    return {name: value for name, value in env.items() if name not in _OF_MACHINE and "=" not in name and not (
        value.startswith("/") and not f"{value}/".startswith(tuple(targets)) and os.path.exists(value))}  # noqa: PTH110


def _fixed_words(engine: ContainerEngine) -> list[str]:
    """Return the options of every container."""
    words = ["--pull", "never", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--hostname",
             "sandbox", "--log-driver", "none", *engine.limits]
    if engine.is_podman:
        words += ["--pids-limit", "0", "--image-volume", "tmpfs", "--http-proxy=false", "--stop-timeout", "0",
                  "--systemd", "false", *(("--userns", "keep-id") if os.geteuid() else ())]
    else:
        words += ["--tmpfs", "/run", "--user", f"{os.getuid()}:{os.getgid()}"]
    return words


def _labels(place: Place, env: Mapping[str, str]) -> Iterator[str]:
    home, run_id, stem, _ = parse_marker(env.get(MARKER, "")) or ("", "", "", 0)
    node = env.get("GARRISON_NODE") or stem
    for label, value in ((RUN_LABEL, run_id), (NODE_LABEL, node), (HOME_LABEL, home), (ROLE_LABEL, place.role)):
        if value:
            yield from ("--label", f"{label}={value}")


def _mount_words(step: FileSystemStep) -> tuple[str, ...]:
    target = str(step.target)
    if step.step in (BuildStep.READ, BuildStep.WRITE):
        mount = ["type=bind", f"src={step.source}", f"dst={target}", *(("readonly",) if step.step is BuildStep.READ
                                                                     else ())]
        return ("--mount", _as_csv(mount))
    if step.step is BuildStep.HIDE_FILE:
        return ("--mount", _as_csv(["type=bind", "src=/dev/null", f"dst={target}", "readonly"]))
    return ("--mount", _as_csv(["type=tmpfs", f"dst={target}", *(
        () if step.step is BuildStep.EMPTY else ("ro",))]))


def _as_csv(fields: Sequence[str]) -> str:
    """Return the fields as a CSV line for engines, quoted if one has a comma or a quotation mark."""
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field for field in fields)


def _write_calls(engine: ContainerEngine, place: Place) -> Path:
    """Write the list of allowed system calls: the engine's own, without those that garrison always blocks."""
    path = place.private / _CALLS
    content = json.dumps(_allowed_calls(json.loads(Path(engine.seccomp).read_text()))).encode()
    if atomic.read(path) != content:
        atomic.write(path, content, durable=False)
    return path


def _allowed_calls(profile: dict[str, object]) -> dict[str, object]:
    """Return an engine's list without the blocked calls. Pure."""
    taken, rules = _REFUSED_CALLS | set(_BY_ARGUMENT), []
    listed = profile.get("syscalls")
    for rule in listed if isinstance(listed, list) else ():
        names = [name for name in rule["names"] if name not in taken]
        if names:
            rules.append({**rule, "names": names})
    for name, (index, value, comparison) in _BY_ARGUMENT.items():
        rules.append({"names": [name], "action": "SCMP_ACT_ALLOW",
                      "args": [{"index": index, "value": value, "valueTwo": 0, "op": comparison}]})
    return {**profile, "syscalls": rules}


# ---- leftovers ---------------------------------------------------------------------------------------------------


class LeftContainer(Value):
    """A container whose launcher has ended."""

    program: str
    id: str
    run: str
    node: str
    home: str


def list_left() -> list[LeftContainer]:
    """Return garrison's containers without a living launcher; none if no engine answers or ever ran one."""
    found: list[LeftContainer] = []
    if not _file().exists():
        return found
    for name, program in _installed():
        fields = [f'{{{{index .Labels "{label}"}}}}' if name == "podman" else f'{{{{.Label "{label}"}}}}'
                  for label in (LABEL, RUN_LABEL, NODE_LABEL, HOME_LABEL)]
        done = run([program, "ps", "--all", "--no-trunc", "--filter", f"label={LABEL}", "--format",
                    "|".join(["{{.ID}}", *fields])], _TIMEOUT)
        for line in done.out.splitlines() if done.ok else ():
            number, owner, run_id, node, home = line.split("|", 4)
            if not _is_held(owner):
                found.append(LeftContainer(program, number, run_id, node, home))
    return found


def remove_left(containers: Iterable[LeftContainer]) -> None:
    """Remove containers with their processes; Refused with the engine's error if it cannot."""
    for each in containers:
        done = run([each.program, "rm", "-f", *(("-t", "0") if each.program.endswith("podman") else ()), each.id],
                   _TIMEOUT)
        if not done.ok:
            raise Refused(f"container {each.id[:12]} cannot be removed: {done.last_error}")


def _is_held(owner: str) -> bool:
    words = owner.split()
    if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
        return False
    return processes.same_boot(words[2]) and processes.is_running(int(words[0]), int(words[1]))
