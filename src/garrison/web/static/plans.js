// Plans that have not started, from here or from a terminal: to answer, to approve, or to continue.

import { get } from "./api.js";
import { continuePlan } from "./begin.js";
import { Act } from "./controls.js";
import { attempt } from "./notice.js";
import { html, Panel, useEffect, useState } from "./view.js";

const WORDS = { planning: "was interrupted or is being made", asked: "asks you", proposed: "waits for approval" };

/**
 * The panel; nothing where no plan waits.
 * @param {{write: boolean|null}} props whether this page may act; null where that is not known yet
 */
export function Plans({ write }) {
  const [found, put] = useState(/** @type {import("./records").ListedPlan[]} */ ([]));
  const read = async () => {
    const listed = await attempt(() => get("plans"));
    if (listed) put(listed.plans);
  };
  useEffect(() => {
    read();
  }, []);
  const go = async plan => {
    await continuePlan(plan);
    await read();
  };
  return (
    found.length > 0 &&
    html`<${Panel} id="plans" title="Plans">
      <ul class="entries">
        ${found.map(
          plan =>
            html`<li key=${plan.id} class="entry s-waiting">
              <span class="sign" aria-hidden="true">?</span>
              <div class="who"><span class="name">${plan.id}</span><span class="kind">${WORDS[plan.stage]}</span></div>
              <p class="doing">${plan.goal}</p>
              ${write && html`<div class="row"><${Act} class="quiet" does=${() => go(plan)}>Continue<//></div>`}
            </li>`,
        )}
      </ul>
    <//>`
  );
}
