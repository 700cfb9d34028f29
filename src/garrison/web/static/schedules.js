// Panel of the schedules of a home: when each is due next, and the result of its latest time.

import { act, get, part } from "./api.js";
import { Act } from "./controls.js";
import { attempt } from "./notice.js";
import { html, Panel, useEffect, useState } from "./view.js";
import { clock } from "./words.js";

const EVERY = 60_000; // milliseconds between two requests, while the page is visible

/** The panel; nothing where there is no schedule. `write`: this page may act. */
export function Schedules({ write }) {
  const [found, put] = useState(/** @type {import("./records").ShownSchedule[]} */ ([]));
  useEffect(() => {
    const read = () => !document.hidden && get("schedules").then(put, () => {});
    read();
    const timer = setInterval(read, EVERY);
    return () => clearInterval(timer);
  }, []);
  const does = (name, action) =>
    attempt(async () => {
      await act(`schedules/${part(name)}`, { action });
      put(await get("schedules"));
    });
  return (
    found.length > 0 &&
    html`<${Panel} id="schedules" title="Schedules" beside=${html`<span class="number">${found.length}</span>`}>
      <ul class="entries">
        ${found.map(one => html`<${Row} key=${one.name} one=${one} write=${write} does=${does} />`)}
      </ul>
    <//>`
  );
}

const Row = ({ one, write, does }) =>
  html`<li class="entry s-${one.paused ? "parked" : "waiting"}">
    <span class="sign" aria-hidden="true">${one.paused ? "‖" : "◷"}</span>
    <div class="who"><span class="name">${one.name}</span><span class="kind">${one.times} ${one.zone}</span></div>
    <span class="age">${one.paused ? "paused" : html`next ${clock(one.next)}`}</span>
    <p class="doing">
      ${one.last && html`last ${one.last}${one.run && html`, <a href="/?run=${part(one.run)}">${one.run}</a>`} · `}
      ${one.paused ? `paused: ${one.paused} · ` : ""}garrison ${one.command.join(" ")}
    </p>
    ${
      write &&
      html`<div class="row">
        <${Act} class="quiet" aria-label="Start ${one.name} now" does=${() => does(one.name, "run-now")}>Run now<//>
        <${Act}
          class="quiet"
          aria-label="${one.paused ? "Resume" : "Pause"} ${one.name}"
          does=${() => does(one.name, one.paused ? "unpause" : "pause")}
          >${one.paused ? "Resume" : "Pause"}<//
        >
      </div>`
    }
  </li>`;
