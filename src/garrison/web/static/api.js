// Requests to the server. A failed one becomes an Error whose message is one line for people; every change is a POST with
// the header that another site cannot send.

const ENDED = "The server does not respond. Is `garrison serve` still running?";
const NO_ENTRY = "This browser has no access: open the address that `garrison serve` printed.";

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw broken();
  }
  if (response.status === 401) throw new Error(NO_ENTRY);
  return response;
}

/** The error of a broken connection: a retry may help. */
const broken = () => Object.assign(new Error(ENDED), { broken: true });

async function body(response) {
  const found = await response.json().catch(() => ({}));
  if (!response.ok || found.ok === false) throw new Error(found.message || `The server answered ${response.status}.`);
  return found;
}

/** GET a path below /api; its JSON. `signal` is an AbortSignal. */
export async function get(path, { signal } = {}) {
  return body(await answer(fetch(`/api/${path}`, { signal, headers: { Accept: "application/json" } })));
}

function post(path, data, signal) {
  return answer(fetch(`/api/${path}`, {
    method: "POST", signal, body: JSON.stringify(data),
    headers: { "Content-Type": "application/json", "X-Garrison": "1" },
  }));
}

/** POST a change; its JSON. */
export async function act(path, data) {
  return body(await post(path, data));
}

/** POST, and read the server-sent events of the answer: yields [id, data], data as JSON. */
export async function* posted(path, data, signal) {
  const response = await post(path, data, signal);
  if (!response.ok) await body(response);
  yield* events(response.body);
}

/** Read the server-sent events of a GET from after an id; yields as `posted` does. */
export async function* replayed(path, last, signal) {
  const response = await answer(fetch(`/api/${path}`, { signal, headers: { Accept: "text/event-stream", "Last-Event-ID": last } }));
  if (!response.ok) await body(response);
  yield* events(response.body);
}

/** The events of a text/event-stream body: yields [id, data], data as JSON. */
async function* events(stream) {
  const decoder = new TextDecoder();
  let left = "";
  for (const reader = stream.getReader(); ;) {
    const { value, done } = await reader.read().catch(() => { throw broken(); });
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
  let id = "";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const [, name, value] = /^\s*(\w+): ?(.*)$/.exec(line) ?? [];
    if (name === "id") id = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? [id, JSON.parse(data.join("\n"))] : null;
}

/** A path part: names come from graphs. */
export const part = encodeURIComponent;
