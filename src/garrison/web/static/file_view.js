// View of a file that an agent writes, however long it is: it follows the end, goes back piece by piece to the beginning,
// is searched by the server, copied and downloaded. What a piece looks like is its user's business.

import { get } from "./api.js";
import { el, empty, say } from "./dom.js";
import { follower } from "./follower.js";
import { copy, download, tool } from "./text_tools.js";

const PIECE = 256 * 1024; // bytes of a piece
const END = 400000; // bytes at the end that are shown first
const KEPT = 2000000; // characters on the page; more is let go at the other end

/**
 * The view, in `place` (a scrolled element).
 * @param {Element} place
 * @param {Object} of
 * @param {string} of.address path of the pieces, with its query begun
 * @param {string} of.search path of the search, with its query begun
 * @param {string} of.name of the downloaded file
 * @param {string} of.nothing what to say of an empty file
 * @param {Element} of.box holds the pieces
 * @param {function(Object, string|null): Node[]} of.render nodes of a piece; the first place of a searched text is a <mark>
 * @param {function(Object): string} of.text a piece as text
 * @param {function(): boolean} of.live whether more may come
 * @returns {{stop: function()}}
 */
export function fileView(place, of) {
  const earlier = tool("Earlier", "Earlier: show what was before", () => back());
  const later = tool("Later", "Later: show what came after", () => forth());
  const latest = tool("Latest", "Latest: follow the end", () => follow());
  const input = el("input", { type: "search", placeholder: "Search", "aria-label": "Search in all of it",
    onkeydown: event => { if (event.key === "Enter") { event.preventDefault(); find(event.shiftKey); } }, oninput: () => { hit = null; say(told, ""); } });
  const told = el("span", { class: "number", role: "status" });
  const bar = el("div", { class: "file-bar" }, input, tool("↑", "Search back", () => find(true)), tool("↓", "Search on", () => find(false)), told,
    earlier, later, latest, tool("Copy", "Copy what is shown", () => copy(pieces.map(one => of.text(one.found)).join(""))),
    tool("Download", "Download all of it", () => download(of.name, whole())));
  const nothing = empty(of.nothing);
  place.replaceChildren(bar, nothing, of.box);
  let pieces = [], following = null, hit = null, stopped = false;

  const begin = () => pieces[0]?.found.from ?? 0;
  const end = () => pieces.at(-1)?.found.next ?? 0;

  function show() {
    earlier.hidden = !begin();
    later.hidden = latest.hidden = following !== null;
    nothing.hidden = pieces.length > 0;
  }

  function put(found, first, needle = null) {
    const nodes = of.render(found, needle);
    const piece = { found, nodes, size: of.text(found).length };
    if (first) { pieces.unshift(piece); of.box.prepend(...nodes); } else { pieces.push(piece); of.box.append(...nodes); }
    let all = pieces.reduce((sum, one) => sum + one.size, 0);
    while (all > KEPT && pieces.length > 1) {
      const gone = first ? pieces.pop() : pieces.shift();
      gone.nodes.forEach(node => node.remove());
      all -= gone.size;
      if (first) unfollow(); // what is shown does not end at the end any more
    }
    show();
  }

  function clear() {
    unfollow();
    pieces = [];
    of.box.replaceChildren();
  }

  function unfollow() {
    following?.stop();
    following = null;
  }

  /** Follow the end. */
  function follow() {
    clear();
    following = follower(of.address, -END, found => {
      if (!of.text(found)) return;
      const atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40 || !pieces.length;
      put(found, false);
      if (atEnd) place.scrollTop = place.scrollHeight;
    }, problem => { say(nothing, problem.message); nothing.hidden = false; }, of.live);
    show();
  }

  async function piece(from, until) {
    try {
      return await get(`${of.address}&from=${from}${until === undefined ? "" : `&until=${until}`}`);
    } catch (problem) {
      say(told, problem.message);
      return null;
    }
  }

  /** Show what is before; the view stays at its line. */
  async function back() {
    const until = begin();
    const found = await piece(Math.max(0, until - PIECE), until);
    if (!found || stopped || begin() !== until) return;
    const height = place.scrollHeight;
    put(found, true);
    place.scrollTop += place.scrollHeight - height;
    if (begin() && place.scrollHeight === height) back(); // a piece without anything to show
  }

  async function forth() {
    const found = await piece(end());
    if (!found || stopped) return;
    if (found.next === end()) follow();
    else put(found, false);
  }

  async function find(backwards) {
    const words = input.value;
    if (!words) return;
    say(told, "Searching…");
    let from = hit === null ? (backwards ? -1 : 0) : backwards ? hit : hit + 1;
    for (;;) {
      let found;
      try {
        found = await get(`${of.search}&q=${encodeURIComponent(words)}&from=${from}${backwards ? "&back=1" : ""}`);
      } catch (problem) {
        say(told, problem.message);
        return;
      }
      if (stopped || input.value !== words) return;
      if (found.found !== null) { await reveal(found, words); return; }
      if (found.next === null) break;
      from = found.next;
    }
    say(told, hit === null ? "Not found" : "No more");
  }

  async function reveal({ found: at, line, size }, words) {
    const around = await piece(line);
    if (!around || stopped) return;
    hit = at;
    clear();
    put(around, false, words);
    say(told, `at ${size ? Math.floor(100 * at / size) : 0} %`);
    (of.box.querySelector("mark") ?? of.box.firstElementChild)?.scrollIntoView({ block: "center" });
  }

  async function* whole() {
    for (let from = 0; ;) {
      const found = await get(`${of.address}&from=${from}`);
      yield of.text(found);
      if (found.next === from || (!found.more && found.next >= (found.size ?? found.next))) return;
      from = found.next;
    }
  }

  follow();
  return { stop() { stopped = true; unfollow(); } };
}
