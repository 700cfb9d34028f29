"""The guard: a reference-transaction hook that keeps everybody but the queue from moving its target. Opt-in.

The rules of this room: the user's own hooks go on as before, called by ours, and what they say counts; what stood there
stands there again when the guard goes. It keeps mistakes out, not intent: git can be told to run no hooks. Such a move
is noticed by the swap that fails, recorded as `foreign`, and what was tested on the old tip is tested again.

Which branches are guarded stands in `<git common dir>/garrison/guarded`, one full ref a line. The hook takes its place
in the repository's `hooks`, and one of the user's waits beside it as `….before-garrison`. If `core.hooksPath` is set,
nothing is written there: git is pointed to a directory of ours, which calls the user's hook of each name.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.merge.target import LANDING
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.system.git import Git

NAME = "reference-transaction"
_OURS = "# garrison's guard"
_PATH = "core.hooksPath"
HOOK = f"""#!/bin/sh
{_OURS}: only a merge queue moves the branches it lands on. `garrison merge-queue config --no-guard` takes it out.
told=$(cat)
common=$(git rev-parse --git-common-dir)
guarded=$common/garrison/guarded
code=0
if [ "$1" = prepared ] && [ -s "$guarded" ]; then
    while read -r old new ref; do
        grep -qxF -e "$ref" "$guarded" || continue
        [ "${LANDING}" = "$ref" ] && continue
        # pack-refs: the same value is written to another place, and then its own file goes, with no lock on that place
        [ "$(git rev-parse -q --verify "$ref")" = "$new" ] && continue
        case $new in *[!0]*) ;; *)
            [ ! -e "$common/packed-refs.lock" ] && grep -qxF -e "$old $ref" "$common/packed-refs" && continue
        esac
        echo "garrison: a merge queue lands on $ref; put your branch in it: garrison merge-queue enqueue NODE BRANCH"
        code=1
    done >&2 <<END
$(printf '%s\\n' "$told" | grep -F -f "$guarded")
END
fi
[ $code = 0 ] || exit $code
next=$0.before-garrison
[ ! -r "${{0%/*}}/.before" ] || {{ read -r before < "${{0%/*}}/.before"; next=$before/{NAME}; }}
[ -x "$next" ] || exit 0
printf '%s' "${{told:+$told
}}" | "$next" "$@"
"""
CALL = """#!/bin/sh
# Calls your own hook of this name: core.hooksPath points here while garrison guards a branch.
read -r before < "${0%/*}/.before" || exit 0
[ -x "$before/${0##*/}" ] || exit 0
exec "$before/${0##*/}" "$@"
"""
_CALLED = ("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "commit-msg",
           "prepare-commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive",
           "update", "post-receive", "post-update", "pre-auto-gc", "post-rewrite", "post-index-change")
"""Hooks of which git does the same whether they are absent or say nothing; others are called if they are there."""


def install(git: Git, ref: str) -> None:
    """Guard `ref`. Refused where git would not look for the hook."""
    with _list(git) as path:
        if _hooks_path(git):
            _point(git)
        else:
            _stand_in(git.common / "hooks" / NAME)
        refs = _refs(path)
        if ref not in refs:
            atomic.write(path, "".join(f"{one}\n" for one in [*refs, ref]).encode())


def uninstall(git: Git, ref: str) -> None:
    """Guard `ref` no more; with the last one the hook goes, and all is as it was before the first."""
    with _list(git) as path:
        refs = [one for one in _refs(path) if one != ref]
        if refs:
            atomic.write(path, "".join(f"{one}\n" for one in refs).encode())
            return
        path.unlink(missing_ok=True)
        _point_back(git)
        hook = git.common / "hooks" / NAME
        if _is_ours(hook):
            if _before(hook).exists():
                _before(hook).replace(hook)
            else:
                hook.unlink()


def is_requested(git: Git, ref: str) -> bool:
    """Whether somebody wants `ref` guarded; half of it may stand."""
    return ref in _refs(_path(git))


def is_installed(git: Git, ref: str) -> bool:
    """Whether `ref` is guarded now."""
    told = _hooks_path(git)
    if told not in ("", str(_own(git))):
        return False
    hook = (_own(git) if told else git.common / "hooks") / NAME
    return _is_ours(hook) and hook.read_text() == HOOK and is_requested(git, ref)


# ------------------------------------------------------------------------------------------ in the repository's hooks


def _stand_in(hook: Path) -> None:
    """Take the place of `hook`; there is no moment at which the user's is in neither place."""
    hook.parent.mkdir(exist_ok=True)
    if hook.exists() and not _is_ours(hook):
        _before(hook).unlink(missing_ok=True)
        _before(hook).hardlink_to(hook)
    _write(hook, HOOK)


def _before(hook: Path) -> Path:
    return hook.with_name(f"{hook.name}.before-garrison")


def _write(hook: Path, text: str) -> None:
    new = hook.with_name(f".{hook.name}.garrison")
    new.write_text(text)
    new.chmod(0o755)
    new.replace(hook)


def _is_ours(hook: Path) -> bool:
    try:
        return _OURS in hook.read_text(errors="replace")
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------- with core.hooksPath


def _own(git: Git) -> Path:
    return git.common / "garrison" / "hooks"


def _hooks_path(git: Git) -> str:
    """Where git is told to look for hooks, empty if it is not told."""
    return git.run("config", "--type=path", "--get", _PATH, check=False, hooks=True).out.strip()


def _point(git: Git) -> None:
    """Have git look for hooks with us first. What the repository itself said is kept in `.local`, to be said again."""
    own, told = _own(git), _hooks_path(git)
    atomic.make_directory(own)
    if told != str(own):
        local = git.run("config", "--local", "--get", _PATH, check=False, hooks=True).out.strip()
        atomic.write(own / ".local", f"{local}\n".encode() if local else b"")
        atomic.write(own / ".before", f"{told}\n".encode())
    before = (atomic.read(own / ".before") or b"").decode().strip()
    theirs = (git.root / before).glob("*") if before else ()
    for name in {*_CALLED, *(path.name for path in theirs if path.is_file())}:
        _write(own / name, CALL)
    _write(own / NAME, HOOK)
    git.run("config", "--local", _PATH, str(own))
    if _hooks_path(git) != str(own):
        _point_back(git)
        raise Refused(f"core.hooksPath is set for this worktree alone ({told}), so git would not find the guard; set "
                      "it for the whole repository (`git config --local`), or leave the guard out")


def _point_back(git: Git) -> None:
    """Undo `_point`, unless somebody has said something else since."""
    own = _own(git)
    if git.run("config", "--local", "--get", _PATH, check=False, hooks=True).out.strip() == str(own):
        local = (atomic.read(own / ".local") or b"").decode().strip()
        if local:
            git.run("config", "--local", _PATH, local)
        else:
            git.run("config", "--local", "--unset-all", _PATH)
    shutil.rmtree(own, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------ the list


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
