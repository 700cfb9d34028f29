// Curves of what a run has cost over time, by model or by node. A table next to them has the same totals.

import { html, useState } from "./view.js";
import { clock, dollars } from "./words.js";

const COLOURS = 6;
const WIDTH = 600,
  HEIGHT = 120;
const CHOICES = { models: "by model", nodes: "by node" };

const colour = number => Math.min(number, COLOURS - 1);

/** The curves of `costs` between two times; nothing while nothing has been spent. */
export function Curves({ costs, begin, end }) {
  const [by, turn] = useState("models");
  if (!costs.usd) return null;
  const series = Object.entries(costs[by]);
  const highest = Math.max(...series.map(([, sums]) => sums.at(-1)));
  const x = time => (WIDTH * (time - begin)) / Math.max(end - begin, 0.001);
  const y = usd => HEIGHT - 2 - ((HEIGHT - 6) * usd) / highest;
  const points = sums =>
    [[0, y(0)], ...sums.map((usd, step) => [x(costs.times[step]), y(usd)])]
      .map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`)
      .join(" ");
  const totals = series.map(([name, sums]) => `${name} ${dollars(sums.at(-1))}`);
  return html`<div class="money">
    <div class="row between">
      <h3>Cost ${dollars(costs.usd)}</h3>
      <div class="tabs" role="group" aria-label="Costs by">
        ${Object.entries(CHOICES).map(
          ([name, label]) =>
            html` <button
              key=${name}
              type="button"
              class="quiet"
              aria-pressed=${String(name === by)}
              onClick=${() => turn(name)}
            >
              ${label}
            </button>`,
        )}
      </div>
    </div>
    <div class="money-body">
      <div>
        <svg
          class="curves"
          viewBox="0 0 ${WIDTH} ${HEIGHT}"
          preserveAspectRatio="none"
          role="img"
          aria-label="Costs over time, ${CHOICES[by]}: ${totals.join(", ")}"
        >
          ${series.map(
            ([name, sums], number) =>
              html`<polyline key=${name} class="curve c-${colour(number)}" points=${points(sums)}>
                <title>${totals[number]}</title>
              </polyline>`,
          )}
        </svg>
        <p class="curve-ends kind" aria-hidden="true"><span>${clock(begin)}</span><span>${clock(end)}</span></p>
      </div>
      <ul class="curve-list">
        ${series.map(
          ([name, sums], number) =>
            html`<li key=${name}>
              <svg aria-hidden="true" width="10" height="10">
                <rect width="10" height="10" class="f-${colour(number)}" />
              </svg>
              <span class="name">${name}</span><span class="usd">${dollars(sums.at(-1))}</span>
            </li>`,
        )}
      </ul>
    </div>
  </div>`;
}
