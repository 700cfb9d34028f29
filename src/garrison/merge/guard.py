"""Guard: a reference-transaction hook that lets only the queue move its target. Opt-in.

Our hook calls the user's own hooks and respects their result; removing the guard restores the previous hook. The guard
prevents mistakes, not intent: git can skip hooks. Such a move makes the next swap fail; it is recorded as `foreign`,
and entries tested on the old tip are tested again.

`<git common dir>/garrison/guarded` lists the guarded branches, one full ref a line. The hook is installed in the
repository's `hooks`, and a hook of the user is renamed to `….before-garrison`. If `core.hooksPath` is set, nothing is
written there: git is pointed to a directory of ours, whose hooks call the user's.
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
"""Hooks for which git treats "absent" and "succeeds" alike; others are linked only if the user has them."""


def install(git: Git, ref: str) -> None:
    """Guard `ref`; Refused if git would not find the hook."""
    with _guarded_list(git) as path:
        # The hook before the list: a hook without its list lets everything pass; a list without the hook would be a
        # false promise.
        if configured_hooks_path(git):
            _point_to_ours(git)
        else:
            _replace_hook(git.common / "hooks" / NAME)
        refs = _read_refs(path)
        if ref not in refs:
            atomic.write(path, "".join(f"{each}\n" for each in [*refs, ref]).encode())


def uninstall(git: Git, ref: str) -> None:
    """Stop guarding `ref`; after the last guarded ref, restore the original hooks."""
    with _guarded_list(git) as path:
        # the list first: then the hook lets everything pass, even if a kill interrupts the rest
        refs = [each for each in _read_refs(path) if each != ref]
        if refs:
            atomic.write(path, "".join(f"{each}\n" for each in refs).encode())
            return
        path.unlink(missing_ok=True)
        _point_back(git)
        hook = git.common / "hooks" / NAME
        if is_ours(hook):
            if _users(hook).exists():
                _users(hook).replace(hook)
            else:
                hook.unlink()


def list_requested(git: Git) -> list[str]:
    """Return the refs to guard."""
    return _read_refs(_list_path(git))


def is_requested(git: Git, ref: str) -> bool:
    """Return whether `ref` should be guarded; the hook may be half installed."""
    return ref in _read_refs(_list_path(git))


def is_installed(git: Git, ref: str) -> bool:
    """Return whether `ref` is guarded now."""
    configured = configured_hooks_path(git)
    if configured not in ("", str(our_hooks(git))):
        return False
    hook = (our_hooks(git) if configured else git.common / "hooks") / NAME
    return is_ours(hook) and hook.read_text() == HOOK and is_requested(git, ref)


# ------------------------------------------------------------------------------------------ in the repository's hooks


def _replace_hook(hook: Path) -> None:
    """Replace `hook` by ours; at every moment the user's hook is in its old or new place."""
    hook.parent.mkdir(exist_ok=True)
    if hook.exists() and not is_ours(hook):
        _users(hook).unlink(missing_ok=True)
        _users(hook).hardlink_to(hook)
    _write(hook, HOOK)


def _users(hook: Path) -> Path:
    return hook.with_name(f"{hook.name}.before-garrison")


def _write(hook: Path, text: str) -> None:
    new = hook.with_name(f".{hook.name}.garrison")
    new.write_text(text)
    new.chmod(0o755)
    # rename into place: git may run the hook at any moment
    new.replace(hook)


def is_ours(hook: Path) -> bool:
    """Return whether a hook is the guard."""
    try:
        return _OURS in hook.read_text(errors="replace")
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------- with core.hooksPath


def our_hooks(git: Git) -> Path:
    """Return the directory of hooks to which core.hooksPath points while a branch is guarded."""
    return git.common / "garrison" / "hooks"


def configured_hooks_path(git: Git) -> str:
    """Return the folder of hooks that the repository is configured to use, '' if none is named."""
    known = git.settings()
    if known and all(each.key != _PATH.lower() for each in known):
        return ""  # else only git can expand `~user/`
    return git.run("config", "--type=path", "--get", _PATH, check=False, hooks=True).out.strip()


def _local_hooks_path(git: Git) -> str:
    return git.run("config", "--local", "--get", _PATH, check=False, hooks=True).out.strip()


def _point_to_ours(git: Git) -> None:
    """Point core.hooksPath to our hooks. The repository's own setting is saved in `.local`, to be restored."""
    ours, configured = our_hooks(git), configured_hooks_path(git)
    atomic.make_directory(ours)
    if configured != str(ours):
        # save before changing git's configuration: a kill in between must not lose the user's setting
        local = _local_hooks_path(git)
        atomic.write(ours / ".local", f"{local}\n".encode() if local else b"")
        atomic.write(ours / ".before", f"{configured}\n".encode())
    before = (atomic.read(ours / ".before") or b"").decode().strip()
    theirs = (git.root / before).glob("*") if before else ()
    for name in {*_CALLED, *(path.name for path in theirs if path.is_file())}:
        _write(ours / name, CALL)
    _write(ours / NAME, HOOK)
    git.run("config", "--local", _PATH, str(ours))
    if configured_hooks_path(git) != str(ours):
        _point_back(git)
        raise Refused(f"core.hooksPath is set for this worktree alone ({configured}), so git would not find the guard; "
                      "set it for the whole repository (`git config --local`), or do not use the guard")


def _point_back(git: Git) -> None:
    """Undo `_point_to_ours`, unless the setting was changed since."""
    ours = our_hooks(git)
    if _local_hooks_path(git) == str(ours):
        local = (atomic.read(ours / ".local") or b"").decode().strip()
        if local:
            git.run("config", "--local", _PATH, local)
        else:
            git.run("config", "--local", "--unset-all", _PATH)
    shutil.rmtree(ours, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------ the list


def _list_path(git: Git) -> Path:
    return git.common / "garrison" / "guarded"


def _read_refs(path: Path) -> list[str]:
    return (atomic.read(path) or b"").decode().splitlines()


@contextmanager
def _guarded_list(git: Git) -> Iterator[Path]:
    """Lock the list of guarded refs."""
    path = _list_path(git)
    atomic.make_directory(path.parent)
    with atomic.locked(path.with_name("guarded.lock")):
        yield path
