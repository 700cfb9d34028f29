"""Containers for tests, of an image that no registry has: scripts/_setup.sh makes it."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest

from garrison.errors import Refused
from garrison.sandbox import container

IMAGE = "localhost/garrison-test-place"


@cache
def missing() -> str:
    """Return why no container runs here, '' if one does."""
    programs = [name for name in ("podman", "mmdebstrap") if shutil.which(name) is None]
    if programs:
        return f"{' and '.join(programs)} not installed"
    if os.geteuid():
        return "a container in garrison's own network needs Podman as root"
    if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode:
        return f"there is no image {IMAGE}; scripts/test makes it"
    try:
        container.ready(IMAGE)
    except Refused as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def container_engine() -> None:
    """Skip where no container runs; a fixture, as trying takes a second."""
    if reason := missing():
        pytest.skip(reason)
