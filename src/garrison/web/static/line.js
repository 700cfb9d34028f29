// The connection to the server: one, for all runs that are looked at in this browser. The rule of this room: it comes
// back by itself, says where it stands, and goes on in each run after the last event it saw.

const FIRST_WAIT = 500; // milliseconds, doubled with each failure
const LONGEST_WAIT = 8000;
const SILENCE = 45000; // the server says something far more often than this
const EVENTS = ["snapshot", "change", "beat", "gone", "runs", "alive"];

/**
 * A connection that follows no run yet.
 * @param {function(string, Object|string)} hear told each event, its name and data, and ("link", "live" or "lost")
 * @returns {{follow: function(string|null), leave: function(string|null), close: function()}} `follow`: from a snapshot on,
 *     whether or not it was followed already; of no run, only the list of runs comes
 */
export function line(hear) {
  const places = new Map(); // run → the id of the last event of it
  let source = null, failures = 0, timer, watch;

  function heard() {
    clearTimeout(watch);
    watch = setTimeout(again, SILENCE);
  }

  function open() {
    const runs = [...places.keys()];
    const query = new URLSearchParams([["runs", "1"], ...runs.map(run => ["run", run])]);
    if (runs.some(run => places.get(run))) query.set("after", [...places.values()].join(","));
    source?.close();
    source = new EventSource(`/api/events?${query}`);
    source.addEventListener("open", () => { hear("link", "live"); heard(); });
    source.addEventListener("error", lost);
    for (const name of EVENTS) {
      source.addEventListener(name, event => {
        event.lastEventId.split(",").forEach((id, at) => id && places.has(runs[at]) && places.set(runs[at], id));
        failures = 0;
        heard();
        if (name !== "alive") hear(name, JSON.parse(event.data));
      });
    }
  }

  // Where the connection broke, the browser tries again by itself, with Last-Event-ID. An answer such as 503 is final to
  // it: then a new one is made here, and told the last id in its address.
  function lost() {
    hear("link", "lost");
    clearTimeout(watch);
    if (source.readyState === EventSource.CLOSED) again();
  }

  function again() {
    soon(Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures));
    failures += 1;
  }

  /** Open it anew; the one that is open goes on until then. */
  function soon(wait = 0) {
    clearTimeout(timer);
    clearTimeout(watch);
    timer = setTimeout(open, wait);
  }

  return {
    follow(run) {
      if (run !== null) places.set(run, "");
      soon();
    },
    leave(run) {
      if (places.delete(run)) soon();
    },
    close() {
      places.clear();
      clearTimeout(timer);
      clearTimeout(watch);
      source?.close();
    },
  };
}
