// Table of the run's nodes: everything that the graph shows, sorted by any column. The equal of the graph for keyboard and
// screen reader, and what is left where a graph cannot be drawn.

import { el, empty, keyed, say, set } from "./dom.js";
import { shown } from "./state.js";
import { reset, since } from "./time.js";
import { dollars, nodeWord, signOf } from "./words.js";

const ORDER = ["asking", "failed", "parked", "working", "landing", "waiting", "landed", "unchanged", "passed", "skipped"];
const COLUMNS = [
  ["node", "Node", row => row.name],
  ["state", "State", row => ORDER.indexOf(row.look)],
  ["attempt", "Attempt", row => row.node.attempt || 0],
  ["deaths", "Deaths", row => row.node.deaths || 0],
  ["since", "Since", row => row.node.since || ""],
  ["cost", "Cost", row => row.node.cost || 0],
  ["doing", "Doing", row => row.doing],
];
const FALLING = new Set(["attempt", "deaths", "since", "cost"]); // sorted from the highest first

/** The table; `choose` opens a node. */
export function nodeTable(choose) {
  const heads = COLUMNS.map(([key, words]) => el("th", { scope: "col", class: `c-${key}` },
    el("button", { type: "button", class: "quiet", onclick: () => sortBy(key) }, words)));
  const body = el("tbody");
  const nothing = empty("No node matches.");
  const table = el("table", { "aria-label": "Nodes of the pipeline" }, el("thead", {}, el("tr", {}, heads)), body);
  const element = el("div", { class: "node-table" }, table, nothing);
  let by = null, way = 1, latest = null, found = null;

  function sortBy(key) {
    way = by === key ? -way : FALLING.has(key) ? -1 : 1;
    by = key;
    COLUMNS.forEach(([name], at) => set(heads[at], "aria-sort", name === by ? (way > 0 ? "ascending" : "descending") : null));
    show(latest);
  }

  /** Show a state, in the order of the graph until a column is chosen; only the nodes in `names`, if it is given. */
  function show(state, names = found) {
    latest = state;
    found = names;
    if (!state) return;
    const rows = Object.values(state.nodes).filter(node => !names || names.has(node.node)).map(node => rowOf(state, node));
    if (by) {
      const value = COLUMNS.find(([key]) => key === by)[2];
      rows.sort((one, other) => way * compared(value(one), value(other)) || compared(one.name, other.name));
    }
    nothing.hidden = rows.length > 0;
    keyed(body, rows, row => row.name, make, update);
  }

  const make = row => el("tr", {},
    el("th", { scope: "row" }, el("button", { type: "button", class: "link-like name", onclick: () => choose(row.name) }, row.name),
      row.node.label && row.node.label !== row.name ? el("span", { class: "kind" }, row.node.label) : null),
    el("td", { class: "c-state" }, el("span", { class: "pill" })), el("td", { class: "c-attempt" }), el("td", { class: "c-deaths" }),
    el("td", { class: "c-since" }, since("")), el("td", { class: "c-cost" }), el("td", { class: "c-doing" }));

  function update(element, row) {
    const [, state, attempt, deaths, at, cost, doing] = element.children;
    set(state.firstChild, "class", `pill s-${row.look}`);
    say(state.firstChild, `${signOf(row.look)} ${nodeWord(row.node, row.look)}`);
    say(attempt, row.node.attempt || "");
    say(deaths, row.node.deaths || "");
    reset(at.firstChild, row.node.since);
    say(cost, dollars(row.node.cost));
    say(doing, row.doing);
    set(doing, "title", row.doing);
  }

  return { element, show, focus: () => (body.querySelector("button") ?? heads[0].firstChild).focus() };
}

function rowOf(state, node) {
  return { name: node.node, node, look: shown(state, node), doing: node.asks || node.doing || node.reason || (node.answer ? `answered: ${node.answer}` : "") };
}

const collator = new Intl.Collator(undefined, { numeric: true });
const compared = (one, other) => typeof one === "string" ? collator.compare(one, other) : one - other;
