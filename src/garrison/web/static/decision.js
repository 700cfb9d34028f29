// Context of a decision: the outcomes that lead to its question, and their cost.

import { get, part } from "./api.js";
import { Changes } from "./changes.js";
import { openDialog } from "./dialog.js";
import { amount } from "./diff.js";
import { html, memo, useEffect, useState } from "./view.js";
import { count } from "./words.js";

const MARKS = { passed: "✓", failed: "✕", open: "○" };

/** The outcomes, once they are read; nothing if that fails. */
export const Decision = memo(({ run, question }) => {
  const [found, take] = useState(null);
  useEffect(() => {
    let wanted = true;
    get(`runs/${part(run)}/gates/${part(question)}`).then(
      read => wanted && take(read),
      () => {},
    );
    return () => {
      wanted = false;
    };
  }, [run, question]);
  if (!found) return null;
  const candidates = found.outcomes.filter(one => one.state === "kept");
  const compare = () =>
    openDialog({ class: "compare", "aria-label": "Candidates side by side" }, Compare, { run, candidates });
  return html`<ul class="outcomes">
    ${found.outcomes.map(
      (one, at) =>
        html`<li key=${at}>
          <strong>${one.node}</strong> ${one.state}
          ${one.files === null ? "" : ` · ${count(one.files, "file")} ${amount(one)}`}${one.usd ? ` · $${one.usd.toFixed(2)}` : ""}
          ${
            one.checked.length > 0 &&
            html`<span class="checked"
              >${one.checked.map(
                (each, at) =>
                  html`<span key=${at} class="k-${each.verdict}">${MARKS[each.verdict]} ${each.words}</span>`,
              )}</span
            >`
          }
          ${one.reason && one.state !== "landed" && html`<span class="kind"> ${one.reason.split("\n")[0]}</span>`}
        </li>`,
    )}
    ${
      candidates.length > 1 &&
      html`<li><button type="button" class="link-like" onClick=${compare}>Compare side by side</button></li>`
    }
    ${found.more > 0 && html`<li class="kind">… and ${found.more} more</li>`}
    ${found.usd > 0 && html`<li class="kind">The run has cost $${found.usd.toFixed(2)} so far.</li>`}
  </ul>`;
});

/** What each candidate changes, in columns. */
const Compare = ({ run, candidates, close }) =>
  html`<div class="columns">
      ${candidates.map(
        one =>
          html`<section key=${one.node} aria-label=${one.node}>
            <h2>${one.node}</h2>
            <${Changes}
              run=${run}
              node=${one.node}
              attempt=${one.attempt}
              version=${0}
              write=${false}
              columns
              act=${() => null}
            />
          </section>`,
      )}
    </div>
    <div class="row end"><button type="button" class="primary" onClick=${() => close()}>Close</button></div>`;
