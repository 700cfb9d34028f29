// Panel of costs: of the run, of its limit, and of the nodes that cost most.

import { el, empty, keyed, panel, say, set } from "./dom.js";
import { count, dollars, dollarsOf, tokens } from "./words.js";

const SHOWN = 12; // nodes, the most expensive first
const NEAR = 0.8; // of a limit, from which it is highlighted

/** The panel; `choose` opens a node. */
export function costsPanel(choose) {
  const { section, body } = panel("costs", "Cost");
  const sum = el("p", { class: "sum" }, el("strong", {}), el("span", { class: "kind" }));
  const whole = share();
  const day = el("p", { class: "kind" });
  const list = el("ol", { class: "spent" });
  const nothing = empty("Nothing has been spent.");
  const more = el("p", { class: "kind" });
  sum.hidden = whole.hidden = day.hidden = true; // until it is filled, so that nothing moves
  body.append(sum, whole, day, list, more, nothing);

  function show({ costs }) {
    const { usd, limits = { nodes: {} }, tokens: used } = costs ?? {};
    const nodes = Object.entries(costs?.nodes ?? {}).map(([node, of]) => ({ node, usd: of, limit: limits.nodes[node], tokens: used?.nodes[node] }))
      .filter(one => one.usd || tokens(one.tokens)).sort((one, other) => other.usd - one.usd);
    nothing.hidden = nodes.length > 0;
    sum.hidden = !nodes.length;
    say(sum.firstChild, dollars(usd));
    say(sum.lastChild, [limits.run && `of ${dollars(limits.run)}`, tokens(used?.all)].filter(Boolean).join(" · "));
    fill(whole, usd, limits.run);
    whole.hidden = !limits.run;
    day.hidden = !limits.day;
    say(day, limits.day ? `Today, all runs: ${dollarsOf(costs.today, limits.day) || "nothing yet"}` : "");
    const most = nodes[0]?.usd;
    keyed(list, nodes.slice(0, SHOWN), one => one.node, make, (item, one) => {
      fill(item.querySelector(".share"), one.usd, one.limit, most);
      say(item.querySelector(".usd"), dollarsOf(one.usd, one.limit));
      set(item, "title", tokens(one.tokens));
    });
    say(more, nodes.length > SHOWN ? `and ${count(nodes.length - SHOWN, "node")} more` : "");
  }

  const make = one => el("li", {}, el("button", { type: "button", class: "link-like name", onclick: () => choose(one.node) }, one.node),
    share(), el("span", { class: "usd" }));

  return { section, show };
}

const share = () => el("span", { class: "share", "aria-hidden": "true" }, el("span", {}));

/** Fill a bar: the share of a limit, or without one of the highest cost. */
function fill(bar, usd, limit, most) {
  const part = usd / (limit || most || usd);
  bar.firstChild.style.width = `${Math.min(100, Math.max(2, 100 * part))}%`;
  set(bar, "class", `share${!limit || part < NEAR ? "" : part < 1 ? " s-asking" : " s-failed"}`);
}
