"""The guard: a reference-transaction hook that keeps everybody but the queue from moving its target. Opt-in.

The rules of this room: a hook of the user's is never touched, nor a hooks directory that is not the repository's own;
then the guard is refused with what to do. It keeps mistakes out, not intent: git can be told to run no hooks. Such a
move is noticed by the swap that fails, recorded as `foreign`, and what was tested on the old tip is tested again.
Which branches are guarded stands in `<git common dir>/garrison/guarded`, one full ref a line.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.merge.target import LANDING
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.system.git import Git

NAME = "reference-transaction"
_OURS = "# garrison's guard"
HOOK = f"""#!/bin/sh
{_OURS}: only a merge queue moves the branches it lands on. `garrison merge-queue config --no-guard` takes it out.
[ "$1" = prepared ] || exit 0
common=$(git rev-parse --git-common-dir)
guarded=$common/garrison/guarded
[ -s "$guarded" ] || exit 0
code=0
while read -r old new ref; do
    grep -qxF -e "$ref" "$guarded" || continue
    [ "${LANDING}" = "$ref" ] && continue
    # pack-refs: the same value is written to another place, and then its own file goes, with no lock on that place
    [ "$(git rev-parse -q --verify "$ref")" = "$new" ] && continue
    case $new in *[!0]*) ;; *)
        [ ! -e "$common/packed-refs.lock" ] && grep -qxF -e "$old $ref" "$common/packed-refs" && continue
    esac
    echo "garrison: a merge queue lands on $ref; put your branch in it: garrison merge-queue enqueue NODE BRANCH" >&2
    code=1
done
exit $code
"""


def put_up(git: Git, ref: str) -> None:
    """Guard `ref`. Refused where the hook cannot be ours."""
    hook = _hook(git)
    with _list(git) as path:
        _write(hook)
        refs = _refs(path)
        if ref not in refs:
            atomic.write(path, "".join(f"{one}\n" for one in [*refs, ref]).encode())


def take_down(git: Git, ref: str) -> None:
    """Guard `ref` no more; the hook goes with the last one."""
    with _list(git) as path:
        refs = [one for one in _refs(path) if one != ref]
        if refs:
            atomic.write(path, "".join(f"{one}\n" for one in refs).encode())
            return
        path.unlink(missing_ok=True)
        hook = git.common / "hooks" / NAME
        if _is_ours(hook):
            hook.unlink()


def stands(git: Git, ref: str) -> bool:
    """Whether `ref` is guarded now."""
    hook = git.common / "hooks" / NAME
    return _is_ours(hook) and hook.read_text() == HOOK and ref in _refs(_path(git))


def _hook(git: Git) -> Path:
    """Where the hook goes; Refused if that is somebody else's."""
    told = git.run("config", "--get", "core.hooksPath", check=False, hooks=True).out.strip()
    if told:
        raise Refused(f"core.hooksPath is {told}, and git looks for hooks only there; garrison does not write into it, "
                      "so unset it or leave the guard out")
    hook = git.common / "hooks" / NAME
    if hook.exists() and not _is_ours(hook):
        raise Refused(f"{hook} is a hook of your own, which garrison leaves as it is; move it away, or leave the guard "
                      "out")
    return hook


def _write(hook: Path) -> None:
    hook.parent.mkdir(exist_ok=True)
    new = hook.with_name(f".{NAME}.garrison")
    new.write_text(HOOK)
    new.chmod(0o755)
    new.replace(hook)


def _is_ours(hook: Path) -> bool:
    try:
        return _OURS in hook.read_text(errors="replace")
    except OSError:
        return False


def _path(git: Git) -> Path:
    return git.common / "garrison" / "guarded"


def _refs(path: Path) -> list[str]:
    return (atomic.read(path) or b"").decode().splitlines()


@contextmanager
def _list(git: Git) -> Iterator[Path]:
    path = _path(git)
    atomic.make_directory(path.parent)
    with atomic.locked(path.with_name("guarded.lock")):
        yield path
