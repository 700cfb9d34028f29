"""codergen: one call of an agent, with prompt.md, response.md and the status file that it may write.

The run chooses the agent: a callable that takes the Call, or an object with `run(node, prompt, context)`. It returns
its response as text, an Outcome, or a mapping of an outcome's fields. Without an agent the node fails: work that
was not done never counts as done.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garrison.pipeline.fidelity import session_updates
from garrison.pipeline.graph import flag
from garrison.pipeline.handlers.call import (
    Call,
    Waiting,
    failed,
    from_status,
    in_thread,
    is_async,
    to_outcome,
)
from garrison.pipeline.outcome import RESPONSE_CHARS, SUCCESS, Outcome
from garrison.sandbox.place import EXCHANGE
from garrison.system import untrusted
from garrison.values import replace

STATUS_FILE = "said.json"
"""File of the exchange in which an agent or a tool reports its outcome; GARRISON_STATUS_FILE has its path."""
NO_AGENT = ("no agent does codergen nodes here; give agent=… to run(), or --agent NAME on the command line "
            "(or try the flow with --simulate)")


async def codergen(call: Call) -> Outcome | Waiting:
    """Call the run's agent."""
    agent = call.run.agent
    if agent is None:
        return failed(NO_AGENT)
    folder = call.folder
    if folder:
        untrusted.write(folder, "prompt.md", f"{call.text}\n".encode(errors="surrogatepass"))
    call.session = call.carried.session or None if call.carried else None
    result = await _call_agent(agent, call)
    if isinstance(result, Waiting):
        return result
    if folder:
        _write_response(folder, result)
    updates: dict[str, object] = {"last_stage": call.node.id, "last_response": _response(result)[:RESPONSE_CHARS]}
    # After the call: the agent writes it, and an earlier attempt's file was moved away with its folder.
    outcome = _outcome(call, result, read_status_file(folder))
    updates |= outcome.context_updates
    if call.session:
        updates |= session_updates(call.graph, call.node, call.edge, call.context, call.session)
    return replace(outcome, context_updates=updates)


async def _call_agent(agent: Any, call: Call) -> object:
    """Return the agent's result; a plain function runs in a thread, so that other nodes continue."""
    method = getattr(agent, "run", None)
    if method is not None and not inspect.isfunction(agent):
        result = method(call.node, call.text, call.context) if is_async(method) else \
            await in_thread(lambda: method(call.node, call.text, call.context))
    else:
        result = agent(call) if is_async(agent) else await in_thread(lambda: agent(call))
    return await result if inspect.isawaitable(result) else result


def _response(result: object) -> str:
    return result if isinstance(result, str) else result.notes if isinstance(result, Outcome) else ""


def _write_response(folder: Path, result: object) -> None:
    response = _response(result)
    if not response and result is not None and not isinstance(result, Outcome):
        response = json.dumps(result, default=str, indent=1)
    untrusted.write(folder, "response.md", response.encode(errors="surrogatepass"))


def _outcome(call: Call, result: object, reported: Mapping[str, object] | None) -> Outcome:
    """Return the outcome: the agent's report in the status file, unless it failed, else its result."""
    if reported is not None and not (isinstance(result, Outcome) and result.failed):
        return from_status(reported, f"{call.node.id}'s status file", call.asked)
    if isinstance(result, str):
        return Outcome(SUCCESS, notes=result[:RESPONSE_CHARS])
    if result is None and not flag(call.attrs, "auto_status"):
        return failed(f"the agent of {call.node.id} returned nothing; let it return its response, or set "
                      "auto_status=true", "silent")
    return to_outcome(result, f"the agent of {call.node.id}", call.asked)


def read_status_file(folder: Path | None) -> Mapping[str, object] | None:
    """Return the outcome that an agent or a tool reported, None for none; a failure if it is not a JSON object."""
    if folder is None:
        return None
    try:
        raw = untrusted.read(folder, f"{EXCHANGE}/{STATUS_FILE}")
        raw = untrusted.read(folder, STATUS_FILE) if raw is None else raw  # of an agent that is a Python function
        if raw is None:
            return None
        body = json.loads(raw)
    except untrusted.UnsafeFile as error:
        return {"outcome": "fail", "failure_reason": f"{STATUS_FILE} {error.why}"}
    except (OSError, ValueError, RecursionError) as error:
        return {"outcome": "fail", "failure_reason": f"{STATUS_FILE} is not JSON: {error}"}
    return body if isinstance(body, Mapping) else {"outcome": "fail",
                                                   "failure_reason": f"{STATUS_FILE} is not a JSON object"}
