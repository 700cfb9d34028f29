// Panel of the run's nodes: as a graph and as a table, with a search in both. Graphviz lays the graph out in a worker that
// has a deadline; where it passes, the table takes its place, and a line says so.

import { el, keyed, panel, say, set } from "./dom.js";
import { graphDrawing } from "./graph_drawing.js";
import { legibleGraph } from "./legible.js";
import { nodeTable } from "./node_table.js";
import { shown } from "./state.js";
import { nodeLine, signOf } from "./words.js";

const STEP = 1.25;
const DEADLINE = 10000; // milliseconds for a layout
const LONGER = 6; // times that, for a person who asks again
const VIEW = "garrison.nodes.view"; // what this browser showed last

/**
 * The panel.
 * @param {function(string)} choose called with the node that a person opens
 * @returns {{section: Element, show: function(Object, Set<string>|null, boolean), select: function(string|null), focus: function(),
 *     table: function(), search: function()}}
 */
export function graphPanel(choose) {
  const tab = (name, words) => el("button", { type: "button", role: "tab", class: "quiet", id: `nodes-tab-${name}`, "aria-controls": `nodes-${name}`,
    onclick: () => turn(name, true), onkeydown: event => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = name === "graph" ? "table" : "graph";
      turn(other, true);
      tabs[other].focus();
    } }, words);
  const tabs = { table: tab("table", "Table"), graph: tab("graph", "Graph") }; // the table first for keys and screen readers
  const input = el("input", { type: "search", placeholder: "Find a node", "aria-label": "Find a node", oninput: () => seek(),
    onkeydown: event => {
      if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape" && input.value) { event.stopPropagation(); input.value = ""; seek(); }
    } });
  const hits = el("span", { class: "number", role: "status" });
  const tool = (words, label, does) => el("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: does }, words);
  const busy = el("button", { type: "button", class: "quiet", title: "Go to the next node at work", onclick: () => drawing.toBusy() }, "At work");
  const sizes = el("div", { class: "tools", role: "group", "aria-label": "Size of the drawing" }, busy,
    tool("−", "Smaller", () => drawing.zoom(1 / STEP)), tool("+", "Larger", () => drawing.zoom(STEP)), tool("Fit", "Fit: show the whole graph", () => drawing.fit(true)));
  const { section, body } = panel("graph", "Pipeline", el("div", { class: "tabs", role: "tablist", "aria-label": "How to show the nodes" }, tabs.table, tabs.graph),
    el("div", { class: "find", role: "search" }, input, hits), sizes);
  const note = el("p", { class: "note", role: "status", hidden: true });
  const table = nodeTable(choose);
  const view = el("div", { class: "view", id: "nodes-graph", role: "tabpanel", "aria-labelledby": "nodes-tab-graph" });
  const list = el("div", { class: "list", id: "nodes-table", role: "tabpanel", "aria-labelledby": "nodes-tab-table", hidden: true }, table.element);
  const inner = el("ul", { class: "inner", "aria-label": "Nodes of nested pipelines", hidden: true });
  body.append(note, list, view, inner);
  const drawing = graphDrawing(view, choose);
  const waits = el("p", { class: "empty", hidden: true }, "Drawing the graph…");
  view.append(waits);

  let worker = null, timer = 0, asked = 0, dot = null, both = null, way = "";
  let latest = null, chosen = localStorage.getItem(VIEW) === "table" ? "table" : "graph", at = -1, found = null;

  // ---- layout

  function draw(text, deadline = DEADLINE) {
    dot = text;
    both = null;
    worker ??= start();
    waits.hidden = drawing.drawn();
    clearTimeout(timer);
    timer = setTimeout(() => failed(`it was not laid out within ${deadline / 1000} s`), deadline);
    worker.postMessage({ id: ++asked, dot: legibleGraph(dot) });
  }

  function start() {
    const made = new Worker("/static/graph_worker.js", { type: "module" });
    made.addEventListener("message", ({ data }) => {
      if (data.id !== asked) return;
      clearTimeout(timer);
      if (data.problem) failed(data.problem);
      else { both = data; way = ""; arrange(); }
    });
    made.addEventListener("error", () => failed("Graphviz did not start in this browser"));
    return made;
  }

  /** Show the table instead. */
  function failed(why) {
    clearTimeout(timer);
    worker?.terminate();
    worker = null;
    both = null;
    drawing.clear();
    waits.hidden = true;
    note.replaceChildren(`The graph is not drawn: ${why}. The table has all of its nodes. `,
      el("button", { type: "button", class: "quiet", onclick: () => { note.hidden = true; turn("graph"); draw(dot, DEADLINE * LONGER); } }, "Try longer"));
    note.hidden = false;
    turn("table");
  }

  /** Choose the direction that the view shows larger, and draw it if it is not shown yet. */
  function arrange() {
    if (!both || view.hidden || !view.clientWidth) return;
    const better = drawing.room(sizeOf(both.right)) > drawing.room(sizeOf(both.down)) * 1.05 ? "right" : "down";
    if (better === way) { drawing.refit(); return; }
    way = better;
    waits.hidden = note.hidden = true;
    drawing.put(both[way]);
    within(latest);
    if (found) drawing.search(found);
  }

  // ---- what is shown

  /** Show graph or table; `kept`: in this browser from now on. */
  function turn(name, kept = false) {
    chosen = name;
    if (kept) localStorage.setItem(VIEW, name);
    for (const [other, control] of Object.entries(tabs)) {
      set(control, "aria-selected", String(other === name));
      set(control, "tabindex", other === name ? "0" : "-1");
    }
    view.hidden = sizes.hidden = name !== "graph";
    list.hidden = name !== "table";
    if (name === "table") table.show(latest, found);
    within(latest);
    arrange();
  }

  /** Draw what changed: `names`, or every node; `followed` are edges that were followed since. */
  function show(state, names, followed) {
    latest = state;
    if (!state) return;
    if (state.dot !== dot) draw(state.dot);
    drawing.show(state, names);
    if (followed) drawing.ways(followed);
    if (chosen === "table") table.show(state, found);
    within(state);
    const working = Object.values(state.nodes).filter(node => ["working", "asking"].includes(shown(state, node))).length;
    busy.disabled = !working;
    say(busy, working ? `At work (${working})` : "At work");
  }

  /** List the nodes of nested pipelines, which have no place in the drawing. */
  function within(state) {
    const nested = state && drawing.drawn() && chosen === "graph" ? Object.values(state.nodes).filter(node => !drawing.has(node.node)) : [];
    inner.hidden = !nested.length;
    keyed(inner, nested, node => node.node, node => el("li", {}, el("button", { type: "button", onclick: () => choose(node.node) })),
      (item, node) => {
        const look = shown(state, node);
        set(item.firstChild, "class", `chip s-${look}`);
        set(item.firstChild, "aria-label", nodeLine(node, look));
        say(item.firstChild, `${signOf(look)} ${node.node}`);
      });
  }

  // ---- search

  function seek() {
    const words = input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const all = Object.values(latest?.nodes ?? {});
    const hit = node => words.every(word => [node.node, node.label, node.agent, shown(latest, node)].some(text => String(text ?? "").toLowerCase().includes(word)));
    found = words.length && latest ? new Set(all.filter(hit).map(node => node.node)) : null;
    at = -1;
    say(hits, found ? `${found.size} of ${all.length}` : "");
    drawing.search(found);
    if (chosen === "table") table.show(latest, found);
    else if (found?.size) next(1);
  }

  function next(step) {
    if (!found?.size) return;
    const names = [...found];
    at = (at + step + names.length) % names.length;
    if (chosen === "graph") drawing.search(found, names[at]);
    else table.focus();
  }

  new ResizeObserver(() => arrange()).observe(view);
  turn(chosen);
  return {
    section, show, select: drawing.select, focus: () => { turn("graph"); drawing.focus(); },
    table: () => { turn("table"); table.focus(); }, search: () => input.focus(),
  };
}

function sizeOf(svg) {
  const [, width, height] = /viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"/.exec(svg) ?? [0, 100, 100];
  return [Number(width), Number(height)];
}
