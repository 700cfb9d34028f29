// Attempts of a node: the result of each and its reason, the end of its log, and the deaths of its processes.

import { Tool } from "./controls.js";
import { legibleName } from "./legible.js";
import { Tail } from "./tail.js";
import { copy } from "./text_tools.js";
import { Empty, html } from "./view.js";
import { clock, count, signOf, stateOf, wordOf } from "./words.js";

const ATTEMPTS = 3; // shown, the last ones
const TAIL = 2000; // characters of a failed attempt's log

/** The attempts, the last one first; early ones are folded. */
export function Attempts({ all }) {
  if (!all.length) return html`<${Empty}>It has not started yet.<//>`;
  const made = all.map((one, at) => html`<${Attempt} key=${one.attempt} one=${one} next=${all[at + 1]} />`).reverse();
  const early = made.splice(ATTEMPTS);
  return html`<ol class="attempts">
      ${made}
    </ol>
    ${
      early.length > 0 &&
      html`<details>
        <summary>${count(early.length, "earlier attempt")}</summary>
        <ol class="attempts">
          ${early}
        </ol>
      </details>`
    }`;
}

/** Why an attempt was not good enough: the `next` one has the reason, if there is one. */
function reasonOf(one, next, state) {
  return next?.why_again || (state === "failed" || !one.why_again ? one.reason : `retry: ${one.why_again}`);
}

/** A reason: its first line is the summary; the others, mostly output, are shown as in a terminal. */
function Reason({ text, whole }) {
  const [first, ...others] = text.split("\n");
  const rest = others.join("\n").replace(/^\n+/, "").trimEnd();
  return html`<p class="reason">${first}</p>
    ${whole && rest && html`<pre class="reason wrap">${rest}</pre>`}`;
}

/** One attempt; the `next` one, if there is one, has the reason why it was not good enough. */
function Attempt({ one, next }) {
  const { lives = [] } = one;
  const lost = lives.filter(life => life.how);
  const state = next ? "failed" : stateOf(one.status);
  const tail = one.status === "failed" && one.tail;
  const reason = reasonOf(one, next, state);
  const isRetry = reason && reason !== one.reason && !next; // the attempt before has all of it
  return html`<li class="s-${state}">
    <p>
      <span class="sign" aria-hidden="true">${signOf(state)}</span><strong> Attempt ${one.attempt} </strong
      ><span>${wordOf(state)}</span>
      ${one.started && html`<time> ${clock(one.started)}${one.ended ? ` – ${clock(one.ended)}` : ""}</time>`}
    </p>
    ${reason && html`<${Reason} text=${reason} whole=${!tail && !isRetry} />`}
    ${tail && html`<${Tail} text=${tail.slice(-TAIL)} />`}
    ${
      one.branch &&
      html`<p class="mono">
        ${[legibleName(one.branch), one.commit?.slice(0, 10)].filter(Boolean).join(" @ ")}
        <${Tool} label="Copy the name of the branch" does=${() => copy(one.branch)}>Copy<//>
      </p>`
    }
    ${
      lost.length > 0 &&
      html`<ol class="lives">
        ${lost.map((life, at) => html`<li key=${at}>${lossWords(life, lives)}</li>`)}
      </ol>`
    }
  </li>`;
}

/** The death of a process that worked on an attempt, and whether another one went on. */
const lossWords = ({ who, incarnation, ended, how }, lives) => {
  const is = who.startsWith("orchestrator-") ? "Its agent" : "The process that runs it";
  const next = lives.some(life => life.who === who && life.incarnation > incarnation);
  return `${is} ${next ? "was restarted after it " : ""}died at ${clock(ended)}: ${how}`;
};
