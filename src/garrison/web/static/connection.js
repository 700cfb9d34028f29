// Connection to the server: one, for all runs that this browser follows. It reconnects by itself, sends its position, and
// continues in each run after the last event it saw.

const FIRST_WAIT = 500; // milliseconds, doubled with each failure
const LONGEST_WAIT = 8000;
const SILENCE = 45000; // the server sends a keepalive far more often
const EVENTS = ["snapshot", "change", "beat", "gone", "runs", "alive"];

/**
 * A connection that follows no run yet.
 * @param {function(string, Object|string)} handle called with the name and data of each event, and ("link", "live" or "lost")
 * @returns {{follow: function(string|null), leave: function(string|null), close: function()}} `follow`: begin with a
 *     snapshot, even if the run is followed already; with no run, only the list of runs is sent
 */
export function connect(handle) {
  const places = new Map(); // run → the id of the last event of it
  let source = null, failures = 0, timer, watch;

  function received() {
    clearTimeout(watch);
    watch = setTimeout(reconnect, SILENCE);
  }

  function open() {
    const runs = [...places.keys()];
    const query = new URLSearchParams([["runs", "1"], ...runs.map(run => ["run", run])]);
    if (runs.some(run => places.get(run))) query.set("after", [...places.values()].join(","));
    source?.close();
    source = new EventSource(`/api/events?${query}`);
    source.addEventListener("open", () => { handle("link", "live"); received(); });
    source.addEventListener("error", lost);
    for (const name of EVENTS) {
      source.addEventListener(name, event => {
        event.lastEventId.split(",").forEach((id, at) => id && places.has(runs[at]) && places.set(runs[at], id));
        failures = 0;
        received();
        if (name !== "alive") handle(name, JSON.parse(event.data));
      });
    }
  }

  // After a broken connection the browser reconnects by itself, with Last-Event-ID. An answer such as 503 is final for it:
  // then a new connection is made here, with the last id in its address.
  function lost() {
    handle("link", "lost");
    clearTimeout(watch);
    if (source.readyState === EventSource.CLOSED) reconnect();
  }

  function reconnect() {
    soon(Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures));
    failures += 1;
  }

  /** Open a new connection; the current one stays open until then. */
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
