// Panel of costs: of the run, of its limit, and of the nodes that cost most.

import { get, part } from "./api.js";
import { Empty, html, Panel, reading, Skeleton, useEffect, useState } from "./view.js";
import { count, dollars, dollarsOf, size, tokens } from "./words.js";

const SHOWN = 12; // nodes, the most expensive first
const NEAR = 0.8; // of a limit, from which it is highlighted
const EVERY = 60_000; // milliseconds between two requests for disk usage, while the page is visible

/** The panel; `choose` opens a node. */
export const Costs = reading(
  ["costs"],
  ({ run, state, choose }) =>
    html`<${Panel} id="costs" title="Cost">
      ${state ? html`<${Spent} costs=${state.costs ?? {}} choose=${choose} />` : html`<${Skeleton} />`}
      <${Disk} run=${run}
    /><//>`,
);

/** What the run takes on its disk; nothing until that is known. */
function Disk({ run }) {
  const [found, put] = useState(/** @type {?import("./records").RunDisk} */ (null));
  useEffect(() => {
    const read = () => !document.hidden && get(`runs/${part(run)}/disk`).then(put, () => {});
    read();
    const timer = setInterval(read, EVERY);
    return () => clearInterval(timer);
  }, [run]);
  return (
    found &&
    html`<p class="kind disk">
      On disk: ${size(found.records)} of records${found.worktrees > 0 && html`, ${size(found.worktrees)} in worktrees`}
    </p>`
  );
}

/** @param {{costs: Object<string, any>, choose: (node: string) => void}} props */
function Spent({ costs: { usd, limits = { nodes: {} }, tokens: used, nodes = {}, today, windows }, choose }) {
  const spent = Object.entries(nodes)
    .map(([node, of]) => ({ node, usd: of, limit: limits.nodes[node], tokens: used?.nodes[node] }))
    .filter(one => one.usd || tokens(one.tokens))
    .sort((one, other) => other.usd - one.usd);
  return html` ${
      spent.length > 0 &&
      html`<p class="sum">
        <strong>${windows || dollars(usd)}</strong>
        <span class="kind"
          >${[limits.run && `of ${dollars(limits.run)}`, tokens(used?.all)].filter(Boolean).join(" · ")}</span
        >
      </p>`
    }
    ${limits.run && html`<${Share} usd=${usd} limit=${limits.run} />`}
    ${limits.day && html`<p class="kind">Today, all runs: ${dollarsOf(today, limits.day) || "nothing yet"}</p>`}
    <ol class="spent">
      ${spent.slice(0, SHOWN).map(
        one =>
          html`<li key=${one.node} title=${tokens(one.tokens)}>
            <button type="button" class="link-like name" onClick=${() => choose(one.node)}>${one.node}</button>
            <${Share} usd=${one.usd} limit=${one.limit} most=${spent[0].usd} /><span class="usd"
              >${windows ? tokens(one.tokens) : dollarsOf(one.usd, one.limit)}</span
            >
          </li>`,
      )}
    </ol>
    ${spent.length > SHOWN && html`<p class="kind">and ${count(spent.length - SHOWN, "node")} more</p>`}
    ${!spent.length && html`<${Empty}>Nothing has been spent.<//>`}`;
}

/** A bar: the share of a limit, or without one of the highest cost. */
function Share({ usd, limit, most }) {
  const part = usd / (limit || most || usd);
  const look = !limit || part < NEAR ? "" : part < 1 ? " s-asking" : " s-failed";
  return html`<span class="share${look}" aria-hidden="true"
    ><span style=${{ width: `${Math.min(100, Math.max(2, 100 * part))}%` }}
  /></span>`;
}
