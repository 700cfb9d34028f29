// Panel of the run's graph, live. Graphviz draws it once; an event changes only the class, the symbol and the name of its
// nodes, never the layout, so that two hundred nodes cost as little as two.

import { el, keyed, panel, say, set } from "./dom.js";
import { legibleGraph } from "./legible.js";
import { shown } from "./state.js";
import { drawing } from "./svg_filter.js";
import { nodeLine, signOf } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const READABLE = 0.8; // a drawing is not made smaller than this to fit; it scrolls instead
const LARGEST = 1.5;
const STEP = 1.25;
const ROOM = 30; // pixels around the drawing

/**
 * The graph's panel.
 * @param {function(string)} choose called with the node that a person opens
 * @returns {{section: Element, show: function(Object, Set<string>|null), select: function(string|null), focus: function()}}
 */
export function graphPanel(choose) {
  const fitButton = el("button", { type: "button", class: "quiet", onclick: () => fit(true) }, "Fit");
  const { section, body } = panel("graph", "Pipeline", el("div", { class: "tools", role: "group", "aria-label": "Size of the drawing" },
    el("button", { type: "button", class: "quiet", "aria-label": "Smaller", onclick: () => zoom(1 / STEP) }, "−"),
    el("button", { type: "button", class: "quiet", "aria-label": "Larger", onclick: () => zoom(STEP) }, "+"),
    fitButton));
  const view = el("div", { class: "view" });
  const inner = el("ul", { class: "inner", "aria-label": "Nodes of nested pipelines", hidden: true });
  body.append(view, inner);

  let worker, dot = null, drawn = null, both = null, way = "", scale = 0, fitted = true;
  let latest = null, current = null, asked = 0;
  let marks = new Map(); // node → what of it changes

  function draw(text) {
    dot = text;
    worker ??= start();
    worker.postMessage({ id: ++asked, dot: legibleGraph(dot) });
  }

  function start() {
    const made = new Worker("/static/graph_worker.js", { type: "module" });
    made.addEventListener("message", ({ data }) => {
      if (data.id !== asked) return;
      if (data.problem) failed(data.problem);
      else { both = data; way = ""; arrange(); }
    });
    made.addEventListener("error", () => failed("Graphviz did not start in this browser"));
    return made;
  }

  function failed(why) {
    view.replaceChildren(el("p", { class: "empty" }, `The graph cannot be drawn (${why}); its nodes:`),
      el("ul", { class: "plain" }, Object.values(latest.nodes).map(node =>
        el("li", {}, el("button", { type: "button", class: "link-like", onclick: () => choose(node.node) }, nodeLine(node))))));
  }

  /** Choose the direction that the panel shows larger, and draw it if it is not shown yet. */
  function arrange() {
    if (!both) return;
    const sizes = { down: sizeOf(both.down), right: sizeOf(both.right) };
    const better = room(sizes.right) > room(sizes.down) * 1.05 ? "right" : "down";
    if (better !== way) put(better);
    else if (fitted) fit();
  }

  function room([width, height]) {
    const across = view.clientWidth / width;
    return Math.max(Math.min(across, view.clientHeight / height, LARGEST), Math.min(across, READABLE));
  }

  function put(better) {
    way = better;
    drawn = drawing(both[way]);
    marks = new Map();
    set(drawn.svg, "role", "group");
    set(drawn.svg, "aria-label", "Nodes of the pipeline; arrow keys move, Enter opens");
    for (const [name, g] of drawn.nodes) equip(name, g);
    view.replaceChildren(drawn.svg);
    fit();
    show(latest, null);
    roving(current ?? first());
    toWork();
  }

  function equip(name, g) {
    set(g, "role", "button");
    set(g, "tabindex", "-1");
    g.dataset.node = name;
    const box = [...g.children].find(child => child.localName !== "text");
    const [x, y] = corner(box);
    const sign = document.createElementNS(SVG, "text");
    sign.classList.add("sign");
    set(sign, "x", x);
    set(sign, "y", y);
    const title = document.createElementNS(SVG, "title");
    g.append(sign, title);
    marks.set(name, { g, sign, title, line: "", x, y });
    g.addEventListener("click", () => { roving(name); choose(name); });
    g.addEventListener("keydown", event => pressed(event, name));
  }

  function pressed(event, name) {
    if (event.key === "Enter" || event.key === " ") choose(name);
    else if (event.key.startsWith("Arrow")) move(name, event.key);
    else if (event.key === "Home") roving(first(), true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Move to the nearest node in a direction: distance across counts double. */
  function move(from, key) {
    const here = marks.get(from);
    let best = null, least = Infinity;
    for (const [name, { x, y }] of marks) {
      const [along, across] = { ArrowRight: [x - here.x, y - here.y], ArrowLeft: [here.x - x, y - here.y],
        ArrowDown: [y - here.y, x - here.x], ArrowUp: [here.y - y, x - here.x] }[key];
      const far = along + 2 * Math.abs(across);
      if (name !== from && along > 1 && far < least) { best = name; least = far; }
    }
    if (best !== null) roving(best, true);
  }

  const first = () => marks.keys().next().value;

  /** Keep one node in the tab order; `focused` moves the focus there as well. */
  function roving(name, focused = false) {
    if (!marks.has(name)) return;
    for (const [other, { g }] of marks) set(g, "tabindex", other === name ? "0" : "-1");
    if (!focused) return;
    marks.get(name).g.focus();
    marks.get(name).g.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Draw what changed: `names`, or every node. */
  function show(state, names) {
    latest = state;
    if (!state) return;
    if (state.dot !== dot) draw(state.dot);
    within(state);
    for (const name of names ?? marks.keys()) {
      const mark = marks.get(name), node = state.nodes[name];
      if (mark && node) paint(mark, node, shown(state, node));
    }
  }

  /** List the nodes of nested pipelines, which have no place in the drawing. */
  function within(state) {
    const found = drawn ? Object.values(state.nodes).filter(node => !drawn.nodes.has(node.node)) : [];
    inner.hidden = !found.length;
    keyed(inner, found, node => node.node, node => el("li", {}, el("button", { type: "button", onclick: () => choose(node.node) })),
      (item, node) => {
        const look = shown(state, node);
        set(item.firstChild, "class", `chip s-${look}`);
        set(item.firstChild, "aria-label", nodeLine(node, look));
        say(item.firstChild, `${signOf(look)} ${node.node}`);
      });
  }

  function paint(mark, node, state) {
    const line = nodeLine(node, state);
    if (mark.line === line && mark.state === state) return;
    Object.assign(mark, { line, state });
    set(mark.g, "class", `node s-${state}${current === node.node ? " chosen" : ""}`);
    say(mark.sign, [state === "waiting" ? "" : signOf(state), node.deaths ? `↻${node.deaths}` : ""].join(" ").trim());
    set(mark.g, "aria-label", line);
    say(mark.title, line);
  }

  function select(name) {
    marks.get(current)?.g.classList.remove("chosen");
    current = name;
    marks.get(current)?.g.classList.add("chosen");
    if (name) roving(name);
  }

  function resize(to) {
    scale = to;
    drawn.svg.style.width = `${Math.floor(drawn.width * scale)}px`;
    drawn.svg.style.height = `${Math.floor(drawn.height * scale)}px`;
  }

  /** Make it as large as fits; never too small to read, except as an `overview`. */
  function fit(overview = false) {
    if (!drawn) return;
    fitted = !overview;
    const whole = Math.min((view.clientWidth - ROOM) / drawn.width, (view.clientHeight - ROOM) / drawn.height);
    resize(Math.max(Math.min(whole, LARGEST), overview ? 0 : READABLE));
  }

  function zoom(by) {
    if (!drawn) return;
    fitted = false;
    const [x, y] = [(view.scrollLeft + view.clientWidth / 2) / view.scrollWidth, (view.scrollTop + view.clientHeight / 2) / view.scrollHeight];
    resize(Math.min(4, Math.max(0.1, scale * by)));
    view.scrollTo(x * view.scrollWidth - view.clientWidth / 2, y * view.scrollHeight - view.clientHeight / 2);
  }

  /** Scroll a drawing that does not fit to a working node. */
  function toWork() {
    const busy = [...marks.values()].find(({ state }) => state === "working" || state === "asking");
    if (!busy) return;
    const [here, all] = [busy.g.getBoundingClientRect(), view.getBoundingClientRect()]; // scrollIntoView moved the page too
    view.scrollBy(here.left + here.width / 2 - all.left - all.width / 2, here.top + here.height / 2 - all.top - all.height / 2);
  }

  new ResizeObserver(() => arrange()).observe(view);

  return { section, show, select, focus: () => roving(current ?? first(), true) };
}

function sizeOf(svg) {
  const [, width, height] = /viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"/.exec(svg) ?? [0, 100, 100];
  return [Number(width), Number(height)];
}

/** The upper right corner of a shape, from its numbers: there is no layout yet. */
function corner(shape) {
  if (!shape) return [0, 0];
  if (shape.localName === "ellipse") {
    const of = name => Number(shape.getAttribute(name));
    return [of("cx") + of("rx") * 0.7, of("cy") - of("ry") * 0.8];
  }
  const numbers = (shape.getAttribute("points") ?? shape.getAttribute("d") ?? "").match(/-?\d+(\.\d+)?/g)?.map(Number) ?? [0, 0];
  const top = Math.min(...numbers.filter((_, at) => at % 2 === 1));
  return [Math.max(...numbers.filter((_, at) => at % 2 === 0 && numbers[at + 1] < top + 1)), top];
}
