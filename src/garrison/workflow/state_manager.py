"""Workflow sessions on disk: `ID.json`, a snapshot with the seed's fields, alongside the engine's journal and the log.

    ID.json          snapshot: status, current step, results, errors, and the workflow itself
    runs/ID/         the engine's run directory; its journal is authoritative
    logs/ID.log      every call with its arguments and outcome

The snapshot is written atomically, after the journal; only `load_state` reads it.
"""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from garrison.directories import find_home
from garrison.errors import NewerSchema
from garrison.records import atomic, earlier
from garrison.records.record import from_data
from garrison.values import asdict
from garrison.workflow.errors import AgentError, StateLoadError
from garrison.workflow.models import WorkflowState

SCHEMA = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")


class StateManager:
    """Sessions of one directory."""

    def __init__(self, state_dir: Path | str | None = None) -> None:
        """Use `state_dir`; by default `workflows` in garrison's home."""
        self.state_dir = Path(state_dir) if state_dir is not None else find_home(None) / "workflows"

    def path(self, session_id: str) -> Path:
        """Return the snapshot's file; StateLoadError for an invalid id."""
        if not _ID.match(session_id):
            raise StateLoadError(f"{session_id!r:.80} is not a session id; use 1 to 64 of A-Z a-z 0-9 _ -")
        return self.state_dir / f"{session_id}.json"

    def run_dir(self, session_id: str) -> Path:
        return self.path(session_id).parent / "runs" / session_id

    def log(self, session_id: str) -> Path:
        return self.path(session_id).parent / "logs" / f"{session_id}.log"

    async def save_state(self, state: WorkflowState) -> None:
        """Write the snapshot atomically."""
        self.write(state)

    def write(self, state: WorkflowState, *, named: bool = True) -> None:
        """Write the snapshot without awaiting; `named` as for `atomic.write`."""
        if state.workflow is None:
            raise AgentError(f"the state of session {state.session_id} has no workflow; it could not be resumed")
        body = {"schema": SCHEMA, "workflow_name": state.workflow.name, "updated_at": datetime.now(UTC).isoformat(),
                **asdict(state), "started_at": state.started_at.isoformat()}
        lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in body.items()]
        path = self.path(state.session_id)
        atomic.make_directory(path.parent)
        atomic.write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "backslashreplace"), named=named)

    async def load_state(self, session_id: str) -> WorkflowState | None:
        """Return the state with its workflow; None if there is no such session, StateLoadError if it is damaged."""
        return self.read(session_id)

    def read(self, session_id: str) -> WorkflowState | None:
        """Return the state without awaiting, as `load_state`."""
        path = self.path(session_id)
        raw = atomic.read(path)
        if raw is None:
            return None
        try:
            body = json.loads(raw)
            if body.get("schema", SCHEMA) > SCHEMA:
                raise NewerSchema(path, body["schema"], SCHEMA)
            body.setdefault("failed_steps", [earlier.step_of_error(error) for error in body["errors"]])
            return from_data(WorkflowState, body)
        except (ValueError, KeyError, TypeError, AttributeError, AgentError) as error:
            raise StateLoadError(f"{path} cannot be read ({error}); it was left in place") from error

    async def cleanup_state(self, session_id: str) -> None:
        """Remove a session's snapshot and run, if any; the log stays."""
        self.path(session_id).unlink(missing_ok=True)
        shutil.rmtree(self.run_dir(session_id), ignore_errors=True)

    async def list_sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the latest first; an unreadable one has status `corrupt`."""
        sessions = []
        for path in self.state_dir.glob("*.json"):
            try:
                body = json.loads(path.read_bytes())
                sessions.append({key: body[key] for key in ("session_id", "workflow_name", "status", "current_step",
                                                            "started_at", "updated_at")})
            except (OSError, ValueError, KeyError, TypeError):
                sessions.append({"session_id": path.stem, "workflow_name": "", "status": "corrupt", "current_step": 0,
                                 "started_at": "", "updated_at": ""})
        return sorted(sessions, key=lambda session: (session["updated_at"], session["session_id"]), reverse=True)
