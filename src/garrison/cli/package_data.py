"""Files that are no modules: in a checkout where they belong, in a wheel inside the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from garrison.config import checkout
from garrison.errors import Refused


def find_data(folder: str, file: str) -> Path:
    """Return the folder `folder` that has `file`: the checkout's, else the wheel's; Refused if there is none."""
    source = checkout()
    places = [*([source / folder] if source is not None else []), Path(str(resources.files("garrison"))) / folder]
    for place in places:
        if (place / file).is_file():
            return place
    raise Refused(f"this installation lacks {folder}; install garrison from a wheel, or work in a checkout")
