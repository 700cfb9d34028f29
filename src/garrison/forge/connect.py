"""Open the client of a forge; only that client's library is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.forge.etag_cache import EtagCache
from garrison.forge.model import ForgeKind

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.forge.credentials import Token
    from garrison.forge.model import Location
    from garrison.forge.protocol import Forge


def open_forge(location: Location, token: Token, cache_folder: Path | None = None) -> Forge:
    """Return a client for one repository; with a folder it keeps answers and their ETags there.

    Raises:
        Refused: the library is not installed.
    """
    cache = EtagCache(cache_folder / location.host.replace(":", "_"), token) if cache_folder else None
    try:
        return _OPEN[location.kind](location, token, cache)
    except ImportError as error:
        raise Refused(f"{location.host} needs a library that is not installed ({error.name}): "
                      "pip install 'garrison[forges]'") from error


def _open_github(location: Location, token: Token, cache: EtagCache | None) -> Forge:
    from garrison.forge.github import GitHub

    return GitHub(location, token, cache)


def _open_gitlab(location: Location, token: Token, cache: EtagCache | None) -> Forge:
    from garrison.forge.gitlab import GitLab

    return GitLab(location, token, cache)


def _open_gitea(location: Location, token: Token, cache: EtagCache | None) -> Forge:
    from garrison.forge.gitea import Gitea

    return Gitea(location, token, cache)


_OPEN = {ForgeKind.GITHUB: _open_github, ForgeKind.GITLAB: _open_gitlab, ForgeKind.GITEA: _open_gitea}
