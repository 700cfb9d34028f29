// Requests to the server. A failed one becomes an Error whose message is one line for the user; every change is a POST
// with a header that another site cannot send.

import { serverEvents } from "./server_events.js";
import { bearer, endSession } from "./session.js";

const ENDED = "The server does not respond. Is `garrison serve` still running?";

/** What to do without a session. */
const NO_ACCESS = "This page has no access, or no longer has it: open the address that `garrison serve` printed.";

/** Request a path below /api with the session of this page. */
async function answer(path, { headers, ...options }) {
  const used = bearer();
  let response;
  try {
    response = await fetch(`/api/${path}`, { ...options, headers: { ...headers, Authorization: `Bearer ${used}` } });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw broken();
  }
  if (response.status === 401) {
    void endSession(used);
    throw new Error(NO_ACCESS);
  }
  return response;
}

/** The error of a broken connection: a retry may help. */
const broken = () => Object.assign(new Error(ENDED), { broken: true });

async function body(response) {
  const found = await response.json().catch(() => ({}));
  if (!response.ok || found.ok === false) throw new Error(found.message || `The server answered ${response.status}.`);
  return found;
}

/**
 * GET a path below /api; its JSON.
 * @param {string} path
 * @param {{signal?: AbortSignal}} [how]
 */
export async function get(path, how = {}) {
  return body(await answer(path, { signal: how.signal, headers: { Accept: "application/json" } }));
}

function post(path, data, signal) {
  return answer(path, {
    method: "POST",
    signal,
    body: JSON.stringify(data),
    headers: { "Content-Type": "application/json", "X-Garrison": "1" },
  });
}

/** POST a change; its JSON. */
export async function act(path, data) {
  return body(await post(path, data));
}

/** POST, and read the server-sent events of the answer: yields [id, data], data as JSON. */
export async function* posted(path, data, signal) {
  const response = await post(path, data, signal);
  if (!response.ok) await body(response);
  yield* answered(response);
}

/** Read the server-sent events of a GET from after an id; yields as `posted` does. */
export async function* replayed(path, last, signal) {
  const response = await answer(path, { signal, headers: { Accept: "text/event-stream", "Last-Event-ID": last } });
  if (!response.ok) await body(response);
  yield* answered(response);
}

/** Read the server-sent events of a GET as they come: yields { name, data }, data as JSON. */
export async function* streamed(path, signal) {
  const response = await answer(path, { signal, headers: { Accept: "text/event-stream" } });
  if (!response.ok) await body(response);
  for await (const { name, data } of serverEvents(response.body)) yield { name, data: JSON.parse(data) };
}

async function* answered(response) {
  try {
    for await (const { id, data } of serverEvents(response.body)) yield [id, JSON.parse(data)];
  } catch (problem) {
    throw problem instanceof TypeError ? broken() : problem;
  }
}

/** A path part: names come from graphs. */
export const part = encodeURIComponent;
