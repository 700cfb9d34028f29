// Panel of a run's pull request: its number and address, its state, what it waits for, its checks and reviews as last
// reported by the forge, and the actions on it.

import { Act } from "./controls.js";
import { ask } from "./ask.js";
import { Age } from "./time.js";
import { html, Panel, reading } from "./view.js";

const LOOKS = { merged: "landed", closed: "failed", "held up": "asking", reworking: "working", merging: "landing" };
const CHECKS = { failed: ["✕", "failed"], pending: ["▸", "working"], passed: ["✓", "landed"] }; // in the order of the list
const WORDS = { approved: ["✓", "landed"], "changes requested": ["✕", "failed"] };
const SHOWN = 4; // checks that passed, before they are one line that opens
const FOR_YOU = new Set(["waiting for review", "ready to merge", "held up"]);

/**
 * The panel; nothing for a run without a pull request.
 * @param {Object} props
 * @param {import("./state").State|null} props.state
 * @param {(node: string) => void} props.choose opens a node
 * @param {(path: string, data: Object) => Promise<any>} props.act posts a change
 */
export const PullRequest = reading(["pull_request", "write", "living"], ({ state, choose, act }) => {
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
    ${(pull.waits_for || pull.text) && html`<p class="doing">${pull.waits_for ? `It waits for ${pull.waits_for}.` : pull.text}</p>`}
    <${Checks} checks=${pull.checks} />
    ${
      pull.reviews.length > 0 &&
      html`<ul class="reports" aria-label="Reviews">
        ${pull.reviews.map(
          each =>
            html`<${Report}
              key=${each.author}
              name=${each.author}
              word=${each.word}
              look=${(!each.is_outdated && each.counts && WORDS[each.word]) || ["·", "waiting"]}
              remark=${each.is_outdated ? "an older commit" : each.counts ? "" : "no write permission"}
            />`,
        )}
      </ul>`
    }
    ${
      back.length > 0 &&
      html`<ul>
        ${back.map(
          ([node, times]) =>
            html`<li key=${node}>
              <button type="button" class="link-like name" onClick=${() => choose(node)}>${node}</button
              >${` was sent back ${times === 1 ? "once" : `${times} times`}`}
            </li>`,
        )}
      </ul>`
    }
    ${state.write !== false && html`<div class="row"><${Buttons} pull=${pull} living=${state.living !== false} act=${act} /></div>`}<//
  >`;
});

/** The checks: those that failed first, then those that have not ended; many that passed are one line that opens. */
function Checks({ checks }) {
  const of = result => checks.filter(each => each.result === result);
  const list = shown =>
    html`<ul class="reports" aria-label="Checks">
      ${shown.map(
        each =>
          html`<${Report}
            key=${each.name}
            name=${each.name}
            url=${each.url}
            word=${each.result}
            look=${CHECKS[each.result]}
          />`,
      )}
    </ul>`;
  const passed = of("passed");
  const first = [...of("failed"), ...of("pending"), ...(passed.length > SHOWN ? [] : passed)];
  return html`${first.length > 0 && list(first)}
  ${
    passed.length > SHOWN &&
    html`<details class="reports-passed">
      <summary>${passed.length} checks passed</summary>
      ${list(passed)}
    </details>`
  }`;
}

const Report = ({ name, url, word, look: [sign, look], remark }) =>
  html`<li class="s-${look}">
    <span class="sign" aria-hidden="true">${sign}</span>
    ${
      url
        ? html`<a class="name" href=${url} data-forge title=${name}>${name}</a>`
        : html`<span class="name" title=${name}>${name}</span>`
    }
    ${" "}<span class="word">${word}${remark && `, ${remark}`}</span>
  </li>`;

function Buttons({ pull, living, act }) {
  const reopen = async () =>
    (await ask({
      title: `Open another pull request in place of #${pull.number}?`,
      lines: ["The branch is pushed again, and a new draft is opened."],
      yes: "Open another",
      kind: "primary",
    })) && act("actions", { action: "reopen" });
  if (pull.state === "merged") return null;
  const sync = () => act("actions", { action: "sync" });
  return html`${living && html`<${Act} key="sync" does=${sync}>Check the forge now<//>`}
  ${pull.state === "closed" && html`<${Act} key="reopen" class="primary" does=${reopen}>Open another<//>`}`;
}
