// Server-sent events of a response body. An EventSource sends no bearer, so the page reads them itself.

/** The events of a text/event-stream body: yields { id, name, data }, data as text. */
export async function* serverEvents(stream) {
  const decoder = new TextDecoder();
  let left = "";
  for (const reader = stream.getReader(); ;) {
    const { value, done } = await reader.read();
    left += done ? "\n\n" : decoder.decode(value, { stream: true });
    const blocks = left.split(/\r?\n[ \t]*\r?\n/);
    left = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      if (event) yield event;
    }
    if (done) return;
  }
}

function parsed(block) {
  let id = "",
    event = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const [, name, value] = /^\s*(\w+): ?(.*)$/.exec(line) ?? [];
    if (name === "id") id = value;
    else if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { id, name: event, data: data.join("\n") } : null;
}
