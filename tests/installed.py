"""An environment in which garrison is installed as users have it, made from the sources of this checkout.

Run from a checkout, garrison keeps its state in the checkout's `state/`. Most users run an installed one, whose state
is below their HOME: so does every process that tests start with `PROGRAM`. The environment is `.venv/installed`: hard
links to the packages of `.venv`, and a copy of garrison that each import of this module brings up to date.
"""

from __future__ import annotations

import compileall
import fcntl
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(sys.prefix) / "installed"
PACKAGES = FOLDER / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
PARTS = {"src/garrison": "garrison", "examples/demo": "garrison/examples/demo", "systemd": "garrison/systemd",
         "state/README.md": "garrison/state/README.md"}
"""Part of the checkout → where the wheel has it, as pyproject.toml says."""


def install() -> Path:
    """Bring the environment up to date, unless the process that shares out the tests has done so; return its Python."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return FOLDER / "bin/python"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER.parent / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _link_packages(Path(sysconfig.get_path("purelib")))
        _copy_garrison()
    return FOLDER / "bin/python"


def _link_packages(source: Path) -> None:
    """Give the environment the packages of this one, if they have changed since; but not its link to the sources."""
    stamp, wanted = FOLDER / "packages", f"{ROOT} {source.stat().st_mtime_ns} {sorted(os.listdir(source))}"  # noqa: PTH208
    if _read(stamp) == wanted:
        return
    shutil.rmtree(FOLDER)
    shutil.copytree(source, PACKAGES, symlinks=True, copy_function=_link,
                    ignore=shutil.ignore_patterns("_garrison.pth", "garrison-*", "__editable__*"))
    for found in source.glob("garrison-*.dist-info"):
        shutil.copytree(found, PACKAGES / found.name, ignore=shutil.ignore_patterns("direct_url.json"))
    (FOLDER / "bin").mkdir()
    for name in ("python", "python3", f"python3.{sys.version_info[1]}"):
        (FOLDER / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", FOLDER)
    script = FOLDER / "bin/garrison"
    script.write_text(f"#!{FOLDER}/bin/python\nimport sys\nfrom garrison.cli.main import main\nsys.exit(main())\n")
    script.chmod(0o755)
    stamp.write_text(wanted)


def install_in(folder: Path) -> Path:
    """Make another such environment, for what a test installs alongside garrison; return its Python."""
    install()
    shutil.copytree(FOLDER, folder, symlinks=True, copy_function=_link)
    return folder / "bin/python"


def _link(source: str, target: str) -> None:
    """Link a file, or copy it onto another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _copy_garrison() -> None:
    """Copy what has changed, and remove what is gone; files are replaced, never written to while one may read them."""
    wanted = {PACKAGES / target / path: source / path if path else source
              for source, target in ((ROOT / name, target) for name, target in PARTS.items())
              for path in _files(source)}
    copied, changed = PACKAGES / "garrison", False
    for target, source in wanted.items():
        if _stamp(target) != (stamp := _stamp(source)) and stamp is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target.with_name(f".{target.name}.new"))
            target.with_name(f".{target.name}.new").replace(target)
            changed = True
    if changed:  # for other users too, who cannot write here
        compileall.compile_dir(copied, quiet=2)
    for path in {copied / path for path in _files(copied)} - wanted.keys():
        path.unlink()
    [info] = PACKAGES.glob("garrison-*.dist-info")
    about = [path for path in info.iterdir() if path.name != "RECORD"]
    record = "".join(f"{path.relative_to(PACKAGES)},,\n" for path in sorted([*about, *wanted]))
    if _read(info / "RECORD") != record:
        (info / "RECORD").write_text(record)


def _files(folder: Path) -> Iterator[str]:
    """Yield the paths below a folder, '' for a single file; of compiled modules only their sources."""
    if folder.is_file():
        yield ""
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        below = os.path.relpath(top, folder)
        yield from (os.path.normpath(os.path.join(below, name)) for name in names)  # noqa: PTH118


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
