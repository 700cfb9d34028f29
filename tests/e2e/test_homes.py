"""One launch and its landing with default settings, with a set-up, for a user whose HOME lies where users' homes lie.

Each row runs in mount and process namespaces of its own: scratch folders are bound over /home, /srv, /var/tmp and
/root, and a file of the test over /etc/passwd, so that nothing of the machine changes.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from garrison.sandbox.probe import machine
from installed import FOLDER
from support import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
UID = 4711
HOMES = {"home": "/home/user", "srv": "/srv/people/user", "var-tmp": "/var/tmp/user", "root": "/root",
         "link": "/home/link", "odd": "/home/Zoë von Ü"}
"""Kind → HOME; `link` is a symbolic link to a folder below /srv."""
COVERED = ("/home", "/srv", "/var/tmp", "/root")
"""Folders over which scratch ones are bound; /root last, for the test's own files may lie in it."""


class Row(NamedTuple):
    """A user and the HOME of that user."""

    kind: str
    user: str
    mode: str
    umask: str


ROWS = [Row(*values) for values in itertools.product(HOMES, ("root", "user"), ("0755", "0750", "0700"), ("022", "077"))
        if values[:2] != ("root", "user")]
SHORT = (Row("home", "user", "0700", "022"), Row("srv", "user", "0755", "077"), Row("var-tmp", "user", "0750", "022"),
         Row("root", "root", "0700", "022"), Row("link", "user", "0750", "077"), Row("odd", "root", "0750", "022"))
"""Rows of `scripts/test --full`: each place, user, mode and umask."""

BIND = """set -e
for folder in $COVERED; do mkdir -p "$SCRATCH$folder"; chmod 755 "$SCRATCH$folder"; done
chmod 1777 "$SCRATCH/var/tmp"
for needed in $NEEDED; do
  case $needed in
    /home/*|/srv/*|/var/tmp/*|/root/*) mkdir -p "$SCRATCH$needed"; mount --bind "$needed" "$SCRATCH$needed"
  esac
done
real=$HOME
if test "$KIND" = link; then mkdir -p "$SCRATCH/srv/real"; ln -s /srv/real "$SCRATCH$HOME"; real=/srv/real; fi
mkdir -p "$SCRATCH$real"; chown "$OWNER:$OWNER" "$SCRATCH$real"; chmod "$MODE" "$SCRATCH$real"
printf 'root:x:0:0::/root:/bin/sh\\nuser:x:%s:%s::%s:/bin/sh\\n' $OWNER $OWNER "$HOME" > "$SCRATCH/passwd"
mount --bind "$SCRATCH/passwd" /etc/passwd
for folder in $COVERED; do if test -d $folder; then mount --rbind "$SCRATCH$folder" $folder; fi; done
exec setpriv --reuid=$OWNER --regid=$OWNER --clear-groups env -i HOME="$HOME" PATH="$PATH" LANG=C.UTF-8 sh -c "$PLAY"
"""
PLAY = """set -e
umask UMASK
mkdir ~/project; cd ~/project
git init -q -b main
git config user.name User; git config user.email user@example.org
echo 'built/' > .gitignore; echo 1 > one.txt; git add -A; git commit -qm Begin
mkdir -p ~/.local/state/garrison ~/.cache/shared
echo mine > ~/.cache/shared/file
cat > ~/.local/state/garrison/config.toml <<'END'
[launch]
agent = "double"
[agents.double]
read = ["~/.cache/shared"]
argv = ["sh", "-c", "cd ~/.cache; cat */made */file > mine; rm tool/made; cd -; cat built/made ~/.cache/mine > two.txt"]
END
garrison run "Say hi" --setup 'mkdir -p ~/.cache/tool built; echo home | tee ~/.cache/tool/made > built/made' \
  --gate 'test -f one.txt && grep -q home built/made ~/.cache/tool/made && touch ~/.cache/gate'
test "$(cat two.txt | tr '\\n' ' ')" = "home home mine "
test "$(git status --porcelain)" = ""
count=0
while grep -qa '[g]arrison.processes.main' /proc/[0-9]*/cmdline; do
  count=$((count + 1)); test $count -lt 300; sleep 0.1
done
echo landed
"""


@cache
def refusal(user: str) -> str:
    """Return why rows of this user cannot run on this machine; '' if they can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return "binding folders over /home needs root, unshare and setpriv"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        return "mount namespaces are not allowed here"
    if not machine().bubblewrap:
        return machine().refusal
    inside = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    own = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"] if user == "user" else []
    tried = subprocess.run([*own, *inside], check=False, capture_output=True, text=True)
    return f"no sandbox for ordinary users here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.parametrize("row", [pytest.param(row, id="-".join(row), marks=() if row in SHORT else pytest.mark.slow)
                                 for row in ROWS])
def test_a_task_lands_whatever_the_home(row: Row, tmp_path: Path) -> None:
    """Seen: "Can't mkdir parents for ~/.cache/garrison", in every repository with a set-up."""
    if why := refusal(row.user):
        pytest.skip(why)
    needed = " ".join(map(shlex.quote, dict.fromkeys((sys.base_prefix, str(ROOT), sys.prefix))))
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
         "sh", "-c", BIND], check=False, capture_output=True, text=True, timeout=DEADLINE, cwd="/",
        env={"PATH": f"{FOLDER}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": HOMES[row.kind],
             "KIND": row.kind, "MODE": row.mode, "OWNER": "0" if row.user == "root" else str(UID),
             "COVERED": " ".join(COVERED), "NEEDED": needed, "SCRATCH": str(tmp_path),
             "PLAY": PLAY.replace("UMASK", row.umask)})
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["landed"]), done.stdout + done.stderr
