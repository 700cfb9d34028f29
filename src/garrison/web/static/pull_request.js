// Panel of a run's pull request: its number and address, how it is, what it waits for, and what can be done about it.

import { Act } from "./controls.js";
import { ask } from "./ask.js";
import { Age } from "./time.js";
import { html, Panel, reading } from "./view.js";

const LOOKS = { merged: "landed", closed: "failed", "held up": "asking", reworking: "working", merging: "landing" };
const FOR_YOU = new Set(["waiting for review", "ready to merge", "held up"]);

/**
 * The panel; nothing for a run without a pull request.
 * @param {Object} props
 * @param {import("./state").State|null} props.state
 * @param {(node: string) => void} props.choose opens a node
 * @param {(path: string, data: Object) => Promise<any>} props.act posts a change
 */
export const PullRequest = reading(["pull_request", "write"], ({ state, choose, act }) => {
  const pull = state?.pull_request;
  if (!pull) return null;
  const look = FOR_YOU.has(pull.state) ? "asking" : (LOOKS[pull.state] ?? "waiting");
  const title = pull.number ? `#${pull.number}` : "not open yet";
  const back = Object.entries(pull.returns);
  return html`<${Panel}
    id="pull-request"
    title="Pull request"
    beside=${pull.url ? html`<a href=${pull.url} data-forge>${title}</a>` : html`<span class="number">${title}</span>`}
  >
    <p><span class="pill s-${look}">${pull.state}</span> <${Age} time=${pull.since} /></p>
    <p class="doing">${pull.waits_for ? `It waits for ${pull.waits_for}.` : pull.text}</p>
    ${
      back.length > 0 &&
      html`<ul>
        ${back.map(
          ([node, times]) =>
            html`<li key=${node}>
              <button type="button" class="link-like name" onClick=${() => choose(node)}>${node}</button> was sent back
              ${times === 1 ? "once" : `${times} times`}
            </li>`,
        )}
      </ul>`
    }
    ${state.write !== false && html`<div class="row"><${Buttons} pull=${pull} act=${act} /></div>`}<//
  >`;
});

function Buttons({ pull, act }) {
  const reopen = async () =>
    (await ask({
      title: `Open another pull request in the place of #${pull.number}?`,
      lines: ["The branch is pushed again, and a new draft is opened."],
      yes: "Open another",
      kind: "primary",
    })) && act("actions", { action: "reopen" });
  if (pull.state === "merged") return null;
  return html`<${Act} key="sync" does=${() => act("actions", { action: "sync" })}>Look at the forge now<//>
    ${pull.state === "closed" && html`<${Act} key="reopen" class="primary" does=${reopen}>Open another<//>`}`;
}
