"""Homes that earlier versions left, with their repository and worktrees; `unpack` puts one anywhere.

Checkouts of these versions made them: `git show 536e9c17:tests/recorded_home/record.py` made `home-0.1.tar.xz` and
lists what is in it, `record_later.py` alongside it made `home-ed856ddb.tar.xz`, in which journals start with snapshots.
The archives have placeholders for what belongs to a machine; `unpack` fills in this machine's values, names the
directories that are named after the repository's path, and computes the checksums of the journals' lines again. This
machine takes the home's processes for those of an earlier boot.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tarfile
import zlib
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).with_name("home-0.1.tar.xz")
LATER = Path(__file__).with_name("home-ed856ddb.tar.xz")
CHECKSUM = b',"crc":"'
# The archives are this project's own. Releases before 3.11.4 know no filter, later ones warn without.
_UNFILTERED: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


def unpack(root: Path, *, repo: Path, home: Path, trees: Path, archive: Path = ARCHIVE) -> None:
    """Put the recorded repository, home and worktrees where they are to be, and the rest into the directory `root`."""
    root = root.resolve()
    moved = {"repo": repo, "home": home, "trees": trees}
    values = {
        **{b"@ROOT@/" + os.fsencode(name): os.fsencode(path) for name, path in moved.items()},
        b"@ROOT@": os.fsencode(root), b"@KEY@": key_of(repo).encode(), b"@HOST@": platform.node().encode(),
        b"@PATH@": os.fsencode(os.environ["PATH"]), b"@BOOT@": b"00000000-0000-4000-8000-000000000000",
        b"@PID_NS@": os.fsencode(Path("/proc/self/ns/pid").readlink())}
    with tarfile.open(archive) as tar:
        for member in tar:
            first, _, rest = member.name.replace("@KEY@", values[b"@KEY@"].decode()).partition("/")
            path = moved.get(first, root / first) / rest
            member.name = path.name
            tar.extract(member, path.parent, **_UNFILTERED)
            if member.isfile():
                fill(path, values)


def key_of(repository: Path) -> str:
    """Return the name of a repository's directories in a home."""
    common = repository / ".git"
    return f"{repository.name}-{hashlib.sha256(os.fsencode(common)).hexdigest()[:8]}"


def fill(path: Path, values: dict[bytes, bytes]) -> None:
    """Put values in the place of placeholders, and right checksums into a journal's changed lines."""
    data = path.read_bytes()
    if not any(name in data for name in values):
        return
    lines = [fill_line(line, values) for line in data.split(b"\n")]
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"\n".join(lines))
    os.utime(path, ns=times)


def fill_line(line: bytes, values: dict[bytes, bytes]) -> bytes:
    """Return a line with its values; the checksum of a journal's is that of all before it, closed by a brace."""
    for name, value in values.items():
        line = line.replace(name, value)
    head, separator, _ = line.rpartition(CHECKSUM)
    return head + CHECKSUM + b'%08x"}' % zlib.crc32(head + b"}") if separator else line
