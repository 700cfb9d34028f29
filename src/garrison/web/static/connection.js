// Connection to the server: one, for all runs that this browser follows. It reconnects by itself, sends its position, and
// continues in each run after the last event it saw.

import { serverEvents } from "./server_events.js";

const FIRST_WAIT = 500; // milliseconds, doubled with each failure
const LONGEST_WAIT = 8000;
const SILENCE = 45000; // the server sends a keepalive far more often
const ENDED = 1000; // milliseconds until it connects again to a server that ended the stream

/**
 * A connection that follows no run yet.
 * @param {() => string} bearer the session
 * @param {(a: string, b: Object|string) => void} handle called with the name and data of each event, ("link", "live" or
 *     "lost"), ("full", why) if the server has no room, and ("refused", bearer); then it waits for `follow` or `renewed`
 * @returns {{follow: (a: string|null, after?: string) => void, leave: (a: string|null) => void, renewed: () => void,
 *     close: () => void}} `follow`: start after an event of the run, or with a snapshot, even if the run is followed
 *     already; with no run, only the list of runs is sent
 */
export function connect(bearer, handle) {
  const places = new Map(); // run → the id of the last event of it
  let asking = null,
    refused = false,
    failures = 0,
    timer,
    watch;

  function received() {
    clearTimeout(watch);
    watch = setTimeout(() => lost(), SILENCE);
  }

  async function open() {
    const runs = [...places.keys()];
    const query = new URLSearchParams([["runs", "1"], ...runs.map(run => ["run", run])]);
    const last = runs.some(run => places.get(run)) ? { "Last-Event-ID": [...places.values()].join(",") } : {};
    asking?.abort();
    const mine = (asking = new AbortController());
    refused = false;
    const used = bearer();
    try {
      const response = await fetch(`/api/events?${query}`, {
        signal: mine.signal,
        headers: { ...last, Accept: "text/event-stream", Authorization: `Bearer ${used}` },
      });
      if (response.status === 401) return ended(used);
      if (response.status === 503) handle("full", (await response.json()).message);
      if (!response.ok) return lost();
      handle("link", "live");
      received();
      for await (const { id, name, data } of serverEvents(response.body)) {
        if (mine.signal.aborted) return;
        id.split(",").forEach((one, at) => one && places.has(runs[at]) && places.set(runs[at], one));
        failures = 0;
        received();
        if (name !== "alive") handle(name, JSON.parse(data));
      }
      lost(ENDED);
    } catch {
      if (!mine.signal.aborted) lost();
    }
  }

  function ended(used) {
    refused = true;
    clearTimeout(watch);
    handle("link", "lost");
    handle("refused", used);
  }

  function lost(wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures)) {
    handle("link", "lost");
    failures += 1;
    soon(wait);
  }

  /** Open a new connection; the current one stays open until then. */
  function soon(wait = 0) {
    clearTimeout(timer);
    clearTimeout(watch);
    timer = setTimeout(open, wait);
  }

  return {
    follow(run, after = "") {
      if (run !== null) places.set(run, after);
      soon();
    },
    leave(run) {
      if (places.delete(run)) soon();
    },
    renewed() {
      if (refused) soon();
    },
    close() {
      places.clear();
      clearTimeout(timer);
      clearTimeout(watch);
      asking?.abort();
    },
  };
}
