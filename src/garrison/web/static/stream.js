// Events of a run. All pages of a browser share one connection, in a worker that no page owns, so that none can end it for
// the others; in a browser without such workers a page has its own.

import { connect } from "./connection.js";
import { bearer, endSession, watchSession } from "./session.js";

const WORKER = "/static/stream_worker.js";
const VERSION = "garrison-3"; // changes with the messages between page and worker

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
      stream.open.close();
      stream.open = null;
      handlers.link?.("off");
    },
  };
}

/** Follow a run while the modules that draw it are being loaded; `follow` of the same run gets what has come. */
export function followEarly(run) {
  early = begin(run);
}

let early = null;

/** Begin to follow; what comes before there are handlers is kept for them. */
function begin(run) {
  const stream = { run, came: [], handlers: null, open: null };
  const handle = (kind, data) => {
    if (kind === "refused") void endSession(data);
    else if (!stream.handlers) stream.came.push([kind, data]);
    else if (stream.open) stream.handlers[kind]?.(data);
  };
  const alone = () => {
    const own = connect(bearer, handle);
    const stop = watchSession(() => own.renewed());
    stream.open = {
      close() {
        stop();
        own.close();
      },
    };
    own.follow(run);
  };
  const open = () => {
    try {
      stream.open = shared(run, handle, open, alone);
    } catch {
      alone();
    }
  };
  open();
  return stream;
}

/** Start the worker, which takes longer than a session. */
export function prepare() {
  try {
    new SharedWorker(WORKER, { type: "module", name: VERSION });
  } catch {
    // a page follows alone then
  }
}

/** Follow by the worker. `ended` is called when it has ended, for any reason; `failed`: this browser did not start it. */
function shared(run, handle, ended, failed) {
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
  port.postMessage(["follow", run]);
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
