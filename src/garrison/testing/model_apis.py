"""Model APIs of the scripted server: how each encodes requests and answers. Pure.

A script sees every request as the same messages (`request`) and answers with a turn, so one script plays a model for
Claude, Codex, OpenCode and Gemini alike. `APIS` is the table of the differences; what several have in common comes
before it. Requests are decoded into shapes with the fields that are used; ids of answers are arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from garrison.records.record import read_foreign
from garrison.testing.request import Request, RequestMessage
from garrison.testing.turn import Block, ScriptError, Turn, Usage, result, text, thinking, use
from garrison.values import Value, replace

Body = dict[str, object]
"""JSON that is sent."""


class ModelApi(Value):
    """One API: where it is called, how its requests are read, and how it writes."""

    name: str
    route: str
    """Pattern of the path of a model call."""
    shape: type[Asked]
    message: Callable[[Turn, str, str], Body]
    """(turn, requested model, token) → the whole answer."""
    events: Callable[[Turn, str, str], Iterator[bytes]]
    """The same, as the encoded parts of a stream."""
    error: Callable[[Mapping[str, str], int, str], Body]
    """(error, HTTP status, token) → the body of a refusal."""
    stream_error: Callable[[Mapping[str, str], str], bytes]
    malformed: Mapping[str, bytes]
    """Value of the fault `malformed` → content of the stream."""

    def read(self, path: str, body: object) -> Request:
        """Decode a request; ScriptError if it is not one of the API."""
        try:
            return replace(read_foreign(self.shape, body).request(path.partition("?")[0]), body=body)
        except ValueError as error:
            raise ScriptError(f"not a request of the API {self.name}: {error}") from error


class Asked(Value):
    """A request of an API, with the fields that are used."""

    model: str = ""
    stream: bool = False

    def request(self, route: str) -> Request:
        """Convert it to what a script sees."""
        raise NotImplementedError


class _Words(Value):
    """A part of a content with text, of any kind."""

    type: str = ""
    text: str = ""


def _texts(content: str | Iterable[_Words]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class _Named(Value):
    name: str = ""


def _in_messages(said: Iterable[tuple[str, Block]]) -> tuple[RequestMessage, ...]:
    """Group blocks by author into messages.

    One response of the model is one message, also in an API with an item for each part; so are results.
    """
    found: list[RequestMessage] = []
    for role, block in said:
        last = found[-1] if found else None
        results = role == "user" and last is not None and {block.type, *(each.type for each in last.content)} == {
            "tool_result"}
        if last is not None and role == last.role and (role == "assistant" or results):
            found[-1] = replace(last, content=(*last.content, block))
        else:
            found.append(RequestMessage(role, (block,)))
    return tuple(found)


def _read_json(given: object) -> Mapping[str, object]:
    """Parse a JSON text as an input; any other text becomes the value of `text`."""
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"text": given}


def _read_tokens(given: Usage) -> int:
    return given.input + given.cache_read + given.cache_write


def _said(turn: Turn, token: str) -> Iterator[Block]:
    """Yield the blocks of a turn, each call of a tool with an id."""
    for index, block in enumerate(turn.blocks):
        yield replace(block, id=block.id or f"toolu_{token}_{index}") if block.type == "tool_use" else block


def _parts(words: str, piece: int) -> Iterator[str]:
    piece = max(1, piece)
    return (words[at:at + piece] for at in range(0, len(words), piece))


def _event(**event: object) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _data(body: Body) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def _malformed(event: bytes, order: bytes) -> Mapping[str, bytes]:
    return {"json": b'data: {"type": "content_block_del\n\n', "event": event, "order": order}


# ---- Anthropic: Messages


class _Part(_Words):
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Mapping[str, object] = msgspec.field(default_factory=dict)
    tool_use_id: str = ""
    content: str | tuple[_Words, ...] = ()
    is_error: bool = False

    @property
    def block(self) -> Block:
        match self.type:
            case "tool_use":
                return replace(use(self.name), input=self.input, id=self.id)
            case "tool_result":
                return result(self.tool_use_id, _texts(self.content), is_error=self.is_error)
            case "thinking":
                return thinking(self.thinking)
        return Block(self.type, self.text)


class _MessageOfMessages(Value):
    role: str = ""
    content: str | tuple[_Part, ...] = ()

    @property
    def message(self) -> RequestMessage:
        return RequestMessage(self.role, (text(self.content),) if isinstance(self.content, str) else
                       tuple(part.block for part in self.content))


class _Messages(Asked):
    system: str | tuple[_Words, ...] = ""
    tools: tuple[_Named, ...] = ()
    messages: tuple[_MessageOfMessages, ...] = ()

    def request(self, route: str) -> Request:
        return Request(self.model, self.stream, tuple(tool.name for tool in self.tools), _texts(self.system),
                       tuple(each.message for each in self.messages))


def _block_of_messages(block: Block) -> Body:
    match block.type:
        case "tool_use":
            return {"type": block.type, "name": block.name, "input": block.input, "id": block.id}
        case "thinking":
            # The signature is base64 of "scripted": the CLI sends it back unchanged, and only the real API verifies it.
            return {"type": block.type, "thinking": block.text, "signature": "c2NyaXB0ZWQ="}
    return {"type": block.type, "text": block.text}


def say_message(turn: Turn, asked_model: str, token: str) -> Body:
    """Return the whole message, for a request that does not stream."""
    return {"id": f"msg_{token}", "type": "message", "role": "assistant", "model": turn.model or asked_model,
            "content": [_block_of_messages(block) for block in _said(turn, token)], "stop_reason": turn.stop_reason,
            "stop_sequence": None, "usage": _usage_of_messages(turn.usage)}


def _events_of_messages(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    begun = {**say_message(turn, asked_model, token), "content": [], "stop_reason": None}
    # Like the real API: the first event counts one output token, the last one all.
    begun["usage"] = {**_usage_of_messages(turn.usage), "output_tokens": 1}
    yield _event(type="message_start", message=begun)
    for index, block in enumerate(_said(turn, token)):
        empty: Body = {"input": {}} if block.type == "tool_use" else \
            {"thinking": "", "signature": ""} if block.type == "thinking" else {"text": ""}
        yield _event(type="content_block_start", index=index, content_block={**_block_of_messages(block), **empty})
        for delta in _deltas(block, turn.piece):
            yield _event(type="content_block_delta", index=index, delta=delta)
        yield _event(type="content_block_stop", index=index)
    yield _event(type="message_delta", delta={"stop_reason": turn.stop_reason, "stop_sequence": None},
                 usage=_usage_of_messages(turn.usage))
    yield _event(type="message_stop")


def _deltas(block: Block, piece: int) -> Iterator[Body]:
    kind, field, words = {
        "thinking": ("thinking_delta", "thinking", block.text), "text": ("text_delta", "text", block.text),
        "tool_use": ("input_json_delta", "partial_json", json.dumps(block.input))}[block.type]
    for part in _parts(words, piece):
        yield {"type": kind, field: part}
    if block.type == "thinking":
        yield {"type": "signature_delta", "signature": "c2NyaXB0ZWQ="}


def _usage_of_messages(given: Usage) -> Body:
    return {"input_tokens": given.input, "cache_creation_input_tokens": given.cache_write,
            "cache_read_input_tokens": given.cache_read, "output_tokens": given.output, "service_tier": "standard"}


def _error_of_messages(error: Mapping[str, str], _status: int, token: str) -> Body:
    return {"type": "error", "error": dict(error), "request_id": f"req_{token}"}


# ---- OpenAI: Responses, as Codex speaks it. A tool that takes plain text gets it as `text`, its only input.


class _Tool(Value):
    type: str = ""
    name: str = ""
    tools: tuple[_Tool, ...] = ()


class _Item(Value):
    type: str = "message"
    role: str = "user"
    content: str | tuple[_Words, ...] = ""
    call_id: str = ""
    name: str = ""
    arguments: object = None
    input: object = None
    output: str | tuple[_Words, ...] = ""
    tools: tuple[_Tool, ...] = ()

    def said(self) -> Iterator[tuple[str, Block]]:
        """Yield its author with text or a tool call; nothing for other items."""
        if self.type == "message":
            yield "system" if self.role == "developer" else self.role, text(_texts(self.content))
        elif self.type in {"function_call", "custom_tool_call"}:
            given = self.input if self.arguments is None else self.arguments
            yield "assistant", replace(use(self.name), input=_read_json(given), id=self.call_id)
        elif self.type in {"function_call_output", "custom_tool_call_output"}:
            yield "user", result(self.call_id, _texts(self.output))


class _Responses(Asked):
    instructions: str = ""
    tools: tuple[_Tool, ...] = ()
    input: str | tuple[_Item, ...] = ()

    def request(self, route: str) -> Request:
        items = (_Item(content=self.input),) if isinstance(self.input, str) else self.input
        tools = [name for tools in (self.tools, *(item.tools for item in items)) for name in _tool_names(tools)]
        return Request(self.model, self.stream, tuple(tools), self.instructions,
                       _in_messages(each for item in items for each in item.said()))


def _tool_names(tools: Sequence[_Tool]) -> Iterator[str]:
    """Yield the names of tools, including those in namespaces."""
    for tool in tools:
        yield from _tool_names(tool.tools) if tool.type == "namespace" else (tool.name or tool.type,)


def _respond(turn: Turn, asked_model: str, token: str) -> Body:
    items = [_item(block, f"{token}_{index}") for index, block in enumerate(_said(turn, token))]
    return {"id": f"resp_{token}", "object": "response", "status": "completed", "model": turn.model or asked_model,
            "output": items, "usage": {
                "input_tokens": _read_tokens(turn.usage), "output_tokens": turn.usage.output,
                "input_tokens_details": {"cached_tokens": turn.usage.cache_read},
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": _read_tokens(turn.usage) + turn.usage.output}}


def _item(block: Block, name: str) -> Body:
    if block.type == "thinking":
        return {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": block.text}]}
    if block.type == "tool_use" and list(block.input) == ["text"]:
        return {"type": "custom_tool_call", "id": f"ctc_{name}", "call_id": block.id, "name": block.name,
                "input": block.input["text"], "status": "completed"}
    if block.type == "tool_use":
        return {"type": "function_call", "id": f"fc_{name}", "call_id": block.id, "name": block.name,
                "arguments": json.dumps(block.input), "status": "completed"}
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": block.text, "annotations": []}]}


def _events_of_responses(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    whole = _respond(turn, asked_model, token)
    yield _event(type="response.created",
                 response={**whole, "status": "in_progress", "output": [], "usage": None})
    for index, block in enumerate(_said(turn, token)):
        item = _item(block, f"{token}_{index}")
        is_text = item["type"] == "message"
        yield _event(type="response.output_item.added", output_index=index,
                     item={**item, "content": []} if is_text else item)
        for part in _parts(block.text if is_text else "", turn.piece):
            yield _event(type="response.output_text.delta", item_id=item["id"], output_index=index, content_index=0,
                         delta=part)
        yield _event(type="response.output_item.done", output_index=index, item=item)
    yield _event(type="response.completed", response=whole)


def _stream_error_of_responses(error: Mapping[str, str], token: str) -> bytes:
    return _event(type="response.failed", response={
        "id": f"resp_{token}", "status": "failed", "error": {"code": error["type"], "message": error["message"]}})


# ---- OpenAI: Chat Completions


class _Function(_Named):
    arguments: object = None


class _CallBody(Value):
    id: str = ""
    function: _Function = _Function()


class _ChatMessage(Value):
    role: str = ""
    content: str | tuple[_Words, ...] = ""
    tool_calls: tuple[_CallBody, ...] = ()
    tool_call_id: str = ""

    def said(self) -> Iterator[tuple[str, Block]]:
        """Yield its author with text or a tool call."""
        role = {"developer": "system", "tool": "user"}.get(self.role, self.role)
        if self.role == "tool":
            yield role, result(self.tool_call_id, _texts(self.content))
            return
        parts = self.content if not isinstance(self.content, str) else (_Words("text", self.content),)
        for part in parts if self.content else ():
            yield role, Block(part.type, part.text)
        for call in self.tool_calls:
            yield role, replace(use(call.function.name), input=_read_json(call.function.arguments), id=call.id)


class _Chat(Asked):
    tools: tuple[_CallBody, ...] = ()
    messages: tuple[_ChatMessage, ...] = ()

    def request(self, route: str) -> Request:
        return Request(self.model, self.stream, tuple(tool.function.name for tool in self.tools), "",
                       _in_messages(each for message in self.messages for each in message.said()))


def _head_of_chat(turn: Turn, asked_model: str, token: str, kind: str) -> Body:
    return {"id": f"chatcmpl-{token}", "object": kind, "created": 1, "model": turn.model or asked_model}


def _complete(turn: Turn, asked_model: str, token: str) -> Body:
    said: Body = {"role": "assistant", "content": _spoken(turn) or None}
    if calls := [{"id": block.id, "type": "function", "function": {
            "name": block.name, "arguments": json.dumps(block.input)}} for block in _calls(turn, token)]:
        said["tool_calls"] = calls
    return {**_head_of_chat(turn, asked_model, token, "chat.completion"), "usage": _usage_of_chat(turn.usage),
            "choices": [{"index": 0, "message": said, "finish_reason": _finish(turn)}]}


def _events_of_chat(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    """Yield the chunks of a stream; the last one has the counts, whether requested or not."""
    head = _head_of_chat(turn, asked_model, token, "chat.completion.chunk")

    def chunk(delta: Body, finish: str | None = None) -> bytes:
        return _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    for part in _parts(_spoken(turn), turn.piece):
        yield chunk({"content": part})
    for index, block in enumerate(_calls(turn, token)):
        yield chunk({"tool_calls": [{"id": block.id, "type": "function", "index": index,
                                     "function": {"name": block.name, "arguments": ""}}]})
        for part in _parts(json.dumps(block.input), turn.piece):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, _finish(turn))
    yield _data({**head, "choices": [], "usage": _usage_of_chat(turn.usage)})
    yield b"data: [DONE]\n\n"


def _usage_of_chat(given: Usage) -> Body:
    return {"prompt_tokens": _read_tokens(given), "prompt_tokens_details": {"cached_tokens": given.cache_read},
            "completion_tokens": given.output, "total_tokens": _read_tokens(given) + given.output}


def _error_of_openai(error: Mapping[str, str], _status: int, _token: str) -> Body:
    return {"error": {"message": error["message"], "type": error["type"], "param": None, "code": error["type"]}}


def _finish(turn: Turn) -> str:
    return {"tool_use": "tool_calls", "max_tokens": "length"}.get(turn.stop_reason, "stop")


def _spoken(turn: Turn) -> str:
    return "\n".join(block.text for block in turn.blocks if block.type == "text")


def _calls(turn: Turn, token: str) -> list[Block]:
    return [block for block in _said(turn, token) if block.type == "tool_use"]


# ---- Google: Gemini


class _GeminiCall(_Named):
    id: str = ""
    args: Mapping[str, object] = msgspec.field(default_factory=dict)


class _Returned(Value):
    id: str = ""
    response: Mapping[str, object] = msgspec.field(default_factory=dict)


class _GeminiPart(Value, rename="camel"):
    text: str = ""
    thought: bool = False
    function_call: _GeminiCall | None = None
    function_response: _Returned | None = None

    def blocks(self) -> Iterator[Block]:
        """Yield the part, unless it is a thought."""
        if (call := self.function_call) is not None:
            yield replace(use(call.name), input=call.args, id=call.id)
        elif (returned := self.function_response) is not None:
            told = returned.response
            yield result(returned.id, str(told.get("output") or told.get("error") or dict(told)))
        elif self.text and not self.thought:
            yield text(self.text)


class _Content(Value):
    role: str = ""
    parts: tuple[_GeminiPart, ...] = ()


class _GeminiTool(Value, rename="camel"):
    function_declarations: tuple[_Named, ...] = ()


class _Gemini(Asked):
    contents: tuple[_Content, ...] = ()
    tools: tuple[_GeminiTool, ...] = ()
    told: _Content | str = msgspec.field(default="", name="systemInstruction")
    system_instruction: _Content | str = ""

    def request(self, route: str) -> Request:
        """Convert it to what a script sees; the path names the model, and whether to stream."""
        system = self.told or self.system_instruction
        said = (("assistant" if content.role == "model" else "user", block)
                for content in self.contents for part in content.parts for block in part.blocks())
        return Request(
            route.rpartition("/")[2].partition(":")[0], route.endswith(":streamGenerateContent"),
            tuple(each.name for tool in self.tools for each in tool.function_declarations),
            system if isinstance(system, str) else "\n".join(part.text for part in system.parts), _in_messages(said))


def _generate(turn: Turn, asked_model: str, token: str) -> Body:
    return _candidate(turn, asked_model, token, [_part(block) for block in _said(turn, token)], is_last=True)


def _events_of_gemini(turn: Turn, asked_model: str, token: str) -> Iterator[bytes]:
    """Yield the parts of a stream; the last one has the counts."""
    for block in _said(turn, token):
        pieces = [replace(block, text=words) for words in _parts(block.text, turn.piece)]
        for piece in [block] if block.type == "tool_use" else pieces:
            yield _data(_candidate(turn, asked_model, token, [_part(piece)]))
    yield _data(_candidate(turn, asked_model, token, [{"text": ""}], is_last=True))


def _candidate(turn: Turn, asked_model: str, token: str, parts: list[Body], *, is_last: bool = False) -> Body:
    candidate: Body = {"index": 0, "content": {"role": "model", "parts": parts}}
    said: Body = {"responseId": f"r_{token}", "modelVersion": turn.model or asked_model, "candidates": [candidate]}
    if is_last:
        candidate["finishReason"] = "STOP"
        read = _read_tokens(turn.usage)
        said["usageMetadata"] = {"promptTokenCount": read, "cachedContentTokenCount": turn.usage.cache_read,
                                 "candidatesTokenCount": turn.usage.output, "totalTokenCount": read + turn.usage.output}
    return said


def _part(block: Block) -> Body:
    if block.type == "tool_use":
        return {"functionCall": {"id": block.id, "name": block.name, "args": block.input}}
    return {"text": block.text, "thought": True} if block.type == "thinking" else {"text": block.text}


_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
           429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


def _error_of_gemini(error: Mapping[str, str], status: int, _token: str) -> Body:
    return {"error": {"code": status, "message": error["message"], "status": _STATUS.get(status, "UNKNOWN")}}


# ---- the table


_SURPRISE = b'data: {"surprise": 0}\n\n'
_TEXT = {"type": "text_delta", "text": "?"}
MESSAGES = ModelApi(
    "messages", r"/v1/messages", _Messages, say_message, _events_of_messages, _error_of_messages,
    lambda error, token: _event(**_error_of_messages(error, 500, token)),
    {"json": b'event: content_block_delta\ndata: {"type": "content_block_del\n\n',
     "event": b'event: surprise\ndata: {"type": "surprise", "index": 0}\n\n',
     "order": _event(type="content_block_delta", index=7, delta=_TEXT)})
RESPONSES = ModelApi(
    "responses", r"(/v1)?/responses", _Responses, _respond, _events_of_responses, _error_of_openai,
    _stream_error_of_responses, _malformed(b'event: surprise\ndata: {"type": "surprise"}\n\n', _event(
        type="response.output_text.delta", item_id="msg_unknown", output_index=7, delta="?")))
CHAT = ModelApi(
    "chat", r"(/v1)?/chat/completions", _Chat, _complete, _events_of_chat, _error_of_openai,
    lambda error, token: _data(_error_of_openai(error, 500, token)),
    _malformed(_SURPRISE, _data({"choices": [{"index": 7, "delta": {"content": "?"}}]})))
GEMINI = ModelApi(
    "gemini", r"/v1(?:beta|alpha)?/models/[^/]+:(?:streamGenerateContent|generateContent)", _Gemini, _generate,
    _events_of_gemini, _error_of_gemini, lambda error, token: _data(_error_of_gemini(error, 500, token)),
    _malformed(_SURPRISE, _data({"candidates": [{"index": 7, "content": {"parts": [{"text": "?"}]}}]})))
APIS = (MESSAGES, RESPONSES, CHAT, GEMINI)


def find_api(route: str) -> ModelApi | None:
    """Return the API whose model is called at a path; None if there is none."""
    return next((api for api in APIS if re.fullmatch(api.route, route)), None)
