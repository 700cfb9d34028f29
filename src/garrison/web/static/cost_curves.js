// Curves of what a run has cost over time, by model or by node. A table beside them has the same totals.

import { el, keyed, say, set, svg } from "./dom.js";
import { clock, dollars } from "./words.js";

const COLOURS = 6;
const WIDTH = 600, HEIGHT = 120;

/** The curves: {section, show(costs, timeline)}; hidden while nothing has been spent. */
export function curves() {
  let by = "models", latest = null;
  const choices = { models: "by model", nodes: "by node" };
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "Costs by" }, Object.entries(choices).map(([name, label]) =>
    el("button", { type: "button", class: "quiet", dataset: { by: name }, "aria-pressed": String(name === by), onclick: () => {
      by = name;
      for (const one of tabs.children) set(one, "aria-pressed", String(one.dataset.by === by));
      show(...latest);
    } }, label)));
  const title = el("h3", {}, "Cost");
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "curves" });
  const ends = el("p", { class: "curve-ends kind", "aria-hidden": "true" }, el("span"), el("span"));
  const list = el("ul", { class: "curve-list" });
  const section = el("div", { class: "money", hidden: true }, el("div", { class: "row between" }, title, tabs), el("div", { class: "money-body" },
    el("div", {}, drawing, ends), list));

  function show(costs, made) {
    latest = [costs, made];
    section.hidden = !costs.usd;
    if (!costs.usd) return;
    const series = Object.entries(costs[by]);
    const highest = Math.max(...series.map(([, sums]) => sums.at(-1)));
    const x = time => WIDTH * (time - made.begin) / Math.max(made.end - made.begin, 0.001);
    const y = usd => HEIGHT - 2 - (HEIGHT - 6) * usd / highest;
    say(title, `Cost ${dollars(costs.usd)}`);
    set(drawing, "aria-label", `Costs over time, ${choices[by]}: ${series.map(([name, sums]) => `${name} ${dollars(sums.at(-1))}`).join(", ")}`);
    drawing.replaceChildren(...series.map(([name, sums], number) => svg("polyline", {
      class: `curve c-${Math.min(number, COLOURS - 1)}`, points: [[0, y(0)], ...sums.map((usd, step) => [x(costs.times[step]), y(usd)])].map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" "),
    }, svg("title", {}, `${name} ${dollars(sums.at(-1))}`))));
    say(ends.firstChild, clock(made.begin));
    say(ends.lastChild, clock(made.end));
    keyed(list, series.map((one, number) => [...one, number]), ([name]) => `${by} ${name}`, ([name]) => el("li", {},
      svg("svg", { "aria-hidden": "true", width: 10, height: 10 }, svg("rect", { width: 10, height: 10 })), el("span", { class: "name" }, name), el("span", { class: "usd" })),
    (item, [, sums, number]) => {
      set(item.querySelector("rect"), "class", `f-${Math.min(number, COLOURS - 1)}`);
      say(item.lastChild, dollars(sums.at(-1)));
    });
  }

  return { section, show };
}
