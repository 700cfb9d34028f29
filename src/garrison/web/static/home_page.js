// Page of a home: what waits for you in any run, with its answers, then all runs as a table. Search, filter and order are in
// the address, so that a view can be sent or kept.

import { act, get, part } from "./api.js";
import { el, empty, keyed, panel, say, set } from "./dom.js";
import { emptyHome } from "./empty_home.js";
import { attempt, link, tab } from "./notice.js";
import { runsTable } from "./runs_table.js";
import { follow } from "./stream.js";
import { ages } from "./time.js";
import { waitCards } from "./waits.js";
import { count } from "./words.js";

const CARDS = 20; // shown at once; the table has the others
const AT = { run: 0, gate: 1, asks: 1, parked: 2, failed: 3 }; // the most urgent first

/** Build the page into `main`; its shortcuts. */
export async function begin(main) {
  const { write } = await get("home");
  const number = el("span", { class: "number" });
  const waits = panel("waits", "Waits for you", number);
  const cards = el("ul", { class: "cards" });
  const more = el("p", { class: "kind" });
  const nothing = empty("Nothing is waiting for you.");
  waits.body.append(nothing, cards, more);
  const table = runsTable();
  const makers = new Map();

  function makerOf(run) {
    if (!makers.has(run)) makers.set(run, waitCards(
      (node, tab = "") => { location.href = `/?${new URLSearchParams({ run, node, ...(tab ? { tab } : {}) })}`; },
      (path, data, control) => attempt(control, () => act(`runs/${part(run)}/${path}`, data))));
    return makers.get(run);
  }

  /** What a card shows of a node; only one with an agent can fail. */
  const nodeOf = wait => wait.node ? { node: wait.node, asks: wait.text, agent: wait.kind === "failed" } : null;

  function card({ run, status, wait }) {
    const made = makerOf(run).card(wait, { run, status, write });
    made.querySelector(".card-head").append(el("a", { class: "of-run", href: `/?run=${part(run)}` }, run));
    return made;
  }

  function show({ home, runs }) {
    const all = runs.flatMap(run => (run.waits ?? []).map(wait => ({ run: run.run, status: run.status, wait: { ...wait, node: nodeOf(wait) } })));
    if (!runs.length) return emptyHome(main, home);
    if (!table.section.isConnected) main.replaceChildren(waits.section, table.section);
    main.className = "home-page";
    all.sort((one, other) => AT[one.wait.kind] - AT[other.wait.kind]);
    say(number, all.length || "");
    waits.section.classList.toggle("some", all.length > 0);
    nothing.hidden = all.length > 0;
    keyed(cards, all.slice(0, CARDS), one => `${one.run} ${one.wait.key}`, card, (element, one) => makerOf(one.run).renew(element, one.wait));
    say(more, all.length > CARDS ? `and ${count(all.length - CARDS, "item")} more; the filter "waits for you" lists their runs` : "");
    table.show(runs);
    tab("", all.length);
  }

  set(document.querySelector(".skip"), "href", "#waits-title");
  ages(main);
  const stream = await new Promise(resolve => {
    const opened = follow(null, { link, runs: list => { show(list); resolve(opened); } });
  });
  window.addEventListener("pagehide", () => stream.close());
  window.addEventListener("pageshow", event => event.persisted && location.reload());
  window.addEventListener("popstate", () => table.restore());
  return [["/", "search the runs", () => table.search()], ["w", "go to what waits for you", () => {
    (cards.querySelector("button, input") ?? waits.heading).focus();
  }], ["c", "go to the chat", () => { location.href = "/chat"; }]];
}
