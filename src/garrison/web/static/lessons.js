// Lessons of a repository: reasons that repeatedly sent work back, to keep for agents or to drop. They are read from all
// its runs, and so only on request.

import { act, get, part } from "./api.js";
import { Act } from "./controls.js";
import { attempt } from "./notice.js";
import { html, Panel, useState } from "./view.js";
import { count } from "./words.js";

const WORDS = { proposed: "proposed", kept: "kept", quiet: "not needed for 90 days" };

/**
 * The panel.
 * @param {{repos: string[], write: boolean}} props the repositories that have runs; whether this page may act
 */
export function Lessons({ repos, write }) {
  const [chosen, choose] = useState("");
  const [found, put] = useState(/** @type {import("./records").ShownLesson[]|null} */ (null));
  const repo = chosen || repos[0];
  const read = () => attempt(async () => put((await get(`lessons?repo=${part(repo)}`)).lessons));
  const does = (lesson, action) =>
    attempt(async () => {
      await act(`lessons/${part(lesson)}`, { action, repo });
      put((await get(`lessons?repo=${part(repo)}`)).lessons);
    });
  return (
    repos.length > 0 &&
    html`<${Panel} id="lessons" title="Lessons">
      <div class="row">
        ${
          repos.length > 1 &&
          html`<select
            aria-label="Repository"
            onChange=${event => {
              choose(event.currentTarget.value);
              put(null);
            }}
          >
            ${repos.map(each => html`<option key=${each} selected=${each === repo}>${each}</option>`)}
          </select>`
        }
        <${Act} does=${read}>${found ? "Refresh" : "Show what kept sending work back"}<//>
      </div>
      ${found?.length === 0 && html`<p class="kind">No refusal has come twice in 30 days and then been resolved.</p>`}
      <ul class="entries">
        ${found?.map(one => html`<${Row} key=${one.id} one=${one} write=${write} does=${does} />`)}
      </ul>
    <//>`
  );
}

const Row = ({ one, write, does }) =>
  html`<li class="entry s-waiting">
    <span class="sign" aria-hidden="true">${one.state === "proposed" ? "?" : "✓"}</span>
    <div class="who">
      <span class="name">${WORDS[one.state]}</span
      ><span class="kind">${one.state === "proposed" ? "" : one.place}</span>
    </div>
    <span class="age">${count(one.times, "time")}${one.state === "proposed" ? "" : " since"}</span>
    <p class="doing">${one.text}</p>
    ${one.written_by && html`<p class="kind">written by ${one.written_by} from: ${one.quoted}</p>`}
    ${
      write &&
      html`<div class="row">
        ${
          one.state === "proposed" &&
          html`<${Act}
              class="quiet"
              does=${() => does(one.id, `keep-in-${one.place}`)}
              title="By a commit that the gate tests"
              >Keep in ${one.place}<//
            ><${Act} class="quiet" does=${() => does(one.id, "keep-private")}>Keep privately<//>`
        }
        <${Act} class="quiet" does=${() => does(one.id, "drop")}>Drop<//>
      </div>`
    }
  </li>`;
