"""A small boundary for tests of what is mounted into the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from garrison.sandbox.place import Mount

BARE = ("--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--symlink", "usr/bin", "/bin", "--symlink",
        "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin")


def missing() -> str:
    """Return why no boundary can be made on this machine, '' if one can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    probe = subprocess.run(["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"no user namespace can be made: {probe.stderr.decode().strip()}"


def run_inside(worktree: Path, mounts: Sequence[Mount], script: str, *, env: Mapping[str, str] | None = None,
               check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a bash script in the worktree, where only system files, the worktree and the mounts exist."""
    argv = ["bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", *BARE,
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--bind", str(worktree),
            str(worktree)]
    for mount in mounts:
        argv += ["--bind" if mount.writable else "--ro-bind", str(mount.source), str(mount.target)]
    variables = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8", **(env or {})}
    done = subprocess.run([*argv, "--chdir", str(worktree), "--", "bash", "-euc", script], env=variables, text=True,
                          capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done
