// Following what grows: a log, a transcript. The server holds its answer until there is more; nothing is asked for twice.

import { get } from "./api.js";

const HELD = 20; // seconds that the server may hold an answer
const PAUSE = 2000; // milliseconds until a failure is tried again, and between answers that were not held

/**
 * Follow `path` from `from` until `stop()`, or until it has ended and nobody is at work on it.
 * @param {string} path with its query begun
 * @param {number} from where to begin
 * @param {function(Object)} more told each answer
 * @param {function(Error)} failed told each failure; it is tried again
 * @param {function(): boolean} live whether more may come
 */
export function follower(path, from, more, failed, live) {
  const ending = new AbortController();
  const rest = ms => new Promise(resolve => setTimeout(resolve, ms));

  async function run() {
    let next = from, wait = 0;
    while (!ending.signal.aborted) {
      const asked = performance.now();
      try {
        const found = await get(`${path}&from=${next}${wait ? `&wait=${wait}` : ""}`, { signal: ending.signal });
        if (ending.signal.aborted) return;
        more(found);
        const grown = found.next !== next;
        next = found.next;
        if (!grown && (found.ended || !live())) return;
        if (!found.more && performance.now() - asked < PAUSE) await rest(PAUSE);
        wait = live() ? HELD : 0;
      } catch (problem) {
        if (ending.signal.aborted) return;
        failed(problem);
        await rest(PAUSE);
      }
    }
  }

  run();
  return { stop: () => ending.abort() };
}
