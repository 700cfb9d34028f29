// A large run's nodes by state: those that failed, ask or are parked come first, by name; the many that wait or are
// done is a field of small signs below. It needs no layout, so that a thousand nodes are there with the first data.

import { shown } from "./state.js";
import { Empty, html, memo, reading, useLayoutEffect, useRef, useState } from "./view.js";
import { nodeLine, signOf, wordOf } from "./words.js";

const ORDER = [
  "asking",
  "failed",
  "parked",
  "stopped",
  "working",
  "landing",
  "waiting",
  "unchanged",
  "kept",
  "landed",
  "passed",
  "skipped",
];
const NAMED = new Set(["asking", "failed", "parked", "stopped", "working", "landing"]);
const NAMES = 120; // nodes of a group that is shown by name; a larger one is a field of signs

/**
 * The groups.
 * @param {Object} props
 * @param {import("./state").State} props.state
 * @param {Set<string>|null} props.found by a search: the others are faint
 * @param {string|null} props.at the one that the search is at: it is moved into view
 * @param {string|null} props.selected the node that is open
 * @param {(a: string) => void} props.choose opens a node
 */
export const NodeGroups = reading(["nodes", "gates", "status", "next"], ({ state, found, at, selected, choose }) => {
  const place = useRef(null);
  const [held, hold] = useState(""); // the node in the tab order
  useLayoutEffect(() => buttonOf(place.current, at)?.scrollIntoView({ block: "center" }), [at]);
  const groups = grouped(state);
  const wanted = at ?? held;
  const stop = state.nodes[wanted] ? wanted : groups[0]?.nodes[0].node;
  return html`<div
    class="groups"
    ref=${place}
    onKeyDown=${event => move(event, place.current)}
    onFocusIn=${event => hold(event.target.dataset.key ?? held)}
  >
    ${groups.map(
      ({ look, nodes }) =>
        html`<section key=${look} class="group s-${look}" aria-labelledby="group-${look}">
          <h3 id="group-${look}">
            <span class="sign" aria-hidden="true">${signOf(look)}</span> ${nodes.length} ${wordOf(look)}
          </h3>
          <ul class=${NAMED.has(look) && nodes.length <= NAMES ? "names" : "field"}>
            ${nodes.map(
              node =>
                html`<${One}
                  key=${node.node}
                  node=${node}
                  look=${look}
                  stop=${node.node === stop}
                  mark=${markOf(node.node, found, at, selected)}
                  choose=${choose}
                />`,
            )}
          </ul>
        </section>`,
    )}
    ${found && !found.size && html`<${Empty}>No node matches.<//>`}
  </div>`;
});

const One = memo(
  ({ node, look, stop, mark, choose }) =>
    html`<li>
      <button
        type="button"
        class="one ${mark}"
        data-key=${node.node}
        tabindex=${stop ? "0" : "-1"}
        aria-label=${nodeLine(node, look)}
        title=${nodeLine(node, look)}
        onClick=${() => choose(node.node)}
      >
        <span class="sign" aria-hidden="true">${signOf(look)}</span><span class="name">${node.node}</span>
      </button>
    </li>`,
);

const markOf = (name, found, at, selected) =>
  [name === selected && "chosen", name === at && "at", found && (found.has(name) ? "found" : "faint")]
    .filter(Boolean)
    .join(" ");

/** The groups that have nodes, the most urgent first. */
function grouped(state) {
  const found = new Map(ORDER.map(look => [look, []]));
  for (const node of Object.values(state.nodes))
    if (node.agent || node.status) found.get(shown(state, node)).push(node);
  return [...found].filter(([, nodes]) => nodes.length).map(([look, nodes]) => ({ look, nodes }));
}

const buttonOf = (place, name) => (name ? place.querySelector(`[data-key="${CSS.escape(name)}"]`) : null);

/** Move the focus to the next one to the left or right, or to the nearest one above or below. */
function move(event, place) {
  const all = [...place.querySelectorAll(".one")],
    at = all.indexOf(event.target);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (at < 0 || !(step || way)) return;
  event.preventDefault();
  (step ? all[at + step] : nearest(all, at, way))?.focus();
}

function nearest(all, at, way) {
  const here = all[at].getBoundingClientRect();
  const rows = way > 0 ? all.slice(at + 1) : all.slice(0, at).reverse();
  let line = null,
    best = null,
    least = Infinity;
  for (const one of rows) {
    const box = one.getBoundingClientRect();
    if ((box.top - here.top) * way < here.height / 2) continue; // the same row
    line ??= box.top;
    if (Math.abs(box.top - line) > 2) break;
    const far = Math.abs(box.left - here.left);
    if (far < least) [best, least] = [one, far];
  }
  return best;
}
