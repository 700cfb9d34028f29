"""Artifacts: outputs too large for the context, stored by id; from 100 kB on as files of the run directory.

An artifact is written whole and read as it was written. The caller chooses its id; storing under an existing id
replaces the artifact. Without a run directory everything stays in memory.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from garrison.errors import NotFound, UsageError
from garrison.records import atomic
from garrison.values import Value, asdict

THRESHOLD = 100 * 1024
"""Size in bytes above which an artifact is a file."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.#/-]{0,127}\Z")


class ArtifactInfo(Value):
    """Description of an artifact."""

    id: str
    name: str
    size_bytes: int
    stored_at: str
    is_file_backed: bool


class Artifacts:
    """Artifacts of one run. `directory` is `RUN_DIR/artifacts`, None for a run in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self._artifacts: dict[str, tuple[ArtifactInfo, str | None]] = {}
        index = atomic.read(directory / "index.json") if directory else None
        if index and directory:
            for entry in json.loads(index):
                path = self._path(entry["id"])
                if path and path.is_file():
                    self._artifacts[entry["id"]] = (ArtifactInfo(**entry), None)

    def store(self, artifact: str, name: str, data: Any, at: str = "") -> ArtifactInfo:
        """Store `data` (any JSON value) under the id `artifact`; raise UsageError for other values and invalid ids."""
        if not _ID.match(artifact) or ".." in artifact:
            raise UsageError(f"{artifact!r:.60} is not an artifact id; use letters, digits and _ . # / -")
        try:
            body = json.dumps(data, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"artifact {artifact} cannot be stored as JSON: {error}") from None
        raw = body.encode("utf-8", "surrogatepass")
        path = self._path(artifact) if len(raw) > THRESHOLD else None
        info = ArtifactInfo(artifact, name, len(raw), at, path is not None)
        if path:
            atomic.make_directory(path.parent)
            atomic.write(path, raw)
        self._artifacts[artifact] = (info, None if path else body)
        if path:
            self._write_index()
        return info

    def retrieve(self, artifact: str) -> Any:
        """Return what was stored; raise NotFound if nothing was."""
        info, body = self._find(artifact)
        path = self._path(artifact)
        if info.is_file_backed and path:
            raw = atomic.read(path)
            if raw is None:
                raise NotFound(f"artifact {artifact} is gone: {path}")
            return json.loads(raw.decode("utf-8", "surrogatepass"))
        return json.loads(body or "null")

    def has(self, artifact: str) -> bool:
        return artifact in self._artifacts

    def list(self) -> list[ArtifactInfo]:
        """Return all artifacts in the order in which they were stored."""
        return [info for info, _ in self._artifacts.values()]

    def remove(self, artifact: str) -> None:
        """Remove an artifact and its file; raise NotFound if there is none."""
        info, _ = self._find(artifact)
        path = self._path(artifact)
        del self._artifacts[artifact]
        if info.is_file_backed and path:
            path.unlink(missing_ok=True)
            self._write_index()

    def clear(self) -> None:
        """Remove all artifacts."""
        for artifact in [*self._artifacts]:
            self.remove(artifact)

    def _find(self, artifact: str) -> tuple[ArtifactInfo, str | None]:
        if artifact not in self._artifacts:
            raise NotFound(f"no artifact {artifact!r:.60} in this run")
        return self._artifacts[artifact]

    def _path(self, artifact: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{artifact.replace('/', '_')}.json"

    def _write_index(self) -> None:
        assert self.directory is not None
        entries = [asdict(info) for info in self.list() if info.is_file_backed]
        atomic.write(self.directory / "index.json", json.dumps(entries, indent=1).encode(), durable=False)
