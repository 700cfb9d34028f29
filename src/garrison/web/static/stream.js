// Events of a run. All pages of a browser share one connection, in a worker that no page owns, so that none can end it for
// the others; in a browser without such workers a page has its own.

import { connect } from "./connection.js";
import { serverEvents } from "./server_events.js";
import { bearer, endSession, watchSession } from "./session.js";

const WORKER = "/static/stream_worker.js";
const VERSION = "garrison-4"; // changes with the messages between page and worker

/**
 * Follow a run's events until `close()`.
 * @param {string|null} run null: only the list of runs
 * @param {Object<string, function>} handlers `snapshot`, `change`, `beat`, `gone` and `runs` get their data; `link`
 *     gets "live", "lost" or "off"; `full` why the server has no room for another page
 * @returns {{close: () => void}}
 */
export function follow(run, handlers) {
  const stream = early?.run === run ? early : begin(run);
  early = null;
  stream.handlers = handlers;
  for (const [kind, data] of stream.came.splice(0)) handlers[kind]?.(data);
  return {
    close() {
      stream.closed = true;
      stream.open?.close();
      handlers.link?.("off");
    },
  };
}

/**
 * Follow a run before the page that draws it exists; `follow` of the same run gets the events so far. Its first event is
 * requested at once; the worker, which takes longer to start, continues after it.
 */
export function followEarly(run) {
  early = begin(run, firstEvent(run));
}

let early = null;

/** The first event of a run's stream; null if the server does not respond, which the stream itself will report. */
async function firstEvent(run) {
  const query = new URLSearchParams({ ...(run === null ? { runs: "1" } : { run }), first: "1" });
  try {
    const response = await fetch(`/api/events?${query}`, {
      headers: { Accept: "text/event-stream", Authorization: `Bearer ${bearer()}` },
    });
    if (response.ok) for await (const event of serverEvents(response.body)) return event;
  } catch {
    // as without a response
  }
  return null;
}

/** Follow, after a `first` event if one is on its way; events that come before the handlers are kept for them. */
function begin(run, first = null) {
  const stream = { run, came: [], handlers: null, open: null, closed: false };
  const handle = (kind, data) => {
    if (kind === "refused") void endSession(data);
    else if (!stream.handlers) stream.came.push([kind, data]);
    else if (!stream.closed) stream.handlers[kind]?.(data);
  };
  const alone = after => {
    const own = connect(bearer, handle);
    const stop = watchSession(() => own.renewed());
    stream.open = {
      close() {
        stop();
        own.close();
      },
    };
    own.follow(run, after);
  };
  const open = (after = "") => {
    if (stream.closed) return;
    try {
      stream.open = shared(run, after, handle, open, () => alone(after));
    } catch {
      alone(after);
    }
  };
  if (!first) open();
  else
    void first.then(event => {
      if (event) handle(event.name, JSON.parse(event.data));
      open(event?.id);
    });
  return stream;
}

/** Follow by the worker. `ended` is called when it has ended, for any reason; `failed`: this browser did not start it. */
function shared(run, after, handle, ended, failed) {
  const worker = new SharedWorker(WORKER, { type: "module", name: VERSION });
  const { port } = worker;
  const { locks } = navigator;
  const mine = `garrison-page-${Math.random()}`;
  let known = false;
  worker.addEventListener("error", event => {
    event.preventDefault();
    if (!known) failed();
  });
  port.addEventListener("message", ({ data: [kind, data] }) => {
    known = true;
    if (kind !== "worker") handle(kind, data);
    else
      locks.request(data, () => {
        handle("link", "lost");
        ended();
      });
  });
  port.start();
  port.postMessage(["session", bearer()]);
  port.postMessage(["follow", run, after]);
  const stop = watchSession(one => port.postMessage(["session", one]));
  let leave;
  locks?.request(mine, () => {
    port.postMessage(["lock", mine]);
    return new Promise(resolve => {
      leave = resolve;
    });
  });
  return {
    close() {
      stop();
      port.postMessage(["leave"]);
      leave?.();
    },
  };
}
