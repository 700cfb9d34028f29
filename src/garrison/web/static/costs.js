// What the run has cost, and which nodes cost most.

import { el, empty, keyed, panel, say, set } from "./dom.js";
import { count, dollars, tokens } from "./words.js";

const SHOWN = 12; // nodes, the dearest first

/** The panel; `choose` opens a node. */
export function costsPanel(choose) {
  const { section, body } = panel("costs", "Cost");
  const sum = el("p", { class: "sum" }, el("strong", {}), el("span", { class: "kind" }));
  const budget = el("meter", { min: "0", max: "1", hidden: true, "aria-label": "Part of the budget that is spent" });
  const list = el("ol", { class: "spent" });
  const nothing = empty("No model was paid for.");
  const more = el("p", { class: "kind" });
  body.append(sum, budget, list, more, nothing);

  function show(state) {
    const { costs } = state;
    const all = amount(costs.tokens);
    const limit = typeof costs.budget === "object" ? costs.budget?.usd : costs.budget;
    const nodes = Object.entries(costs.nodes ?? {}).map(([node, one]) => ({ node, usd: one.usd ?? 0, tokens: amount(one.tokens) }))
      .filter(one => one.usd || one.tokens).sort((a, b) => b.usd - a.usd || b.tokens - a.tokens);
    const paid = Boolean(costs.usd || all);
    nothing.hidden = paid;
    sum.hidden = !paid;
    say(sum.firstChild, dollars(costs.usd) || "$0.00");
    say(sum.lastChild, [all ? `${tokens(all)} tokens` : "", limit ? `of $${Number(limit).toFixed(2)}` : ""].filter(Boolean).join(" · "));
    budget.hidden = !limit;
    if (limit) set(budget, "value", String(Math.min(1, (costs.usd ?? 0) / limit)));
    const most = Math.max(...nodes.map(one => one.usd), 1e-9);
    keyed(list, nodes.slice(0, SHOWN), one => one.node, make, (element, one) => update(element, one, most));
    say(more, nodes.length > SHOWN ? `and ${count(nodes.length - SHOWN, "node")} more` : "");
  }

  const make = one => el("li", {}, el("button", { type: "button", class: "link-like name", onclick: () => choose(one.node) }, one.node),
    el("span", { class: "share", "aria-hidden": "true" }, el("span", {})), el("span", { class: "usd" }));

  function update(element, one, most) {
    element.querySelector(".share span").style.width = `${Math.max(2, 100 * one.usd / most)}%`;
    say(element.querySelector(".usd"), dollars(one.usd) || `${tokens(one.tokens)} tokens`);
  }

  return { section, show };
}

const amount = found => typeof found === "object" && found ? Object.values(found).reduce((sum, one) => sum + (Number(one) || 0), 0) : Number(found) || 0;
