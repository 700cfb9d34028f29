// What the run has cost, and which nodes cost most.

import { el, empty, keyed, panel, say } from "./dom.js";
import { count, dollars } from "./words.js";

const SHOWN = 12; // nodes, the dearest first

/** The panel; `choose` opens a node. */
export function costsPanel(choose) {
  const { section, body } = panel("costs", "Cost");
  const sum = el("p", { class: "sum" });
  const list = el("ol", { class: "spent" });
  const nothing = empty("No model was paid for.");
  const more = el("p", { class: "kind" });
  body.append(sum, list, more, nothing);

  function show({ costs }) {
    const nodes = Object.entries(costs?.nodes ?? {}).map(([node, usd]) => ({ node, usd })).filter(one => one.usd)
      .sort((one, other) => other.usd - one.usd);
    nothing.hidden = Boolean(costs?.usd);
    sum.hidden = !costs?.usd;
    say(sum, dollars(costs?.usd));
    const most = nodes[0]?.usd;
    keyed(list, nodes.slice(0, SHOWN), one => one.node, make, (item, one) => {
      item.querySelector(".share span").style.width = `${Math.max(2, 100 * one.usd / most)}%`;
      say(item.querySelector(".usd"), dollars(one.usd));
    });
    say(more, nodes.length > SHOWN ? `and ${count(nodes.length - SHOWN, "node")} more` : "");
  }

  const make = one => el("li", {}, el("button", { type: "button", class: "link-like name", onclick: () => choose(one.node) }, one.node),
    el("span", { class: "share", "aria-hidden": "true" }, el("span", {})), el("span", { class: "usd" }));

  return { section, show };
}
