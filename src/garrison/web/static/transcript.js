// One block of an agent's transcript. Its content is hostile input: it becomes text, whatever it looks like.

import { html } from "./view.js";

const SHOWN = 1200; // characters of a tool's input or result, before it is folded
const LONGEST = 60000; // characters of one block on the page
const TITLES = { text: "", thinking: "Thinking", tool_use: "Tool", tool_result: "Result", result: "End", note: "Note" };

/** A block {role, kind, name, text}; `hit`: a search found it. */
export function Block({ block, hit }) {
  const kind = Object.hasOwn(TITLES, block.kind) ? block.kind : "text";
  const text = String(block.text ?? "");
  const shown = text.length > LONGEST ? `${text.slice(0, LONGEST)}\n… ${text.length - LONGEST} characters more` : text;
  const title = [TITLES[kind] || (block.role === "session" ? "Session" : "Agent"), block.name]
    .filter(Boolean)
    .join(" · ");
  const body = html`<pre class=${kind === "text" || kind === "note" ? "wrap prose" : "wrap"}>${shown}</pre>`;
  const folded = kind === "thinking" || ((kind === "tool_use" || kind === "tool_result") && text.length > SHOWN);
  return html`<li class="block k-${kind}${block.error ? " bad" : ""}${hit ? " hit" : ""}">
    ${
      folded
        ? html`<details open=${Boolean(hit)}>
            <summary>${title} (${text.length.toLocaleString()} characters)</summary>
            ${body}
          </details>`
        : html`<p class="kind">${title}</p>
            ${body}`
    }
  </li>`;
}
