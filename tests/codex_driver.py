"""Runs the real Codex over ACP against a scripted model: the program that test_real_agents.py starts in isolation.

`codex_driver.py CODEX_ACP FOLDER` kills the agent in the middle of its first command, resumes it, and writes what
happened to FOLDER/told.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from acp_support import BLOCK, Stage
from garrison.agents.acp.attempt import AcpAgent
from garrison.agents.acp.settings import AcpSettings
from garrison.records.json_io import read_json

CONFIG = """model = "stub"
model_provider = "stub"
[model_providers.stub]
name = "stub"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "STUB_KEY"
"""


class Model(BaseHTTPRequestHandler):
    """A model that speaks OpenAI's Responses API: two commands, then a report."""

    commands: ClassVar[list[str]] = ["touch begun; sleep 600", "echo made > made.txt; git add .; git commit -qm made"]
    tools: ClassVar[list[str]] = []

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Model.tools[:] = [str(tool.get("name")) for tool in body.get("tools", [])]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        id_ = f"resp_{len(Model.commands)}"
        item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "m1",
                                "content": [{"type": "output_text", "text": BLOCK}]}
        if Model.commands:
            item = {"type": "function_call", "id": f"f{id_}", "call_id": f"c{id_}", "name": "exec_command",
                    "arguments": json.dumps({"cmd": Model.commands.pop(0)})}
        usage = {"input_tokens": 10, "input_tokens_details": None, "output_tokens": 5, "output_tokens_details": None,
                 "total_tokens": 15}
        for kind, more in (("response.created", {"response": {"id": id_}}),
                           ("response.output_item.done", {"item": item}),
                           ("response.completed", {"response": {"id": id_, "usage": usage}})):
            self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode())


def main() -> None:
    """Play it."""
    program, folder = sys.argv[1], Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stage = Stage(folder)
    for words in (["init", "-q", "-b", "main"], ["config", "user.name", "t"], ["config", "user.email", "t@t"],
                  ["commit", "-q", "--allow-empty", "-m", "begin"]):
        subprocess.run(["git", *words], cwd=stage.tree, check=True)
    config = stage.home / "codex"
    config.mkdir()
    (config / "config.toml").write_text(CONFIG.format(port=server.server_port))
    settings = AcpSettings((program,), mode="agent-full-access", set={"STUB_KEY": "dummy", "CODEX_API_KEY": "dummy",
                                                                      "CODEX_HOME": str(config)})
    first = stage.start(AcpAgent("codex", settings))
    stage.until(first, (stage.tree / "begun").exists)
    os.kill(int(read_json(stage.files.process)["pid"]), signal.SIGKILL)
    died = stage.finish(first)
    second = stage.start(AcpAgent("codex", settings))
    outcome = stage.finish(second)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=stage.tree, capture_output=True, text=True, check=True)
    (folder / "told.json").write_text(json.dumps({
        "died": died.killed, "outcome": [outcome.status, outcome.reason], "report": dict(outcome.report),
        "sessions": [first.session, second.session], "log": log.stdout.split(), "tools": Model.tools,
        "shown": (stage.attempt / "output.log").read_text()}))
    stage.close()
    os._exit(0)


if __name__ == "__main__":
    main()
