// Ages on the page: one timer for all of them, and none of them is drawn while the page is hidden.

import { html, useEffect, useReducer, useRef } from "./view.js";
import { clock, millis, span } from "./words.js";

const EVERY = 5000; // milliseconds

const shown = new Set(); // functions that draw an age again, if its text has changed

setInterval(() => {
  if (!document.hidden) shown.forEach(renew => renew());
}, EVERY);

/** The age of a `time` on the wire, between `before` and `after`. */
export function Age({ time, before = "", after = "" }) {
  const [, again] = useReducer(/** @type {(count: number, action: void) => number} */ (count => count + 1), 0);
  const words = useRef("");
  const at = millis(time);
  const read = () => (at === null ? "" : `${before}${span((Date.now() - at) / 1000)}${after}`);
  words.current = read();
  useEffect(() => {
    const renew = () => {
      if (words.current !== read()) again();
    };
    shown.add(renew);
    return () => shown.delete(renew);
  }, [at, before, after]);
  return html`<time
    class="age"
    datetime=${at === null ? null : new Date(at).toISOString()}
    title=${at === null ? null : clock(time)}
    >${words.current}</time
  >`;
}
