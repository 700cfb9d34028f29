// Page of a home: what waits for you in any run, with its answers, then all runs as a table. Search, filter and order are in
// the address, so that a view can be sent or kept.

import { act, get, part } from "./api.js";
import { beginTask } from "./begin.js";
import { EmptyHome } from "./empty_home.js";
import { Lessons } from "./lessons.js";
import { attempt, full, link, skipTo, tab } from "./notice.js";
import { Plans } from "./plans.js";
import { RunsTable } from "./runs_table.js";
import { Schedules } from "./schedules.js";
import { follow } from "./stream.js";
import { Empty, html, Panel, render, Skeleton } from "./view.js";
import { Card } from "./waits.js";
import { count } from "./words.js";

const SHOWN = 20; // cards at once; the table has the others

/**
 * Build the page into `main`.
 * @returns {Promise<Array<[string, string, () => void]>>} its shortcuts
 */
export async function begin(main) {
  let write = null,
    listed = null;
  const draw = () => {
    const { home, runs = null } = write === null ? {} : (listed ?? {});
    const waits = runs && waitsOf(runs);
    main.className = runs?.length === 0 ? "" : "home-page";
    if (runs) tab("", waits.length);
    render(
      runs?.length === 0
        ? html`<${EmptyHome} home=${home} write=${write} /><${Plans} write=${write} />`
        : html`<${Waiting} waits=${waits} write=${write} /><${Plans} write=${write} /><${RunsTable}
              runs=${runs}
              write=${write}
            /><${Schedules} write=${write} /><${Lessons}
              repos=${[...new Set((runs ?? []).map(run => run.repo).filter(Boolean))]}
              write=${write}
            />`,
      main,
    );
  };
  skipTo("#waits-title");
  draw();
  const stream = follow(null, {
    link,
    full,
    runs: list => {
      listed = list;
      draw();
    },
  });
  window.addEventListener("pagehide", () => stream.close());
  window.addEventListener("pageshow", event => event.persisted && location.reload());
  ({ write } = await get("home"));
  draw();
  return [
    ["b", "begin a task", () => write && beginTask()],
    ["/", "search the runs", () => document.getElementById("runs-search")?.focus()],
    ["j", "go to the next item", () => step(main, 1)],
    ["k", "go to the previous item", () => step(main, -1)],
    ["a", "give its first answer; asks before work lands", () => inCard(main, ".choice")?.click()],
    ["r", "write an answer, or why it is rejected", () => inCard(main, "input[type=text]")?.focus()],
    [
      "w",
      "go to what waits for you",
      () => {
        (main.querySelector(".cards button, .cards input") ?? document.getElementById("waits-title"))?.focus();
      },
    ],
    [
      "c",
      "go to the chat",
      () => {
        location.href = "/chat";
      },
    ],
  ];
}

/** The element of the card with the focus. */
const inCard = (main, selector) =>
  /** @type {HTMLElement|null} */ (main.querySelector(".card:focus, .card:focus-within")?.querySelector(selector));

/** Move the focus `by` cards. */
function step(main, by) {
  const cards = [...main.querySelectorAll(".card")];
  const at = cards.findIndex(card => card.matches(":focus, :focus-within"));
  const next = cards[at < 0 ? 0 : Math.min(Math.max(at + by, 0), cards.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** What a card shows of a node; only one with an agent can fail. */
const nodeOf = wait => (wait.node ? { node: wait.node, asks: wait.text, agent: wait.kind === "failed" } : null);

const order = (one, other) => (one < other ? -1 : Number(one > other));

/** Everything that waits in any run, the oldest first; an item that blocks a whole run has no time, and comes before. */
const waitsOf = runs =>
  runs
    .flatMap(({ run, status, waits = [] }) =>
      waits.map(wait => ({ run, status, wait: { ...wait, node: nodeOf(wait) } })),
    )
    .sort((one, other) => order(one.wait.since ?? "", other.wait.since ?? ""));

/** The panel of what waits in any run; null: not known yet. */
const Waiting = ({ waits, write }) =>
  html`<${Panel}
    id="waits"
    title="Waits for you"
    class=${waits?.length ? "some" : ""}
    beside=${html`<span class="number">${waits?.length || ""}</span>`}
  >
    ${!waits ? html`<${Skeleton} />` : !waits.length && html`<${Empty}>Nothing is waiting for you.<//>`}
    <ul class="cards">
      ${waits
        ?.slice(0, SHOWN)
        .map(
          ({ run, status, wait }) =>
            html`<${Card}
              key="${run} ${wait.key}"
              one=${wait}
              run=${run}
              write=${write !== false}
              over=${status === "failed"}
              choose=${(node, tab) => open(run, node, tab)}
              act=${(path, data) => attempt(() => act(`runs/${part(run)}/${path}`, data))}
              beside=${html`<a class="of-run" href="/?run=${part(run)}">${run}</a>`}
            />`,
        )}
    </ul>
    ${
      waits?.length > SHOWN &&
      html`<p class="kind">
        and ${count(waits.length - SHOWN, "item")} more; the filter "waits for you" lists their runs
      </p>`
    }<//
  >`;

function open(run, node, tab) {
  location.href = `/?${new URLSearchParams({ run, node, ...(tab ? { tab } : {}) })}`;
}
