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
  let open = null;
  const handle = (kind, data) => {
    if (kind === "refused") void endSession(data);
    else if (open) handlers[kind]?.(data);
  };
  const alone = () => {
    const own = connect(bearer, handle);
    const stop = watchSession(() => own.renewed());
    open = {
      close() {
        stop();
        own.close();
      },
    };
    own.follow(run);
  };
  const begin = () => {
    try {
      open = shared(run, handle, begin, alone);
    } catch {
      alone();
    }
  };
  begin();
  return {
    close() {
      open.close();
      open = null;
      handlers.link?.("off");
    },
  };
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
