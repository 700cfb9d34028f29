"""Double of an ACP agent for tests: a program that speaks the protocol and plays a script of turns.

`python -P -m garrison.testing.acp_agent SCRIPT` with a JSON file:

    {"load": true, "resume": false, "turns": [[STEP, …], …]}

Each prompt of a session plays the next turn, and the last turn is repeated. A session's prompts are stored in
`$HOME/acp-double/SESSION.json`, so that another process can resume it: the prompt after a death plays the next turn
too.

| step | the agent |
|---|---|
| `{"say": "text"}` | writes a message |
| `{"other": "text"}` | writes a message in the name of another session |
| `{"write": {"file": "content"}}` | writes files below its working directory |
| `{"run": "command"}` | runs a command, as a tool call; with `"must": true` the agent dies if that fails |
| `{"ask": "execute", "title": "…"}` | asks for permission, and writes which option it got |
| `{"tool": "report_result", "with": {…}}` | calls a tool of the MCP server `garrison` |
| `{"await": "file"}` | waits until a file exists |
| `{"error": [code, "text"]}` | answers the prompt with an error |
| `{"stop": "max_tokens"}` | ends its turn for that reason |
| `{"die": 9}` | is killed by a signal |
| `{"exit": 3}` | ends with an exit code, in the middle of the turn |
| `{"late": true}` | continues after the turn's end: writes more, and asks for permission |
| `{"breach": "garbage"}` | breaks the protocol: see `BREACHES` |

Other keys of the script: `auth` (requires a log-in), `models`, `modes` (their ids), `resume_error` (refuses to resume),
`sulks` (after refusing to resume, starts no new session either), `version` (of the protocol), `silent` (a method that
it never answers), `breach` (before anything else), `answers` (method → what it answers instead).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class AcpError(Exception):
    """Raised to answer a request with an error: a code and a text."""


class AcpDouble:
    """One process of the agent."""

    def __init__(self, script: Json, state: Path) -> None:
        self.script, self.state = script, state
        self._ids = itertools.count(1000)
        self._calls = itertools.count(1)
        self._servers: list[Json] = []
        self._cancelled = False
        self._late = ""
        self._has_refused = False

    # ---- messages

    def send(self, **message: Any) -> None:
        """Write one message."""
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def receive(self) -> Json:
        """Read one message; the end of the input is the end of the program."""
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)  # garrison has closed the pipe or is dead: an agent that stayed would be a leftover
        return dict(json.loads(line))

    def request(self, method: str, params: Json) -> Json:
        """Send a request and return its answer, handling whatever else arrives first."""
        id_ = next(self._ids)
        self.send(id=id_, method=method, params=params)
        while True:
            message = self.receive()
            if message.get("id") == id_ and "method" not in message:
                return message
            self._cancelled |= message.get("method") == "session/cancel"

    def serve(self) -> None:
        """Answer requests until the input ends."""
        while True:
            message = self.receive()
            if "id" not in message or message["method"] == self.script.get("silent"):
                continue
            try:
                result: Any = METHODS[message["method"]](self, message.get("params") or {})
                self.send(id=message["id"], result=self.script.get("answers", {}).get(message["method"], result))
                if self._late:
                    self._go_on_after_turn()
            except AcpError as refusal:
                code, text = refusal.args
                self.send(id=message["id"], error={"code": code, "message": text})
            except KeyError as error:
                self.send(id=message["id"], error={"code": -32601, "message": f"unknown method {error}"})

    # ---- the protocol's methods

    def initialize(self, _params: Json) -> Json:
        """Greet."""
        sessions: Json = {"resume": {}} if self.script.get("resume") else {}
        return {"protocolVersion": self.script.get("version", 1), "agentInfo": {"name": "double", "version": "1"},
                "agentCapabilities": {"loadSession": bool(self.script.get("load", True)),
                                      "mcpCapabilities": {"http": bool(self.script.get("http"))},
                                      "sessionCapabilities": sessions},
                "authMethods": [{"id": "key", "name": "key"}] if self.script.get("auth") else []}

    def authenticate(self, params: Json) -> Json:
        """Log in."""
        if params.get("methodId") != "key":
            raise AcpError(-32602, "there is no such method")
        self.script["auth"] = False
        return {}

    def new_session(self, params: Json) -> Json:
        """Start a session."""
        if self.script.get("auth"):
            raise AcpError(-32000, "Authentication required")
        if self._has_refused and self.script.get("sulks"):
            raise AcpError(-32603, "no more sessions here")
        session = f"double-{os.getpid()}-{time.time_ns()}"
        self._servers = list(params.get("mcpServers") or [])
        self.keep(session, {"cwd": params["cwd"], "prompts": []})
        return {"sessionId": session, **self._offers()}

    def resume_session(self, params: Json) -> Json:
        """Continue a session of an earlier process; with `session/load` its history is replayed."""
        if self.script.get("resume_error"):
            self._has_refused = True
            raise AcpError(-32603, str(self.script["resume_error"]))
        session = str(params["sessionId"])
        if not self._file(session).exists():
            raise AcpError(-32002, f"session {session} not found")
        self._servers = list(params.get("mcpServers") or [])
        if not self.script.get("resume"):
            for text in self.read(session)["prompts"]:
                self.update(session, sessionUpdate="user_message_chunk", content={"type": "text", "text": text})
            self.say(session, "```garrison-result\n{\"status\": \"failure\", \"summary\": \"of the past\"}\n```")
        return self._offers()

    def _offers(self) -> Json:
        models, modes = self.script.get("models"), self.script.get("modes")
        offers: Json = {}
        if models:
            offers["configOptions"] = [{"id": "model", "name": "model", "type": "select", "category": "model",
                                        "currentValue": models[0],
                                        "options": [{"value": each, "name": each} for each in models]}]
        if modes:
            offers["modes"] = {"currentModeId": modes[0], "availableModes": [{"id": each, "name": each}
                                                                            for each in modes]}
        return offers

    def set_option(self, params: Json) -> Json:
        """Choose a model or a mode, and store it."""
        session = str(params["sessionId"])
        self.keep(session, {**self.read(session), "chosen": [*self.read(session).get("chosen", []),
                                                              params.get("value") or params.get("modeId")]})
        return {"configOptions": []} if "value" in params else {}

    def prompt(self, params: Json) -> Json:
        """Play the next turn."""
        session = str(params["sessionId"])
        known = self.read(session)
        text = "".join(str(part.get("text", "")) for part in params["prompt"])
        self.keep(session, {**known, "prompts": [*known["prompts"], text]})  # before it is played: a death counts
        turns = self.script["turns"]
        for step in turns[min(len(known["prompts"]), len(turns) - 1)]:
            kind = next(iter(step))
            if why := STEPS[kind](self, session, step):
                break
        else:
            why = "end_turn"
        return {"stopReason": "cancelled" if self._cancelled else why}

    # ---- sessions

    def _file(self, session: str) -> Path:
        return self.state / f"{session}.json"

    def read(self, session: str) -> Json:
        return dict(json.loads(self._file(session).read_text()))

    def keep(self, session: str, known: Json) -> None:
        """Store a session for a later process."""
        self.state.mkdir(parents=True, exist_ok=True)
        part = self._file(session).with_suffix(".part")
        part.write_text(json.dumps(known))
        part.rename(self._file(session))  # atomically: the agent may die at any moment

    # ---- steps

    def update(self, session: str, **update: Any) -> None:
        """Send an update of the session."""
        self.send(method="session/update", params={"sessionId": session, "update": update})

    def say(self, session: str, text: str) -> None:
        """Write a message in two pieces."""
        for piece in (text[:len(text) // 2], text[len(text) // 2:]):
            self.update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": piece})

    def _say_elsewhere(self, session: str, step: Json) -> str:
        self.say(f"{session}-other", str(step["other"]))
        return ""

    def _say(self, session: str, step: Json) -> str:
        self.say(session, str(step["say"]))
        return ""

    def _write(self, session: str, step: Json) -> str:
        for name, content in step["write"].items():
            (Path(self.read(session)["cwd"]) / name).write_text(content)
        return ""

    def _run(self, session: str, step: Json) -> str:
        call = f"call-{next(self._calls)}"
        told = {"sessionUpdate": "tool_call", "title": step["run"], "kind": "execute"}
        if not step.get("at_end"):
            self.update(session, toolCallId=call, status="in_progress", **told)
            told = {"sessionUpdate": "tool_call_update"}
        done = subprocess.run(step["run"], shell=True, cwd=self.read(session)["cwd"], capture_output=True, text=True,
                              check=False)
        if done.returncode and step.get("must"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.update(session, toolCallId=call, status="failed" if done.returncode else "completed", **told,
                    content=[{"type": "content", "content": {"type": "text", "text": done.stdout + done.stderr}}])
        return ""

    def _ask(self, session: str, step: Json) -> str:
        for _ in range(int(step.get("times", 1))):
            answer = self.request("session/request_permission", {
                "sessionId": session, "options": [
                    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                    {"optionId": "always", "name": "Yes, always", "kind": "allow_always"},
                    {"optionId": "no", "name": "No", "kind": "reject_once"}],
                "toolCall": {"toolCallId": f"call-{next(self._calls)}", "kind": step["ask"],
                             "title": step.get("title", "do it")}})
        outcome = (answer.get("result") or {}).get("outcome") or {}
        self.say(session, f"leave: {outcome.get('optionId', outcome.get('outcome'))}\n")
        return ""

    def _tool(self, session: str, step: Json) -> str:
        name = str(step.get("server", "garrison"))
        server = next((each for each in self._servers if each["name"] == name), None)
        if server is None or "url" in server:
            self.say(session, f"no server {name} to start: {json.dumps(server)}\n")
            return ""
        env = {**os.environ, **{each["name"]: each["value"] for each in server["env"]}}
        lines: list[Json] = [
            {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": step["tool"], "arguments": step["with"]}}]
        given = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
        done = subprocess.run([server["command"], *server["args"]], env=env, text=True, capture_output=True,
                              check=False, input=given)
        answer = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {"error": done.stderr[-500:]}
        self.say(session, f"{step['tool']}: {json.dumps(answer.get('result', answer.get('error')))}\n")
        return ""

    def _await(self, _session: str, step: Json) -> str:
        while not Path(step["await"]).exists():
            time.sleep(0.02)
        return ""

    def _error(self, _session: str, step: Json) -> str:
        raise AcpError(*step["error"])

    def _exit(self, _session: str, step: Json) -> str:
        sys.stdout.flush()
        os._exit(int(step["exit"]))

    def _go_on_late(self, session: str, _step: Json) -> str:
        self._late = session
        return ""

    def _go_on_after_turn(self) -> None:
        session, self._late = self._late, ""
        self.say(session, "One more thing: shall I delete the branch?")
        for number in range(100):
            self.send(id=f"late-{number}", method="session/request_permission", params={
                "sessionId": session, "toolCall": {"toolCallId": "late", "kind": "execute", "title": "git push"},
                "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]})

    def _stop(self, _session: str, step: Json) -> str:
        return str(step["stop"])

    def _die(self, _session: str, step: Json) -> str:
        os.kill(os.getpid(), int(step["die"]))
        time.sleep(60)
        return ""

    def _breach(self, session: str, step: Json) -> str:
        BREACHES[step["breach"]](self, session)
        return ""


def _garbage(_double: AcpDouble, _session: str) -> None:
    for number in range(10_000):
        print(f"WARN this is line {number} of no protocol at all")
    sys.stdout.flush()
    time.sleep(60)


def _huge_line(_double: AcpDouble, _session: str) -> None:
    for _ in range(1 << 10):
        sys.stdout.write("x" * (1 << 20))
    time.sleep(60)


def _flood(double: AcpDouble, session: str) -> None:
    for number in range(1_000):
        double.send(id=f"flood-{number}", method="session/request_permission", params={
            "sessionId": session, "toolCall": {"toolCallId": f"c{number}", "kind": "execute", "title": "again"},
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]})


def _unknown_requests(double: AcpDouble, _session: str) -> None:
    while True:
        double.request("fs/read_text_file", {"sessionId": "x", "path": "/etc/passwd"})


def _wrong_shapes(double: AcpDouble, session: str) -> None:
    news = {"sessionId": session, "update": {"sessionUpdate": "new"}}
    shapes: list[Any] = [[], 7, "text", {"id": [1]}, {"id": "x", "result": 1}, {"method": 5},
                         {"method": "session/update"}, {"method": "session/update", "params": news}]
    for shape in shapes:
        sys.stdout.write(json.dumps(shape) + "\n")
    sys.stdout.flush()


def _unknown_answers(double: AcpDouble, _session: str) -> None:
    for number in range(100_000):
        double.send(id=number + 10_000, result={"stopReason": "end_turn"})
    time.sleep(60)


def _close(_double: AcpDouble, _session: str) -> None:
    os.close(1)
    signal.pause()


BREACHES: Mapping[str, Callable[[AcpDouble, str], None]] = {
    "garbage": _garbage, "huge_line": _huge_line, "flood": _flood, "unknown_requests": _unknown_requests,
    "unknown_answers": _unknown_answers, "wrong_shapes": _wrong_shapes, "close": _close}
"""How an agent may break the protocol; `wrong_shapes` are overlooked."""
STEPS: Mapping[str, Callable[[AcpDouble, str, Json], str]] = {
    "say": AcpDouble._say, "other": AcpDouble._say_elsewhere, "write": AcpDouble._write, "run": AcpDouble._run,
    "ask": AcpDouble._ask, "tool": AcpDouble._tool, "await": AcpDouble._await, "error": AcpDouble._error,
    "stop": AcpDouble._stop, "die": AcpDouble._die, "exit": AcpDouble._exit, "late": AcpDouble._go_on_late,
    "breach": AcpDouble._breach}
"""Step → its function, which returns why the turn ends, '' to continue."""
METHODS: Mapping[str, Callable[[AcpDouble, Json], Json]] = {
    "initialize": AcpDouble.initialize, "authenticate": AcpDouble.authenticate, "session/new": AcpDouble.new_session,
    "session/load": AcpDouble.resume_session, "session/resume": AcpDouble.resume_session,
    "session/set_config_option": AcpDouble.set_option, "session/set_mode": AcpDouble.set_option,
    "session/prompt": AcpDouble.prompt}
"""Method → its handler."""


def main() -> None:
    """Play the script."""
    script = dict(json.loads(Path(sys.argv[1]).read_text()))
    if script.get("breach"):
        BREACHES[script["breach"]](AcpDouble(script, Path()), "")
    AcpDouble(script, Path.home() / "acp-double").serve()


if __name__ == "__main__":
    main()
