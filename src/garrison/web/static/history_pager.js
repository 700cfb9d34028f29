// Pages of a list of the past: from the latest to the oldest and back, a search in all of it, copied or downloaded. While
// no page is chosen the list is live.

import { el, say } from "./dom.js";
import { copy, download, tool } from "./text_tools.js";

const SETTLE = 300; // milliseconds between the last key and the search
const PAGE = 100;
const DOWNLOADED = 500; // entries of a request for a download

/**
 * The controls.
 * @param {function(Object): Promise<Object>} read requests a page: {before, after, limit, q}
 * @param {function(Object|null)} changed called with the page to show; null: the list is live
 * @param {function(): string} name of a downloaded file
 * @param {function(Object): string} line an entry as text
 * @returns {{element: Element, reset: function(boolean), grown: function(), searches: function(): boolean}}
 */
export function historyPager(read, changed, name, line) {
  const input = el("input", { type: "search", placeholder: "Search all of it", "aria-label": "Search in what happened", oninput: () => {
    clearTimeout(soon);
    soon = setTimeout(() => turn(input.value.trim() || always ? {} : null), SETTLE);
  } });
  const told = el("span", { class: "number", role: "status" });
  const oldest = tool("⇤", "Oldest", () => turn({ after: "" })), older = tool("‹ Older", "Older", () => turn({ before: page?.older ?? "" }));
  const newer = tool("Newer ›", "Newer", () => turn({ after: page?.newer ?? "" })), latest = tool("⇥ Latest", "Latest", () => turn(input.value.trim() || always ? {} : null));
  const element = el("div", { class: "pager", role: "search" }, input, told, el("span", { class: "ways" }, oldest, older, newer, latest),
    tool("Copy", "Copy this page", async () => copy((page ?? await ask({}))?.entries.map(line).join("\n") ?? "")),
    tool("Download", "Download all of it", () => download(name(), all())));
  let page = null, asked = 0, soon, always = false, stale = null;

  const ask = wanted => read({ limit: PAGE, q: input.value.trim(), ...wanted });

  /** Show another page, or the live list (null). */
  async function turn(wanted) {
    const mine = ++asked;
    if (wanted === null) {
      page = null;
      fill();
      changed(null);
      return;
    }
    try {
      if (wanted.before === "") wanted = { before: (await ask({})).older ?? undefined }; // from the live list
      const found = await ask(wanted);
      if (mine !== asked) return;
      page = found;
      fill();
      changed(page);
    } catch (problem) {
      if (mine === asked) say(told, problem.message);
    }
  }

  function fill() {
    say(told, page ? (page.total ? `${page.position + 1}–${page.position + page.entries.length} of ${page.total}` : "none") : "live");
    oldest.disabled = older.disabled = page !== null && page.older === null;
    newer.disabled = page === null || page.newer === null;
    latest.disabled = page === null;
  }

  /** Begin with another list; `paged`: it has no live form. */
  function reset(paged) {
    always = paged;
    input.value = "";
    turn(paged ? {} : null);
  }

  /** The run went on: a list without a live form is read again, if its latest page is shown. */
  function grown() {
    if (!always || input.value || !page || page.newer !== null || stale) return;
    stale = setTimeout(() => { stale = null; if (always && page?.newer === null && !input.value) turn({}); }, 1000);
  }

  async function* all() {
    for (let after = ""; after !== null;) {
      const found = await ask({ after, limit: DOWNLOADED });
      yield found.entries.map(each => `${line(each)}\n`).join("");
      after = found.newer;
    }
  }

  return { element, reset, grown, searches: () => input.value.trim() !== "" };
}
