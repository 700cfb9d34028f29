// Page of a home without runs: how to launch one; the first run replaces it. And the page of a run that does not exist,
// with those that do.

import { beginTask } from "./begin.js";
import { html } from "./view.js";

const GRAPH = `digraph work {
    start [shape=Mdiamond]; exit [shape=Msquare]
    tests [shape=box, agent=claude, prompt="Write tests for the parser"]
    start -> tests -> exit
}`;

/** How to start a first run; `home` is where its runs are kept, `write`: changes are allowed. */
export function EmptyHome({ home, write }) {
  const where = /^[\w/.~+-]+$/.test(home) ? home : `'${home.replaceAll("'", "'\\''")}'`;
  return html`<section class="hello" aria-labelledby="hello-title">
    <h1 id="hello-title">No run yet</h1>
    <p>The first run of this home appears here as soon as it starts.</p>
    ${
      write &&
      html`<p><button type="button" class="primary" onClick=${() => beginTask()}>New task</button></p>
        <p>It does what garrison run does in a repository.</p>`
    }
    <p>A pipeline is a graph of tasks; save one as work.dot:</p>
    <pre class="wrap">${GRAPH}</pre>
    <p>and launch it on your repository, with the command that tests it:</p>
    <pre class="wrap">${`garrison --home ${where} launch work.dot --target-dir ~/src/project --gate "make test"`}</pre>
  </section>`;
}

/** That a run does not exist, and those that do. */
export const NoSuchRun = ({ why, runs }) =>
  html`<section class="hello" aria-labelledby="hello-title">
    <h1 id="hello-title">No such run</h1>
    <p>${why}</p>
    <ul>
      ${runs.map(one => html`<li key=${one.run}><a href="/?run=${encodeURIComponent(one.run)}">${one.run}</a> ${one.status}</li>`)}
    </ul>
  </section>`;
