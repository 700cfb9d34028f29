// Table of the run's nodes: everything that the graph shows, sorted by any column. It is equivalent for keyboard and
// screen reader, and the fallback where a graph cannot be drawn.

import { SortedHeads } from "./sorted_heads.js";
import { shown } from "./state.js";
import { Age } from "./time.js";
import { Empty, html, memo, reading } from "./view.js";
import { dollars, nodeWord, signOf } from "./words.js";

const ORDER = [
  "asking",
  "failed",
  "parked",
  "stopped",
  "working",
  "landing",
  "waiting",
  "landed",
  "unchanged",
  "kept",
  "passed",
  "skipped",
];
/** @type {Array<[string, string, (row: any) => any]>} name, title, the value that orders */
const COLUMNS = [
  ["node", "Node", row => row.name],
  ["state", "State", row => ORDER.indexOf(row.look)],
  ["attempt", "Attempt", row => row.node.attempt || 0],
  ["deaths", "Deaths", row => row.node.deaths || 0],
  ["since", "Since", row => row.node.since || ""],
  ["cost", "Cost", row => row.node.cost || 0],
  ["doing", "Doing", row => row.doing],
];
const END = "Msquare"; // shape of the exit
const FALLING = new Set(["attempt", "deaths", "since", "cost"]); // from the highest down, at the first click

/**
 * The table.
 * @param {Object} props
 * @param {import("./state").State} props.state
 * @param {Set<string>|null} props.found only these nodes
 * @param {{by: string|null, down: boolean}} props.order by nothing: as in the graph
 * @param {(order: {by: string, down: boolean}) => void} props.reorder called with another order
 * @param {(a: string) => void} props.choose opens a node
 */
export const NodeTable = reading(["nodes", "gates", "status", "next"], ({ state, found, order, reorder, choose }) => {
  const rows = Object.values(state.nodes)
    .filter(node => !found || found.has(node.node))
    .sort((one, other) => Number(one.shape === END) - Number(other.shape === END)) // which many graphs name first
    .map(node => rowOf(state, node));
  const [, , value] = COLUMNS.find(([name]) => name === order.by) ?? [];
  if (value)
    rows.sort(
      (one, other) => (order.down ? -1 : 1) * compared(value(one), value(other)) || compared(one.name, other.name),
    );
  const sort = name => reorder({ by: name, down: order.by === name ? !order.down : FALLING.has(name) });
  return html`<div class="node-table">
    <table aria-label="Nodes of the pipeline">
      <${SortedHeads} columns=${COLUMNS} order=${order} sort=${sort} />
      <tbody>
        ${rows.map(row => html`<${Row} key=${row.name} ...${row} choose=${choose} />`)}
      </tbody>
    </table>
    ${!rows.length && html`<${Empty}>No node matches.<//>`}
  </div>`;
});

const Row = memo(
  ({ name, node, look, doing, choose }) =>
    html`<tr data-key=${name}>
      <th scope="row">
        <button type="button" class="link-like name" title=${node.label} onClick=${() => choose(name)}>${name}</button>
      </th>
      <td class="c-state"><span class="pill s-${look}">${signOf(look)} ${nodeWord(node, look)}</span></td>
      <td class="c-attempt">${node.attempt || ""}</td>
      <td class="c-deaths">${node.deaths || ""}</td>
      <td class="c-since"><${Age} time=${node.since} /></td>
      <td class="c-cost">${dollars(node.cost)}</td>
      <td class="c-doing" title=${doing}>${doing}</td>
    </tr>`,
);

function rowOf(state, node) {
  return {
    name: node.node,
    node,
    look: shown(state, node),
    doing: node.asks || node.doing || node.reason || (node.answer ? `answered: ${node.answer}` : ""),
  };
}

const collator = new Intl.Collator(undefined, { numeric: true });
const compared = (one, other) => (typeof one === "string" ? collator.compare(one, other) : one - other);
