// Drawing of the run's graph in a scrolled view: painted by each event, walked by arrow keys, found by a search. Graphviz
// has laid it out; an event changes only classes, symbols and names, never the layout, so that a thousand nodes cost as
// little as two.

import { boxOf, isBox, joinLines, middle, squeeze } from "./graph_shapes.js";
import { legible } from "./legible.js";
import { shown } from "./state.js";
import { drawing } from "./svg_filter.js";
import { count, nodeLine, signOf } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const READABLE = 1; // a drawing is not made smaller than this to fit; it scrolls instead
const LARGE = 150; // nodes from which its labels have the size of the page's text
const LARGE_READABLE = 1.2;
const LARGEST = 1.5;
const SIGN = 7; // pixels between a node's side and its sign
const SLANT = 0.12; // share of the width that a sign keeps to the point of a diamond or a hexagon
const OVERVIEW = 0.75; // the size to which a drawing may shrink that opens as a whole
const ROOM = 30; // pixels around the drawing

/** Set an attribute of an element of the drawing, or its text: the page is touched only by a change. */
function set(element, name, value) {
  const written = legible(String(value));
  if (element.getAttribute(name) !== written) element.setAttribute(name, written);
}
function say(element, text) {
  const written = legible(text);
  if (element.textContent !== written) element.textContent = written;
}

/**
 * The drawing.
 * @param {Element} place contains it, and scrolls; nothing else draws in it
 * @param {Object} map its map: see `miniMap`
 * @param {(a: string) => void} choose opens a node
 * @returns {Object} `put` takes a layout, `clear` removes it; the others do what their names say
 */
export function graphDrawing(place, map, choose) {
  let drawn = null,
    scale = 0,
    fitted = true,
    latest = null,
    current = null,
    found = null;
  let marks = new Map(); // node → its parts that change

  function put(written) {
    drawn = drawing(written);
    marks = new Map();
    set(drawn.svg, "role", "group");
    set(drawn.svg, "aria-label", "Nodes of the pipeline; arrow keys move, Enter opens");
    for (const [name, g] of drawn.nodes) equip(name, g);
    place.replaceChildren(drawn.svg);
    squeeze(marks);
    fit();
    paintAll(latest);
    map.put([...marks.values()], drawn);
    roving(current ?? first());
    open();
  }

  /** Show what matters: the nodes at work, else those that failed, else the whole, as far as it is readable. */
  function open() {
    const [here] = [...busy(), ...unwell()];
    if (here) return centre(here);
    if (whole() >= OVERVIEW) return fit(OVERVIEW);
    centre(marks.values().next().value);
    place.scrollTop = 0;
  }

  function clear() {
    drawn = null;
    marks = new Map();
    place.replaceChildren();
    map.put([], null);
  }

  function equip(name, g) {
    set(g, "role", "button");
    set(g, "tabindex", "-1");
    g.dataset.node = name;
    const shape = [...g.children].find(child => child.localName !== "text");
    const box = boxOf(shape);
    const sign = document.createElementNS(SVG, "text");
    sign.classList.add("sign");
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    set(sign, "y", y); // every shape is widest there
    const inset = SIGN + (isBox(shape) ? 0 : box.width * SLANT);
    const [state, deaths] = ["start", "end"].map((side, at) => {
      const part = document.createElementNS(SVG, "tspan");
      set(part, "x", at ? box.x + box.width - inset : box.x + inset);
      set(part, "text-anchor", side);
      return part;
    });
    const title = document.createElementNS(SVG, "title");
    g.append(sign, title);
    marks.set(name, { name, g, sign, signs: { state, deaths }, title, line: "", state: "", x, y, box });
    g.addEventListener("click", () => {
      roving(name);
      choose(name);
    });
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
    let best = null,
      least = Infinity;
    for (const [name, { x, y }] of marks) {
      const [along, across] = {
        ArrowRight: [x - here.x, y - here.y],
        ArrowLeft: [here.x - x, y - here.y],
        ArrowDown: [y - here.y, x - here.x],
        ArrowUp: [here.y - y, x - here.x],
      }[key];
      const far = along + 2 * Math.abs(across);
      if (name !== from && along > 1 && far < least) {
        best = name;
        least = far;
      }
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

  /** Draw what changed of a state: the nodes of these `names`, or every node. */
  function show(state, names) {
    latest = state;
    if (!drawn) return;
    if (names) names.forEach(name => paintNode(state, name));
    else paintAll(state);
    map.paint();
  }

  function paintAll(state) {
    if (!state) return;
    for (const name of marks.keys()) paintNode(state, name);
    for (const [index, times] of Object.entries(state.followed ?? {})) follow(index, times);
  }

  function paintNode(state, name) {
    const mark = marks.get(name),
      node = state.nodes[name];
    if (mark && node) paint(mark, node, shown(state, node));
  }

  function paint(mark, node, state) {
    const line = nodeLine(node, state);
    if (mark.line === line && mark.state === state) return;
    if (!mark.line) joinLines(mark.g, node.node);
    Object.assign(mark, { line, state });
    dress(mark);
    say(mark.signs.state, state === "waiting" ? "" : signOf(state));
    say(mark.signs.deaths, node.deaths ? `↻${node.deaths}` : "");
    mark.sign.replaceChildren(...Object.values(mark.signs).filter(part => part.textContent)); // an empty one has no place
    set(mark.g, "aria-label", line);
    say(mark.title, line);
  }

  const dress = mark =>
    set(
      mark.g,
      "class",
      [`node s-${mark.state}`, current === mark.name && "chosen", found && (found.has(mark.name) ? "found" : "faint")]
        .filter(Boolean)
        .join(" "),
    );

  /** Mark edges as followed: {index: how often}. */
  function ways(followed) {
    if (drawn) for (const [index, times] of Object.entries(followed)) follow(index, times);
  }

  function follow(index, times) {
    const g = drawn.edges.get(index);
    if (!g) return;
    g.classList.add("followed");
    let title = g.querySelector("title");
    if (!title) g.append((title = document.createElementNS(SVG, "title")));
    say(title, `followed ${times === 1 ? "once" : count(times, "time")}`);
    if (times < 2) return;
    let label = g.querySelector(".times");
    if (!label) {
      label = document.createElementNS(SVG, "text");
      label.classList.add("times");
      const { x, y } = middle(g.querySelector("path"));
      set(label, "x", x);
      set(label, "y", y - 3);
      g.append(label);
    }
    say(label, `×${times}`);
  }

  function select(name) {
    const before = marks.get(current);
    current = name;
    for (const mark of [before, marks.get(name)]) if (mark) dress(mark);
    if (name) roving(name);
  }

  /** Mark the nodes that a search found (a set of names), or none (null); `show` one of them. */
  function search(names, at = null) {
    found = names;
    marks.forEach(dress);
    map.paint(found);
    if (at !== null && marks.has(at)) {
      roving(at);
      centre(marks.get(at));
    }
  }

  function resize(to) {
    scale = to;
    drawn.svg.style.width = `${Math.floor(drawn.width * scale)}px`;
    drawn.svg.style.height = `${Math.floor(drawn.height * scale)}px`;
    map.moved();
  }

  const whole = () => Math.min((place.clientWidth - ROOM) / drawn.width, (place.clientHeight - ROOM) / drawn.height);

  /** Make it as large as fits; never too small to read, except as an overview of at least the size `least`. */
  function fit(least = 0) {
    if (!drawn) return;
    fitted = !least;
    resize(Math.max(Math.min(whole(), LARGEST), least || (marks.size > LARGE ? LARGE_READABLE : READABLE)));
  }

  function zoom(by) {
    if (!drawn) return;
    fitted = false;
    const [x, y] = [
      (place.scrollLeft + place.clientWidth / 2) / place.scrollWidth,
      (place.scrollTop + place.clientHeight / 2) / place.scrollHeight,
    ];
    resize(Math.min(4, Math.max(0.05, scale * by)));
    place.scrollTo(x * place.scrollWidth - place.clientWidth / 2, y * place.scrollHeight - place.clientHeight / 2);
  }

  /** The nodes that are working or ask the user, in the order of the graph. */
  const busy = () => [...marks.values()].filter(({ state }) => state === "working" || state === "asking");
  const unwell = () => [...marks.values()].filter(({ state }) => state === "failed" || state === "parked");

  function centre(mark) {
    if (!mark) return;
    const [here, all] = [mark.g.getBoundingClientRect(), place.getBoundingClientRect()]; // scrollIntoView would move the page too
    place.scrollBy(
      here.left + here.width / 2 - all.left - all.width / 2,
      here.top + here.height / 2 - all.top - all.height / 2,
    );
  }

  let visited = -1;
  /** Go to the next such node, in a readable size; false if there is none. */
  function toBusy() {
    const all = busy();
    if (!all.length) return false;
    visited = (visited + 1) % all.length;
    if (scale < READABLE) fit();
    roving(all[visited].name);
    centre(all[visited]);
    return true;
  }

  /** The share of a layout's size that the view can show. */
  function room([width, height]) {
    const across = place.clientWidth / width;
    return Math.max(Math.min(across, place.clientHeight / height, LARGEST), Math.min(across, READABLE));
  }

  return {
    put,
    clear,
    show,
    ways,
    select,
    search,
    fit,
    zoom,
    toBusy,
    room,
    has: name => marks.has(name),
    refit: () => fitted && fit(),
    focus: () => roving(current ?? first(), true),
    drawn: () => drawn !== null,
  };
}
