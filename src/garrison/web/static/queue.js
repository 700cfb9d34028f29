// Panel of the merge queue: the entries in order, and what landed last.

import { part } from "./api.js";
import { Act } from "./controls.js";
import { confirmed } from "./dialog.js";
import { legibleName } from "./legible.js";
import { Age } from "./time.js";
import { Empty, html, Panel, reading, Skeleton } from "./view.js";
import { signOf, stateOf } from "./words.js";

const SHOWN = 8; // landed entries

/** The panel; `choose` opens a node, `act` posts a change. */
export const Queue = reading(["queue", "timeline", "write"], ({ state, choose, act }) => {
  const can = state && state.write !== false,
    entries = state?.queue.entries;
  return html`<${Panel}
    id="queue"
    title="Merge queue"
    beside=${html`<span class="number">${entries?.length || ""}</span>
      ${can && (entries.length > 0 || state.queue.paused) && html`<${Pause} queue=${state.queue} act=${act} />`}`}
  >
    ${
      state
        ? html`<${Entries} queue=${state.queue} timeline=${state.timeline} can=${can} choose=${choose} act=${act} />`
        : html`<${Skeleton} />`
    }<//
  >`;
});

const Pause = ({ queue: { paused, target }, act }) =>
  html`<${Act}
    class="quiet"
    aria-label="${paused ? "Resume" : "Pause"} the merge queue"
    does=${() => act("queue", { action: paused ? "resume" : "pause", target: target ?? "" })}
    >${paused ? "Resume" : "Pause"}<//
  >`;

function Entries({ queue: { entries, paused, target, reason }, timeline, can, choose, act }) {
  const last = timeline
    .filter(line => line.kind === "landed" && line.node)
    .slice(-SHOWN)
    .reverse();
  return html` ${paused && html`<p class="why">‖ Paused${target ? `, ${legibleName(target)}` : ""}${reason ? `: ${reason}` : ""}</p>`}
    <ol class="entries">
      ${entries.map(
        entry =>
          html`<${Entry}
            key=${entry.id}
            state=${entry.state}
            node=${entry.node}
            word=${entry.word ?? entry.state}
            at=${entry.since}
            choose=${choose}
          >
            <p class="doing" title=${`${legibleName(entry.branch)}${entry.detail ? `: ${entry.detail}` : ""}`}>
              ${entry.detail && entry.detail !== entry.word ? entry.detail : legibleName(entry.branch)}
            </p>
            ${can && html`<div class="row"><${Buttons} entry=${entry} act=${act} /></div>`}<//
          >`,
      )}
    </ol>
    <ol class="entries">
      ${last.map(line => html`<${Entry} key=${line.id} state="landed" node=${line.node} word="landed" at=${line.at} choose=${choose} />`)}
    </ol>
    ${!(entries.length + last.length) && html`<${Empty}>Nothing is queued.<//>`}`;
}

const Entry = ({ state, node, word, at, choose, children }) =>
  html`<li class="entry s-${stateOf(state)}">
    <span class="sign" aria-hidden="true">${signOf(state)}</span>
    <div class="who">
      <button type="button" class="link-like name" onClick=${() => choose(node)}>${node}</button
      ><span class="kind">${word}</span>
    </div>
    <${Age} time=${at} />${children}
  </li>`;

/** What the user can do about an entry in its state. */
function Buttons({ entry, act }) {
  const does = (label, action, question) =>
    html`<${Act}
      key=${action}
      class="quiet"
      aria-label="${label}: ${entry.node}"
      does=${async () => (!question || (await confirmed(question, label))) && act(`queue/${part(entry.id)}`, { action })}
      >${label}<//
    >`;
  const cancel = does("Cancel", "cancel", `Cancel the merge entry of ${entry.node}?`);
  if (entry.state === "held")
    return entry.word === "waiting for approval" ? cancel : [does("Release", "unhold"), cancel];
  return entry.state === "landing" ? null : [does("Hold", "hold"), cancel];
}
