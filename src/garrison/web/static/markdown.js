// Markdown of an agent's answer as elements. No string becomes markup: every piece is a node that is built here, and an
// address is shown as text beside its words, never opened by a click. What is no markdown known here stays as it is
// written. Of a text that still grows, only the last block is drawn again.

import { html, memo } from "./view.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const INLINE =
  /`([^`\n]+)`|\*\*([^*\n]+)\*\*|__([^_\n]+)__|\*([^*\s][^*\n]*)\*|\b_([^_\s][^_\n]*)_\b|\[([^\]\n]{1,300})\]\(([^()\s]{1,2000})\)/;
const LONGEST_LINE = 20000; // characters; a longer line is text without inline marks
const SHORT_LINE = 500; // characters; a longer line is neither a heading nor a rule
const MARKS = 500; // inline marks of a line at most

/** Split a text into blocks: { kind, lines, ... }. Pure. */
export function blocksOf(text) {
  const blocks = [];
  let open = null,
    fence = "";
  const push = block => {
    blocks.push(block);
    return block;
  };
  for (const line of text.split("\n")) {
    if (fence) {
      if (line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "")) {
        fence = "";
        open = null;
      } else open.lines.push(line);
      continue;
    }
    const fenced = FENCE.exec(line),
      short = line.length <= SHORT_LINE,
      heading = short && HEADING.exec(line),
      item = ITEM.exec(line),
      quote = QUOTE.exec(line);
    if (fenced) {
      fence = fenced[1];
      open = push({ kind: "code", lines: [] });
    } else if (!line.trim()) open = null;
    else if (heading) {
      push({ kind: "heading", level: heading[1].length, lines: [heading[2]] });
      open = null;
    } else if (short && RULE.test(line)) {
      push({ kind: "rule", lines: [] });
      open = null;
    } else if (item) {
      const kind = item[2] ? "numbers" : "points";
      if (open?.kind !== kind) open = push({ kind, first: Number(item[2] ?? 1), lines: [] });
      open.lines.push(item[3]);
    } else if (quote) {
      if (open?.kind !== "quote") open = push({ kind: "quote", lines: [] });
      open.lines.push(quote[1]);
    } else if (open?.kind === "points" || open?.kind === "numbers")
      open.lines[open.lines.length - 1] += `\n${line.trim()}`;
    else {
      if (open?.kind !== "text") open = push({ kind: "text", lines: [] });
      open.lines.push(line);
    }
  }
  return blocks;
}

/** Markdown as elements. */
export const Markdown = memo(
  ({ text }) =>
    html`<div class="words markdown">
      ${blocksOf(text).map((block, at) => html`<${Block} key=${at} ...${block} />`)}
    </div>`,
);

const sameBlock = (one, other) =>
  one.kind === other.kind &&
  one.level === other.level &&
  one.first === other.first &&
  one.lines.length === other.lines.length &&
  one.lines.every((line, at) => line === other.lines[at]);

const Block = memo(({ kind, lines, level, first }) => {
  if (kind === "code") return html`<pre tabindex="0"><code>${lines.join("\n")}</code></pre>`;
  if (kind === "heading")
    return html`<p class="heading" role="heading" aria-level=${String(Math.min(6, level + 2))}>${inline(lines[0])}</p>`;
  if (kind === "rule") return html`<hr />`;
  if (kind === "points")
    return html`<ul>
      ${lines.map(line => html`<li>${inline(line)}</li>`)}
    </ul>`;
  if (kind === "numbers")
    return html`<ol start=${String(first)}>
      ${lines.map(line => html`<li>${inline(line)}</li>`)}
    </ol>`;
  if (kind === "quote") return html`<blockquote>${inline(lines.join("\n"))}</blockquote>`;
  return html`<p>${inline(lines.join("\n"))}</p>`;
}, sameBlock);

/** A line in pieces: code, strong and emphasized words, links as words with their address. */
function inline(text) {
  const parts = [];
  let rest = text;
  for (let marks = 0; marks < MARKS && text.length <= LONGEST_LINE; marks += 1) {
    const found = INLINE.exec(rest);
    if (!found) break;
    const [all, code, strong, strong2, em, em2, words, address] = found;
    parts.push(rest.slice(0, found.index));
    if (code) parts.push(html`<code>${code}</code>`);
    else if (strong ?? strong2) parts.push(html`<strong>${strong ?? strong2}</strong>`);
    else if (em ?? em2) parts.push(html`<em>${em ?? em2}</em>`);
    else parts.push(words === address ? words : `${words} (${address})`);
    rest = rest.slice(found.index + all.length);
  }
  return [...parts, rest];
}
