"""What a set-up leaves in a worktree, kept apart from work.

The rule of this room: a directory that only the set-up made (an environment, installed modules) is nobody's work. It
says so itself, with a `.gitignore` of one `*`, so that neither our commit of leftovers, nor a rescue, nor an agent's
own `git add -A` takes it along, and no setting of the user's repository is touched.
"""

from __future__ import annotations

from pathlib import Path

from garrison.system.git import Git

_EVERYTHING = "\n*\n"


def hide_untracked(git: Git, tree: Path) -> list[str]:
    """Make git ignore each directory of `tree` that holds nothing tracked; their names, each with a final slash.

    Untracked files beside tracked ones (a lock file that the set-up wrote) stay visible. GitError, OSError.
    """
    listed = git.run("ls-files", "--others", "--exclude-standard", "--directory",
                     "--no-empty-directory", "-z", cwd=tree).out.split("\0")
    hidden = [name for name in listed if name.endswith("/")]
    for name in hidden:
        with (tree / name / ".gitignore").open("a") as file:
            file.write(_EVERYTHING)
    return hidden
