// Facts of an attempt's work other than its lines: conflicts, checks, commits, evidence, the files it left.

import { get, part } from "./api.js";
import { Tail } from "./tail.js";
import { html, useState } from "./view.js";
import { clock, count } from "./words.js";

const OPENED = 8; // conflicts that are open at first
const SHORT = 10; // characters of a commit's id

export const Conflicts = ({ change: { conflicts, reason } }) =>
  conflicts.length > 0 &&
  html`<section>
    <h3>Conflicts: ${reason}</h3>
    ${conflicts.map(
      file =>
        html` <details key=${file.path} class="conflict" open=${conflicts.length < OPENED}>
          <summary>${file.path}${file.note ? ` (${file.note})` : ""}</summary>
          <pre tabindex="0">
${file.lines.map(line => html`<span class="side-${line.side}">${`${String(line.number).padStart(5)}  ${line.text}\n`}</span>`)}</pre>
        </details>`,
    )}
  </section>`;

export const Checks = ({ checks }) =>
  checks.length > 0 &&
  html`<section>
    <h3>Checks</h3>
    ${checks.map((check, at) => {
      const state =
        check.result === "passed" ? "landed" : /not (run|decided)/.test(check.result) ? "waiting" : "failed";
      return html`<details key=${at} class="check s-${state}" open=${state === "failed"}>
        <summary>
          <span class="sign" aria-hidden="true">${{ landed: "✓", waiting: "○", failed: "✕" }[state]}</span>
          ${check.what}: ${check.result}${check.exit_code === null ? "" : `, exit code ${check.exit_code}`}
        </summary>
        <pre class="wrap command">$ ${check.command}</pre>
        <${Tail} text=${check.tail || "It printed nothing."} />
        ${check.log && html`<p class="kind">All of it: ${check.log}</p>`}
      </details>`;
    })}
  </section>`;

export const Commits = ({ change: { commits, more_commits: more } }) =>
  commits.length > 0 &&
  html`<section>
    <h3>${count(commits.length + more, "commit")}</h3>
    <ol class="commits">
      ${more > 0 && html`<li class="kind">… ${more} earlier</li>`}
      ${commits.map(
        one =>
          html`<li key=${one.oid}>
            <code>${one.oid.slice(0, SHORT)}</code> ${one.subject}
            <span class="kind"> ${one.author}, ${clock(one.at)}</span>
          </li>`,
      )}
    </ol>
  </section>`;

/** A file that the attempt left, read when it is opened. */
function Artefact({ file, path }) {
  const [text, show] = useState("Reading…");
  const turned = async event => {
    if (!event.currentTarget.open) return;
    try {
      show((await get(path)).text || "It is empty.");
    } catch (problem) {
      show(problem.message);
    }
  };
  return html`<details onToggle=${turned}>
    <summary>${file.name} (${file.bytes.toLocaleString()} bytes)</summary>
    <${Tail} text=${text} />
  </details>`;
}

/** Other evidence for the work, and the files that the attempt left. */
export const Evidence = ({ change, run }) =>
  html`${
    change.evidence.length > 0 &&
    html`<section>
      <h3>Evidence</h3>
      <ul class="evidence">
        ${change.evidence.map(line => html`<li>${line}</li>`)}
      </ul>
    </section>`
  }
  ${
    change.artefacts.length > 0 &&
    html`<section>
      <h3>Files of the attempt</h3>
      ${change.artefacts.map(
        file =>
          html`<${Artefact}
            key=${file.name}
            file=${file}
            path="runs/${part(run)}/nodes/${part(change.node)}/artefact?attempt=${change.attempt}&name=${part(file.name)}"
          />`,
      )}
      <p class="kind">${change.folder}</p>
    </section>`
  }`;
