"""Containers for tests: an image that no registry has, made of Debian's packages and kept between runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

from garrison.errors import Refused
from garrison.sandbox import container

IMAGE = "localhost/garrison-test-place"
PACKAGES = "git,python3-minimal"


@cache
def missing() -> str:
    """Return why no container runs here, '' if one does; makes the image where that is possible."""
    programs = [name for name in ("podman", "mmdebstrap") if shutil.which(name) is None]
    if programs:
        return f"{' and '.join(programs)} not installed"
    if os.geteuid():
        return "a container in garrison's own network needs Podman as root"
    if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode:
        made = subprocess.run("mmdebstrap --quiet --variant=minbase --include=" + PACKAGES +
                              f" stable - | podman import --quiet - {IMAGE}", shell=True, capture_output=True,
                              text=True, check=False)
        if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode:
            return f"the image cannot be made: {made.stderr.strip()[-200:]}"
    try:
        container.ready(IMAGE)
    except Refused as error:
        return str(error)
    return ""
