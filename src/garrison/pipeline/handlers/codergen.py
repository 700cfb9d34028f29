"""codergen: one call of an agent, with prompt.md, response.md and its own word on how it went in status.json.

Who the agent is, the run says: a callable that takes the Call, or an object with `run(node, prompt, context)`. It
returns its response as text, or an Outcome, or a mapping of an outcome's fields. Without one a node fails; nothing is
ever taken for done that nobody did.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from garrison.pipeline.fidelity import remembered
from garrison.pipeline.graph import flag
from garrison.pipeline.handlers.call import Call, Handler, Waiting, as_outcome, failed, from_status, is_async
from garrison.pipeline.lint.context_keys import RESPONSE
from garrison.pipeline.outcome import SUCCESS, Outcome

SAID = "said.json"
"""What an agent or a tool writes, as GARRISON_STATUS_FILE tells it, to say how it went."""

NO_AGENT = ("no agent does codergen nodes here; give agent=… to run(), or --agent NAME on the command line "
            "(or try the flow with --simulate)")


async def codergen(call: Call) -> Outcome | Waiting:
    """Ask the run's agent."""
    agent = call.run.agent
    if agent is None:
        return failed(NO_AGENT)
    folder = call.folder
    if folder:
        (folder / "prompt.md").write_text(call.text + "\n", encoding="utf-8", errors="surrogatepass")
    call.session = call.carried.session or None if call.carried else None
    said = await asked(agent, call)
    if isinstance(said, Waiting):
        return said
    outcome = _judged(call, said, folder)
    updates = dict(outcome.context_updates)
    if call.session:
        updates |= remembered(call.graph, call.node, call.edge, call.context, call.session)
    return _with(outcome, updates)


async def asked(agent: Any, call: Call) -> Any:
    """What the agent says; a plain function of it runs in a thread, so that others go on meanwhile."""
    from garrison.pipeline.handlers.call import in_thread

    how: Handler | Callable[[], Any]
    run = getattr(agent, "run", None)
    if run is not None and not inspect.isfunction(agent):
        how = run
        said = run(call.node, call.text, call.context) if is_async(run) else \
            await in_thread(lambda: run(call.node, call.text, call.context))
    else:
        how = agent
        said = agent(call) if is_async(how) else await in_thread(lambda: agent(call))
    return await said if inspect.isawaitable(said) else said


def _judged(call: Call, said: Any, folder: Path | None) -> Outcome:
    """An outcome of what the agent returned and of what it wrote."""
    written = read_said(folder)
    response = said if isinstance(said, str) else said.notes if isinstance(said, Outcome) else ""
    if folder and response:
        (folder / "response.md").write_text(response, encoding="utf-8", errors="surrogatepass")
    elif folder and said is not None and not isinstance(said, Outcome):
        (folder / "response.md").write_text(json.dumps(said, default=str, indent=1), encoding="utf-8")
    elif folder:
        (folder / "response.md").touch()
    updates = {"last_stage": call.node.id, "last_response": response[:RESPONSE]}
    if written is not None and not (isinstance(said, Outcome) and said.failed):
        outcome = from_status(written, f"{call.node.id}'s status file")
    elif isinstance(said, str):
        outcome = Outcome(SUCCESS, notes=response[:RESPONSE])
    elif said is None and not flag(call.attrs, "auto_status"):
        outcome = failed(f"the agent of {call.node.id} said nothing; let it return its response, or set "
                         "auto_status=true", "silent")
    else:
        outcome = as_outcome(said, f"the agent of {call.node.id}")
    return _with(outcome, {**updates, **outcome.context_updates})


def read_said(folder: Path | None) -> Mapping[str, Any] | None:
    """What an agent or a tool wrote of its outcome; None if nothing, a failure's fields if it is no JSON object."""
    if folder is None or not (folder / SAID).is_file():
        return None
    try:
        body = json.loads((folder / SAID).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {"outcome": "fail", "failure_reason": f"{SAID} is no JSON: {error}"}
    return body if isinstance(body, Mapping) else {"outcome": "fail", "failure_reason": f"{SAID} is no JSON object"}


def _with(outcome: Outcome, updates: Mapping[str, Any]) -> Outcome:
    from dataclasses import replace

    return replace(outcome, context_updates=dict(updates))
