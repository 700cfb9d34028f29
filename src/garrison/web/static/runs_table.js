// Table of all runs of a home, with search, filters by state and repository, and an order by any column.

import { beginTask } from "./begin.js";
import { part } from "./api.js";
import { SortedHeads } from "./sorted_heads.js";
import { Age } from "./time.js";
import { Empty, html, memo, Panel, Skeleton, useEffect, useState } from "./view.js";
import { count, dollars, millis, signOf, span, stateOf, wordOf } from "./words.js";

const SHOWN = 100; // rows at first
const WAITS = "waits"; // the filter of runs in which something waits
const PLACES = [
  "landed",
  "no change",
  "kept",
  "undone",
  "landing",
  "working",
  "asking",
  "parked",
  "stopped",
  "failed",
  "skipped",
  "waiting",
]; // of the bar
/** @type {Array<[string, string, (run: any) => any]>} name, title, the value that orders */
const COLUMNS = [
  ["status", "State", run => run.status],
  ["run", "Run", run => run.run],
  ["gates", "Waits for you", run => run.gates],
  ["progress", "Progress", run => (run.nodes ? run.nodes_done / run.nodes : 0)],
  ["cost", "Cost", run => run.cost ?? 0],
  ["duration", "Duration", run => lasted(run)],
  ["created", "Started", run => millis(run.created) ?? 0],
  ["repo", "Repository", run => run.repo],
];
const DOWN = new Set(["gates", "cost", "duration", "created", "progress"]); // the largest first at the first click

const lasted = run => ((millis(run.ended) ?? Date.now()) - (millis(run.created) ?? Date.now())) / 1000;

/** The panel of the `runs`; null: not known yet. */
export function RunsTable({ runs, write }) {
  const [wanted, want] = useState(fromAddress);
  const [most, showMost] = useState(SHOWN);
  useEffect(() => {
    const back = () => want(fromAddress());
    window.addEventListener("popstate", back);
    return () => window.removeEventListener("popstate", back);
  }, []);
  const change = to => {
    const next = { ...wanted, ...to };
    const words = Object.entries(next).filter(([, value]) => value);
    history.replaceState(null, "", words.length ? `/?${new URLSearchParams(words)}` : "/");
    want(next);
  };
  const sort = name =>
    change({ sort: name, order: (wanted.sort === name ? wanted.order !== "down" : DOWN.has(name)) ? "down" : "up" });
  const { found, kept } = selected(runs ?? [], wanted);
  const repos = [...new Set((runs ?? []).map(run => run.repo).filter(Boolean))].sort();
  const begin = html`<button type="button" class="primary" onClick=${() => beginTask()}>New task</button>`;
  const beside = html`<span class="number"
      >${runs && (kept.length === runs.length ? runs.length : `${kept.length} of ${runs.length}`)}</span
    >
    <input
      type="search"
      id="runs-search"
      aria-label="Search the runs"
      placeholder="Run, pipeline, repository, reason"
      value=${wanted.q}
      onInput=${event => change({ q: event.currentTarget.value })}
    />
    <select
      aria-label="Repository"
      hidden=${repos.length < 2}
      value=${wanted.repo}
      onChange=${event => change({ repo: event.currentTarget.value })}
    >
      ${["", ...repos].map(one => html`<option key=${one} value=${one}>${one || "all repositories"}</option>`)}
    </select>
    ${write && begin}`;
  return html`<${Panel} id="runs" title="Runs" beside=${beside}>
    ${
      runs
        ? html`<${Filters} found=${found} chosen=${wanted.state} choose=${state => change({ state })} />`
        : html`<${Skeleton} lines=${6} />`
    }
    ${
      runs &&
      html`<div class="table-scroll">
        <table class="runs">
          <${SortedHeads} columns=${COLUMNS} order=${{ by: wanted.sort, down: wanted.order === "down" }} sort=${sort} />
          <tbody>
            ${kept.slice(0, most).map(run => html`<${Row} key=${run.run} run=${run} />`)}
          </tbody>
        </table>
      </div>`
    }
    ${runs && !kept.length && html`<${Empty}>No run matches.<//>`}
    ${kept.length > most && html`<button type="button" onClick=${() => showMost(Infinity)}>Show all ${kept.length} runs</button>`}<//
  >`;
}

/** The runs that the search finds, and those of them that are listed, in their order. */
function selected(runs, { q, state, repo, sort, order }) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs
    .filter(run =>
      words.every(word =>
        `${run.run} ${run.pipeline} ${run.repo} ${run.reason} ${run.target}`.toLowerCase().includes(word),
      ),
    )
    .filter(run => !repo || run.repo === repo);
  const kept = found.filter(run => !state || (state === WAITS ? run.gates : run.status === state));
  const [, , value] = COLUMNS.find(([name]) => name === sort) ?? [];
  if (value)
    kept.sort(
      (one, other) =>
        (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0) * (order === "down" ? -1 : 1),
    );
  return { found, kept };
}

/** Filters by state, each with the number of runs that it leaves. */
function Filters({ found, chosen, choose }) {
  const counts = new Map([["", found.length]]);
  const waiting = found.filter(run => run.gates).length;
  if (waiting || chosen === WAITS) counts.set(WAITS, waiting);
  for (const run of found) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  return html`<div class="filters" role="group" aria-label="State">
    ${[...counts].map(
      ([state, times]) =>
        html`<button
          key=${state}
          type="button"
          class="quiet"
          aria-pressed=${String(chosen === state)}
          onClick=${() => choose(state)}
        >
          ${state === WAITS ? "waits for you" : state || "all"} ${times}
        </button>`,
    )}
  </div>`;
}

/** @returns {{q: string, state: string, repo: string, sort: string, order: string}} */
function fromAddress() {
  const address = new URLSearchParams(location.search);
  const word = name => address.get(name) ?? "";
  return { q: word("q"), state: word("state"), repo: word("repo"), sort: word("sort"), order: word("order") };
}

const Row = memo(({ run }) => {
  const waits = run.gates && run.status === "waiting";
  const state = waits ? "asking" : stateOf(run.status);
  const places = PLACES.filter(place => run.counts[place]);
  return html`<tr data-key=${run.run}>
    <td class="c-status">
      <span class="pill s-${state}" title=${run.reason || null}
        >${signOf(state)} ${waits ? "waiting for you" : run.status}</span
      >
    </td>
    <th scope="row" class="c-run">
      <a href="/?run=${part(run.run)}">${run.run}</a
      ><span class="kind">${run.pipeline === run.run ? "" : run.pipeline}</span>
    </th>
    <td class="c-gates">${run.gates ? count(run.gates, "item") : ""}</td>
    <td class="c-progress">
      <div
        class="bar"
        role="img"
        hidden=${!run.nodes}
        aria-label=${places.map(place => `${run.counts[place]} ${wordOf(stateOf(place))}`).join(", ") || "no nodes"}
      >
        ${places.map(place => html`<span key=${place} class="s-${stateOf(place)}" style=${{ flexGrow: String(run.counts[place]) }} />`)}
      </div>
      <span class="kind">${run.progress}</span>
    </td>
    <td class="c-cost">${dollars(run.cost)}</td>
    <td class="c-duration">
      ${run.ended ? html`<time class="age">${span(lasted(run))}</time>` : html`<${Age} time=${run.created} />`}
    </td>
    <td class="c-created"><${Age} time=${run.created} after=" ago" /></td>
    <td class="c-repo" title=${run.repo || null}>${run.repo.split("/").at(-1)}</td>
  </tr>`;
});
