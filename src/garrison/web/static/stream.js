// The live connection to a run. The rule of this room: it comes back by itself, says where it stands, and goes on after
// the last event it saw, so that what reads it misses nothing.

const FIRST_WAIT = 500; // milliseconds, doubled with each failure
const LONGEST_WAIT = 8000;
const SILENCE = 45000; // the server says something far more often than this

/**
 * Follow a run's events until `close()`.
 * @param {string} run
 * @param {{snapshot: function(Object), change: function(Object, string), beat: function(Object), link: function(string)}} hear
 *     `link` is told "live", "lost" or "off"
 */
export function follow(run, hear) {
  let source, last = "", failures = 0, timer, watch, closed = false;

  function heard() {
    clearTimeout(watch);
    watch = setTimeout(again, SILENCE);
  }

  function on(name, then) {
    source.addEventListener(name, event => {
      if (event.lastEventId) last = event.lastEventId;
      failures = 0;
      heard();
      then(event.data ? JSON.parse(event.data) : {}, event.lastEventId);
    });
  }

  function open() {
    const after = last ? `&after=${encodeURIComponent(last)}` : "";
    source = new EventSource(`/api/events?run=${encodeURIComponent(run)}${after}`);
    source.addEventListener("open", () => { hear.link("live"); heard(); });
    on("snapshot", hear.snapshot);
    on("change", hear.change);
    on("beat", hear.beat);
    on("bye", () => {});
    source.addEventListener("error", lost);
  }

  // Where the connection broke, the browser tries again by itself, with Last-Event-ID. An answer such as 503 is final to
  // it: then a new one is made here, and told the last id in its address.
  function lost() {
    hear.link("lost");
    clearTimeout(watch);
    if (source.readyState === EventSource.CLOSED) again();
  }

  function again() {
    source.close();
    clearTimeout(timer);
    clearTimeout(watch);
    if (closed) return;
    timer = setTimeout(open, Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures));
    failures += 1;
  }

  open();
  return {
    close() {
      closed = true;
      again();
      hear.link("off");
    },
  };
}
