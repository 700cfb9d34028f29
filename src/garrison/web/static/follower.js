// Follow a file that grows: a log, a transcript. The server delays its answer until there is more; nothing is requested
// twice. A hidden page requests nothing, and few of a browser's connections wait.

import { get } from "./api.js";

const HELD = 20; // seconds for which the server may delay an answer
const HELD_AT_ONCE = 3; // answers, by all pages of a browser; it opens six connections to one host
const PAUSE = 2000; // milliseconds before a retry, and between answers that were not delayed

/**
 * Follow `path` from `from` until `stop()`, or until it has ended and no agent works on it.
 * @param {string} path with its query started
 * @param {number} from where to start
 * @param {(a: Object) => void} more called with each answer
 * @param {(a: Error) => void} failed called with each failure, which is retried
 * @param {() => boolean} live whether more may come
 */
export function follower(path, from, more, failed, live) {
  let stopped = false,
    asking = new AbortController();
  const rest = ms => new Promise(resolve => setTimeout(resolve, ms));
  const hide = () => document.hidden && asking.abort();
  const seen = () => new Promise(resolve => document.addEventListener("visibilitychange", resolve, { once: true }));

  async function run() {
    let next = from,
      wait = 0;
    while (!stopped) {
      while (document.hidden && !stopped) await seen();
      const asked = performance.now();
      asking = new AbortController();
      try {
        const found = await holding(wait, held =>
          get(`${path}&from=${next}${held ? `&wait=${held}` : ""}`, { signal: asking.signal }),
        );
        if (stopped) return;
        more(found);
        const grown = found.next !== next;
        next = found.next;
        if (!grown && (found.ended || !live())) return;
        if (!found.more && performance.now() - asked < PAUSE) await rest(PAUSE);
        wait = live() ? HELD : 0;
      } catch (problem) {
        if (stopped) return;
        if (problem.name === "AbortError") continue; // the page is hidden
        failed(problem);
        await rest(PAUSE);
      }
    }
  }

  document.addEventListener("visibilitychange", hide);
  run().finally(() => document.removeEventListener("visibilitychange", hide));
  return {
    stop: () => {
      stopped = true;
      asking.abort();
    },
  };
}

/** Request an answer that is delayed up to `wait` seconds; one that is not delayed, if enough others are. */
function holding(wait, ask) {
  if (!wait || !navigator.locks) return ask(wait);
  const slot = `garrison-held-${Math.floor(Math.random() * HELD_AT_ONCE)}`;
  return navigator.locks.request(slot, { ifAvailable: true }, lock => ask(lock ? wait : 0));
}
