"""Escapes: what a confined process might try to reach outside its place, and which modes block it. Pure data.

Each is tried by `escape_attempts.py` inside a real sandbox, for `garrison doctor --sandbox`.
"""

from __future__ import annotations

from enum import StrEnum

from garrison.sandbox.place import Abilities, Mode, Network
from garrison.system import seccomp
from garrison.values import Value

_BOTH = frozenset({Mode.BUBBLEWRAP, Mode.LANDLOCK})
_ONLY_BUBBLEWRAP = frozenset({Mode.BUBBLEWRAP})


class EscapeResult(StrEnum):
    """Result of an attempted escape."""

    REFUSED = "refused"
    NOT_PROMISED = "not held"
    """It succeeded, and the mode does not promise to block it."""
    ESCAPED = "ESCAPED"


class Escape(Value):
    """Something that a confined process tries; `key` names it in `escape_attempts.py`."""

    key: str
    text: str
    refused_by: frozenset[Mode] = _BOTH
    is_network: bool = False
    """True if an open network allows it."""


SEE_PROCESS = "see_process"
ESCAPES = (
    Escape("write_sibling", "write into another worktree"),
    Escape("read_sibling", "read another worktree"),
    Escape("write_home", "write into garrison's home"),
    Escape("read_home", "read garrison's home"),
    Escape("write_user", "write into the user's home"),
    Escape("read_user", "read the user's home"),
    Escape("write_attempt", "write or move garrison's files next to the one folder that it may write"),
    Escape("link_out", "write through a symbolic link that points outside"),
    Escape("write_setup", "change what a set-up left for other worktrees"),
    Escape("write_system", "write into a system folder"),
    Escape("git_link", "put links into the repository's objects, branches and logs"),
    Escape("git_settings", "write what the repository's git obeys (commondir, configuration of modules and worktrees)"),
    Escape("git_hook", "plant a hook"),
    Escape("git_branch", "move another branch"),
    Escape("git_secret", "read a token in the repository's configuration"),
    Escape("git_submodule", "make garrison fetch a submodule from its own address"),
    Escape("git_obeyed", "make garrison's git obey a repository, or be a program, in the worktree"),
    Escape("read_shadow", "read the passwords' file"),
    Escape("read_token", "read a token that a package manager keeps next to its programs"),
    Escape("lock", "hold the lock of a package manager, so that the user's own waits"),
    Escape("rights", "leave files that garrison has no permission to remove"),
    Escape("descriptors", "open so many files that garrison cannot pass any"),
    Escape(SEE_PROCESS, "see a process outside", _ONLY_BUBBLEWRAP),
    Escape("signal_process", "signal a process outside"),
    Escape("read_environment", "read the environment of a process outside", _ONLY_BUBBLEWRAP),
    Escape("process_root", "reach files through /proc/PID/root of a process outside", _ONLY_BUBBLEWRAP),
    Escape("trace_process", "trace a process outside"),
    Escape("unix_socket", "connect to a Unix socket outside", _ONLY_BUBBLEWRAP),
    Escape("terminal_server", "reach the tmux server of garrison's home"),
    Escape("abstract_socket", "connect to an abstract socket outside", _BOTH, is_network=True),
    Escape("tcp", "connect to a server outside on the loopback device", _BOTH, is_network=True),
    Escape("mount", "mount a file system"),
    Escape("user_namespace", "create a user namespace"),
    Escape("capabilities", "have capabilities"),
    Escape("new_privileges", "gain privileges by a setuid program"),
    Escape("set_user_id", "create a set-user-id program of the user"),
    Escape("priority", "lower the priority of a process outside"),
    Escape("lease", "hold a lease, so that the user's programs wait"),
    Escape("keys", "use up the user's quota of keys"),
    Escape("virtual_socket", "talk to the host of this virtual machine"),
    Escape("kernel_setting", "change a setting of the kernel"),
    Escape("cgroup", "move into another control group"),
    Escape("device", "open a disk or the kernel's memory"),
    Escape("terminal", "type into a terminal (TIOCSTI)"),
    Escape("other_terminal", "open another terminal of the user"),
    Escape("daemon", "leave a process running", _ONLY_BUBBLEWRAP),
)


def judge(escape: Escape, succeeded: bool, mode: Mode, network: Network, able: Abilities) -> EscapeResult:
    """Return the result of an attempt for a mode, by its promise and the machine's abilities. Pure."""
    if not succeeded:
        return EscapeResult.REFUSED
    if mode not in escape.refused_by or (escape.is_network and network is Network.OPEN):
        return EscapeResult.NOT_PROMISED
    by_calls = _BY_CALLS if mode is Mode.BUBBLEWRAP else (*_BY_CALLS, *_BY_LANDLOCKS_CALLS)
    is_gap = (escape.key in by_calls and not seccomp.is_known()) or (
        able.landlock < _NEEDED_ABI.get(escape.key, 1) if mode is Mode.LANDLOCK else
        escape.key == SEE_PROCESS and not able.has_own_proc)
    return EscapeResult.NOT_PROMISED if is_gap else EscapeResult.ESCAPED


_BY_CALLS = ("lease", "keys", "virtual_socket")
_BY_LANDLOCKS_CALLS = ("user_namespace", "set_user_id", "priority")
_NEEDED_ABI = {"tcp": 4, "abstract_socket": 6, "signal_process": 6}
"""Escape → Landlock's ABI that blocks it."""
