"""Probe: find out what this machine can enforce, and which mode follows.

A namespace may be refused although bubblewrap is installed: by a container, a sysctl or AppArmor. So bubblewrap is
tried. A success is kept in a file until the next boot; a refusal is not: the user may lift it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.directories import homes_list
from garrison.ends import NOT_FOUND, End, EndKind
from garrison.errors import Refused
from garrison.records import atomic
from garrison.sandbox import container
from garrison.sandbox.bubblewrap import HOST_NAME, NAMESPACES, PROGRAM
from garrison.sandbox.devcontainer import with_devcontainer
from garrison.sandbox.file_system import named_programs
from garrison.sandbox.place import Abilities, Mode, Network, Role
from garrison.sandbox.rights import read_rights
from garrison.system import landlock, processes
from garrison.system.command import run
from garrison.system.machine import install_command
from garrison.values import Value, asdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from garrison.sandbox.place import Place, Rights
    from garrison.system.git import Git

_SWITCHES = {"user.max_user_namespaces": "15000", "kernel.unprivileged_userns_clone": "1",
             "kernel.apparmor_restrict_unprivileged_userns": "0"}
"""Setting of the kernel that may forbid user namespaces → its value that allows them."""
_ATTEMPTS = tuple(product((True, False), (True, False), (True, False)))
"""(own /proc, no further user namespaces, own host name): what to try, best first."""
_TIMEOUT = 20.0


@cache
def machine() -> Abilities:
    """Return what this machine can enforce; tried once per boot."""
    program = shutil.which(PROGRAM)
    if (kept := _read_kept(program)) is not None:
        return kept
    able = examine(program)
    if able.bubblewrap:
        with suppress(OSError):  # without it the next process tries again
            atomic.make_directory(_path().parent)
            atomic.write(_path(), json.dumps({"key": _key(program), **asdict(able)}).encode(), durable=False)
    return able


def examine(program: str | None) -> Abilities:
    """Try what this machine can enforce."""
    abi = landlock.abi()
    if program is None:
        return Abilities(refusal="bubblewrap is not installed", landlock=abi, is_installed=False)
    refusal = ""
    for attempt in _ATTEMPTS:
        done = _try(program, *attempt)
        if not done:
            return Abilities(program, "", *attempt, abi)
        refusal = refusal or done
    return Abilities("", f"bubblewrap does not work here ({refusal})", landlock=abi)


def choose_mode(wanted: Mode, able: Abilities) -> Mode:
    """Return the mode for what was requested; Refused if this machine cannot enforce it. Pure."""
    if wanted in (Mode.NONE, Mode.CONTAINER):
        return wanted  # the engine of a container is found with its image (`container.ready`)
    if wanted in (Mode.AUTO, Mode.BUBBLEWRAP) and able.bubblewrap:
        return Mode.BUBBLEWRAP
    if wanted is Mode.LANDLOCK and able.landlock:
        return Mode.LANDLOCK
    lack = "Landlock is not enabled in this kernel" if wanted is Mode.LANDLOCK else able.refusal
    others = "set mode = \"none\" in [sandbox] of config.toml"
    if wanted is Mode.AUTO and able.landlock:
        others = ("pass `--sandbox landlock`, which leaves gaps (`garrison doctor --sandbox` lists them); mode = "
                  "\"landlock\" or \"none\" in [sandbox] of config.toml keeps a choice")
    raise Refused(f"no sandbox: {lack}; {remedy(able)}, or {others}")


def held_mode(place: Place | None) -> Mode:
    """Return the mode that confines what runs in a place, `none` without one; Refused if this machine cannot enforce
    it."""
    return Mode.NONE if place is None else mode_here(place.rights.mode)


def mode_here(wanted: Mode) -> Mode:
    """Return the mode for what was requested on this machine; nothing is tried for `none`."""
    return wanted if wanted in (Mode.NONE, Mode.CONTAINER) else choose_mode(wanted, machine())


def describe_mode(mode: Mode, able: Abilities | None) -> str:
    """Return the mode in force and its gaps. Pure."""
    if mode is Mode.CONTAINER:
        return "container"
    if mode is Mode.NONE or able is None:
        return "none (it can do whatever you can)"
    if mode is Mode.LANDLOCK:
        why = f"; {able.refusal}: {remedy(able)}" if able.refusal else ""
        return f"landlock {able.landlock}, which leaves gaps (`garrison doctor --sandbox` lists them){why}"
    return "bubblewrap" if able.has_own_proc else \
        "bubblewrap, with a gap: the names and command lines of processes outside are visible (/proc is shared)"


def remedy(able: Abilities) -> str:
    """Return how to make bubblewrap work, as a command if possible."""
    if not able.bubblewrap and not able.is_installed:
        return f"install it with `{install_command('bubblewrap')}`"
    sudo = "" if os.geteuid() == 0 else "sudo "
    for name, value in _SWITCHES.items():
        with suppress(OSError, ValueError):
            if (int(Path("/proc/sys", name.replace(".", "/")).read_text()) == 0) is (value != "0"):
                return f"allow user namespaces: `{sudo}sysctl -w {name}={value}`"
    return "allow user namespaces to this user"


def _try(program: str, has_own_proc: bool, can_forbid_namespaces: bool, can_name_host: bool) -> str:
    """Return why bubblewrap cannot build such a sandbox, '' if it can."""
    proc = ("--proc", "/proc") if has_own_proc else ("--ro-bind", "/proc", "/proc")
    words = [program, *NAMESPACES, "--unshare-net", *(("--disable-userns",) if can_forbid_namespaces else ()),
             "--die-with-parent", "--new-session", "--cap-drop", "ALL", *(HOST_NAME if can_name_host else ()),
             "--ro-bind", "/", "/", "--dev", "/dev", *proc,
             "--", "/bin/true"]
    done = run(words, _TIMEOUT)
    return "" if done.ok else done.last_error


def _read_kept(program: str | None) -> Abilities | None:
    """Return the stored result of this boot, user, namespaces and installed program."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        body = json.loads(_path().read_text())
        if body.pop("key") == _key(program):
            return Abilities(**body)
    return None


def _path() -> Path:
    return homes_list().with_name("sandbox.json")


def _key(program: str | None) -> list[str]:
    # In a container, or in the user's own sandbox, the same boot and user have other restrictions.
    namespaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt", "pid", "net")]
    changed = "" if program is None else str(Path(program).stat().st_mtime_ns)
    return [processes.boot_id(), str(os.geteuid()), program or "", changed, *namespaces]


# ---- Summary of a run's sandbox: the line that launch and status show, and the refusal of a mode that cannot be
# enforced.


MISSING, READ_ONLY = "No such file or directory", "Read-only file system"
NAMES = {Role.SETUP: "set-up", Role.ACCEPTANCE: "acceptance", Role.GATE: "the gate", Role.TOOL: "tools"}
_LISTS = ("read", "write", "hide")


class Summary(Value):
    """Modes that apply to some agents and roles."""

    words: str
    """The modes, and their gaps."""
    modes: list[str]
    gaps: bool
    """True if there are gaps."""

    @property
    def line(self) -> str:
        return f"sandbox: {self.words}"


def summarize_sandbox(home: Path, agents: Iterable[str], environ: Mapping[str, str],
                      roles: Iterable[Role] = NAMES, git: Git | None = None) -> Summary:
    """Return which modes apply to these agents and roles; Refused if this machine cannot enforce one.

    Args:
        git: repository whose devcontainer.json is used if no image is named.
    """
    found = [(who, rights if git is None else with_devcontainer(rights, git))
             for who, rights in _rights(home, agents, environ, roles)]
    held = {who: _choose(who, rights) for who, rights in found}
    modes = set(held.values())
    able = machine() if modes - {Mode.NONE, Mode.CONTAINER} else None
    images = dict.fromkeys(rights.image for _, rights in found if rights.mode is Mode.CONTAINER)
    engines = [f"{image}, run by {Path(container.ready(image).program).name}" for image in images]
    words = describe_modes(held, able) + (f" of {' and '.join(engines)}" if engines else "")
    return Summary(words, sorted(modes),
                   not all(mode.mounts for mode in modes) or (able is not None and not able.has_own_proc))


def missing_path_notes(home: Path, agents: Iterable[str], environ: Mapping[str, str],
                       roles: Iterable[Role] = NAMES) -> Iterator[str]:
    """Yield a line for each missing path in the rights of these agents and roles."""
    missing: dict[tuple[str, Path], list[str]] = {}
    for who, rights in _rights(home, agents, environ, roles):
        for key, paths in zip(_LISTS, (rights.read, rights.write, rights.hide), strict=True):
            for path in paths if rights.mode is not Mode.NONE else ():
                if not os.path.lexists(path):
                    missing.setdefault((key, path), []).append(who)
    for (key, path), users in missing.items():
        yield (f"{key} = [...] of {', '.join(users)} names {path}, which does not exist: "
               + ("the path to hide is misspelt or does not exist yet" if key == "hide" else
                  "it is missing in the sandbox; create it, or correct config.toml"))


def _rights(home: Path, agents: Iterable[str], environ: Mapping[str, str],
            roles: Iterable[Role]) -> Iterator[tuple[str, Rights]]:
    """Yield who has which rights."""
    for agent in sorted(agents):
        yield f"agent {agent}", read_rights(home, Role.AGENT, agent, environ)
    for role in roles:
        yield NAMES[role], read_rights(home, role, "", environ)


_PROGRAMS = (
    re.compile(r"^(?:\S*sh|pyenv|\S+(?=: (?:line )?\d+:))(?:: (?:line )?\d+)?: ([\w.+@-]+): (?:command )?not found$",
               re.MULTILINE),
    re.compile(r"^(?:zsh: command not found: |fish: Unknown command: )([\w.+@-]+)$", re.MULTILINE),
    re.compile(r"^(?:\S*/)?(?:env|nice|nohup|time|xargs|setsid|make\S*|bwrap: execvp|timeout: failed to run command)"
               r":? [\u2018']?([\w.+@-]+)[\u2019']?: No such file", re.MULTILINE),
)
"""Lines in which a shell, env, make and the like report which program they did not find."""
_FILES = re.compile(r"(?<![^\s:'\"\u2018\u2019])(/[^\s:'\"\u2018\u2019]+)['\"\u2019]?: No such file"
                    r"|No such file or directory: ['\"](/[^'\"\n]+)['\"]")
_MAX_TAIL = 8_000
"""Characters of an output that are searched for a missing file."""
_BUILTINS = frozenset({"cd", "echo", "test", "true", "false", "exit", ":", "[", "set", "export", "printf", ".",
                       "source", "exec", "if", "then", "else", "fi", "for", "do", "done", "while", "case", "esac", "!",
                       "umask"})


_LOCAL = re.compile(r"(?i)(?:localhost|127\.0\.0\.1|\[?::1).{0,80}(?:refused|n't connect|unable to connect)"
                    r"|ECONNREFUSED (?:127\.0\.0\.1|::1)")
"""Lines in which a client reports that nothing listens on the loopback device."""


def explain_missing_file(rights: Rights, table: str, end: End, tail: str, path: str, command: str = "") -> str:
    """Return which program, file or writable folder a command missed, and how to provide it; else ''.

    Args:
        tail: end of its output.
        path: PATH outside, to search for programs.
        command: shell line that ran, for an output that names nothing.
    """
    tail = tail[-_MAX_TAIL:]
    if end.code != 0 and rights.mode is not Mode.NONE and rights.network is not Network.OPEN and _LOCAL.search(tail):
        return (f"; a sandbox has its own localhost: host_ports = [PORT] in [{table}] of config.toml forwards to your "
                "machine's")
    is_told = end.kind is EndKind.NOT_RUN or any(sign in tail for sign in (MISSING, READ_ONLY, "not found"))
    if end.code == 0 or not is_told:
        return ""
    programs = list(dict.fromkeys(name for pattern in _PROGRAMS for name in pattern.findall(tail)))
    if end.code == NOT_FOUND and not programs:
        programs = [name for name in dict.fromkeys(named_programs(command)) if "/" not in name
                    and name not in _BUILTINS and shutil.which(name, path=path) is None]
    absent = [name for name in programs if shutil.which(name, path=path) is None]
    if absent:
        return (f"; {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not on your PATH, and no set-up "
                "installed it")
    if rights.mode is Mode.NONE:
        return ""
    if READ_ONLY in tail:
        return ("; it can write only in its worktree, its home and /tmp: add other folders to write = [...] in "
                f"[{table}] of config.toml")
    files = [name for found in _FILES.findall(tail) for name in found if name and os.path.lexists(name)]
    hidden = [*(str(shutil.which(name, path=path)) for name in programs), *files][:1]
    if not hidden and end.kind is not EndKind.NOT_RUN:
        return ""
    what = f"its sandbox does not show {hidden[0]}" if hidden else "if it needs more than its sandbox shows"
    return f"; {what}{':' if hidden else ','} add the path to read = [...] in [{table}] of config.toml"


def describe_modes(held: Mapping[str, Mode], able: Abilities | None) -> str:
    """Return the line about the modes in force; `held` says which applies to what. The most common comes first.
    Pure."""
    by_mode: dict[Mode, list[str]] = {}
    for who, mode in held.items():
        by_mode.setdefault(mode, []).append(who)
    main, *others = sorted(by_mode, key=lambda mode: -len(by_mode[mode]))
    line = describe_mode(main, able)
    return "".join([line, *(f"; {', '.join(by_mode[mode])}: {describe_mode(mode, able)}" for mode in others)])


def _choose(who: str, rights: Rights) -> Mode:
    try:
        if rights.mode is Mode.CONTAINER:
            container.at_launch(rights.image)
        return mode_here(rights.mode)
    except Refused as error:
        raise Refused(f"{who}: {error}") from error
