"""Wheels of the running installation, to install the same on a host without an index.

garrison itself is built from its checkout, or packed again from its installed files, as its dependencies are. A packed
wheel keeps its tags, so pip on the host refuses one that is for another Python or machine.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import checkout
from garrison.errors import GarrisonError, NotFound
from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "garrison"
EXTRA = "hosts"
BUILD_SECONDS = 120.0
DOWNLOAD_SECONDS = 300.0
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?")
_LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_required() -> list[metadata.Distribution]:
    """Return the installed distributions that garrison needs on a host, itself left out; NotFound without the extra."""
    found: dict[str, metadata.Distribution] = {}
    queue = [(ROOT, frozenset({EXTRA}))]
    while queue:
        name, extras = queue.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # a marker leaves it out here
        if normalize(name) in found:
            continue
        found[normalize(name)] = distribution
        queue += list(_requirements(distribution, extras))
    if "temporalio" not in found:
        raise NotFound("hosts need the extra of garrison: `pip install 'garrison[hosts]'`")
    return [found[name] for name in sorted(found) if name != ROOT]


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in distribution.requires or []:
        requirement, _, marker = line.partition(";")
        match = _REQUIREMENT.match(requirement.strip())
        wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if match is not None and (wanted is None or wanted[1] in extras):
            yield match["name"], frozenset(re.split(r"\s*,\s*", match["extras"] or ""))


def pack(distribution: metadata.Distribution, folder: Path) -> Path:
    """Pack an installed distribution as a wheel in `folder`; return its path."""
    files = distribution.files
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    stem = f"{name}-{distribution.version}"
    wheel = distribution.read_text("WHEEL")
    if files is None or wheel is None:
        raise GarrisonError(f"{distribution.metadata['Name']} was not installed from a wheel, so it cannot be copied")
    path = folder / f"{stem}-{_tag(wheel)}.whl"
    if path.is_file():
        return path
    record: list[str] = []
    info = f"{stem}.dist-info"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(files):
            here = Path(str(distribution.locate_file(file)))
            if ".." in file.parts or file.suffix == ".pyc" or file.is_absolute() or not here.is_file():
                continue  # scripts, which pip makes anew, and what is compiled
            inside = file.as_posix()
            if file.parts[0].endswith(".dist-info"):
                inside = f"{info}/{'/'.join(file.parts[1:])}"
                if file.name in _LEFT_OUT:
                    continue
            data = here.read_bytes()
            archive.writestr(zipfile.ZipInfo(inside), data, zipfile.ZIP_DEFLATED, 1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f'"{inside}",sha256={digest},{len(data)}')
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    part.replace(path)
    return path


def _tag(wheel: str) -> str:
    """Return the compressed tag of a WHEEL file: the sets of its pythons, ABIs and platforms."""
    tags = [line.partition(":")[2].strip().split("-") for line in wheel.splitlines() if line.startswith("Tag:")]
    return "-".join(".".join(dict.fromkeys(tag[place] for tag in tags)) for place in range(3))


def pack_garrison(folder: Path) -> Path:
    """Return a wheel of this garrison, built from its checkout if it runs from one."""
    source = checkout()
    if source is None:
        return pack(metadata.distribution(ROOT), folder)
    done = subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=source,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    built = sorted(folder.glob(f"{ROOT}-*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode or not built:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise GarrisonError(f"no wheel of garrison can be built from {source}: {last}")
    return built[-1]


def find_pip(folder: Path) -> Path:
    """Return a wheel of pip: a host's Python may come without it."""
    try:
        return pack(metadata.distribution("pip"), folder)
    except metadata.PackageNotFoundError:
        pass
    try:
        import ensurepip

        bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    except ImportError:
        bundled = []
    if not bundled:
        raise NotFound("there is no pip here to bring to the host: `python -m ensurepip`, or install pip beside "
                       "garrison")
    return bundled[-1]


def collect(kept: Path, own: Path) -> tuple[Path, list[Path]]:
    """Return the wheel of garrison, made in the folder `own`, and the others that a host needs, pip's first, which are
    made once in the folder `kept`."""
    atomic.make_directory(kept)
    with atomic.locked(kept / "lock"):
        others = [find_pip(kept), *(pack(distribution, kept) for distribution in list_required())]
    return pack_garrison(own), others


def download(others: list[Path], python: str, machine: str, folder: Path) -> list[Path]:
    """Fetch what home has in the versions that it has, for another Python or processor, from home's package index.

    GarrisonError if an index does not answer, or has no wheel for it.
    """
    atomic.make_directory(folder)
    names = ["=".join((path.name.split("-")[0], "=" + path.name.split("-")[1])) for path in others]
    platforms = [word for libc in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
                 for word in ("--platform", f"{libc}_{machine}")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
         "--only-binary=:all:", "--python-version", python, *platforms, "-d", str(folder), *names],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise GarrisonError(lines[-1][:300])
    return sorted(folder.glob("*.whl"))


def fingerprint(paths: list[Path]) -> str:
    """Return a digest of wheels, by what they contain."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        with zipfile.ZipFile(path) as archive:
            digest.update(f"{path.name}\n".encode())
            for item in sorted(archive.infolist(), key=lambda item: item.filename):
                digest.update(f"{item.filename} {item.CRC}\n".encode())
    return digest.hexdigest()[:16]
