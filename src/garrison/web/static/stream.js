// What happens in a run, as it happens. The rule of this room: all pages of a browser share one connection, by a worker
// that no page owns, so that none can end it for the others; where there is no such worker, a page has its own.

import { line } from "./line.js";

const WORKER = "/static/stream_worker.js";
const VERSION = "garrison-1"; // another where page and worker would not understand each other

/**
 * Follow a run's events until `close()`.
 * @param {string|null} run null: only the list of runs
 * @param {Object<string, function>} hear `snapshot`, `change`, `beat`, `gone` and `runs` are told their data; `link` is
 *     told "live", "lost" or "off"
 * @returns {{close: function()}}
 */
export function follow(run, hear) {
  let open = null;
  const told = (kind, data) => { if (open) hear[kind]?.(data); };
  const alone = () => {
    const own = line(told);
    open = own;
    own.follow(run);
  };
  const begin = () => {
    try {
      open = shared(run, told, begin, alone);
    } catch {
      alone();
    }
  };
  begin();
  return {
    close() {
      open.close();
      open = null;
      hear.link?.("off");
    },
  };
}

/** By the worker. `ended`: it has ended, however that came; `failed`: this browser did not start it. */
function shared(run, told, ended, failed) {
  const worker = new SharedWorker(WORKER, { type: "module", name: VERSION });
  const { port } = worker;
  const { locks } = navigator;
  const mine = `garrison-page-${Math.random()}`;
  let known = false;
  worker.addEventListener("error", event => { event.preventDefault(); if (!known) failed(); });
  port.addEventListener("message", ({ data: [kind, data] }) => {
    known = true;
    if (kind !== "worker") told(kind, data);
    else locks.request(data, () => { told("link", "lost"); ended(); });
  });
  port.start();
  port.postMessage(["follow", run]);
  let leave;
  locks?.request(mine, () => {
    port.postMessage(["lock", mine]);
    return new Promise(resolve => { leave = resolve; });
  });
  return { close() { port.postMessage(["leave"]); leave?.(); } };
}
