// The connection that all pages of this browser share: a browser opens six connections to one host, so ten pages cannot
// have one each. A page that ends is forgotten, whatever the reason; no data of a run is kept.

import { connect } from "./connection.js";

const pages = new Map(); // port → the run that the page shows, or null
const name = `garrison-stream-${Math.random()}`;
const { locks } = navigator; // missing on a page that came without TLS from another machine
let held = false,
  bearer = ""; // the session that a page sent last

const connection = connect(
  () => bearer,
  (kind, data) => {
    for (const [port, run] of pages) if (data.run === undefined || data.run === run) port.postMessage([kind, data]);
  },
);

// A lock ends with its owner: so the pages notice this worker's end, and it theirs.
locks?.request(name, () => {
  held = true;
  for (const port of pages.keys()) port.postMessage(["worker", name]);
  return new Promise(() => {});
});

function gone(port) {
  const run = pages.get(port);
  if (!pages.delete(port)) return;
  if (!pages.size) connection.close();
  else if (![...pages.values()].includes(run)) connection.leave(run);
}

self.addEventListener("connect", (/** @type {MessageEvent} */ { ports: [port] }) => {
  port.addEventListener("message", ({ data: [kind, word, after] }) => {
    if (kind === "lock") locks?.request(word, () => gone(port));
    else if (kind === "leave") gone(port);
    else if (kind === "session") {
      bearer = word;
      connection.renewed();
    } else if (kind === "follow") {
      const shared = [...pages.values()].includes(word); // a page that has seen other events needs a snapshot with it
      pages.set(port, word);
      connection.follow(word, shared ? "" : after);
    }
  });
  port.start();
  if (held) port.postMessage(["worker", name]);
});
