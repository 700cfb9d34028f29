"""Unpack wheels into the environment that runs this: `python -I unpack.py FOLDER`, on a host, before garrison is there.

pip would take several times as long. It exits with 3 if one of the wheels is not for this Python and machine, which
pip's own code decides, or needs more than unpacking; then pip must install it. Imports nothing from garrison.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import zipfile
from pathlib import Path

NOT_HERE = 3
SCRIPT = """\
#!{python}
import sys
from garrison.cli.main import main
sys.exit(main())
"""


def fits(wheels: list[Path]) -> bool:
    """Return whether all wheels are for this Python and machine, by the code of the bundled pip."""
    sys.path[:0] = [str(wheel) for wheel in wheels if wheel.name.startswith("pip-")]
    from pip._vendor.packaging.tags import parse_tag, sys_tags

    here = set(sys_tags())
    return all(here & parse_tag(wheel.stem.split("-", 2)[2]) for wheel in wheels)


def main(folder: str) -> int:
    """Unpack the wheels of a folder; return NOT_HERE if that is not enough."""
    wheels = sorted(Path(folder).glob("*.whl"))
    if not wheels or not fits(wheels):
        return NOT_HERE
    target = sysconfig.get_paths()["purelib"]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            if any(".data/" in name.split("/", 1)[0] + "/" for name in archive.namelist()):
                return NOT_HERE
            archive.extractall(target)
    script = Path(sysconfig.get_paths()["scripts"]) / "garrison"
    script.write_text(SCRIPT.format(python=sys.executable))
    os.chmod(script, 0o700)  # noqa: PTH101
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
