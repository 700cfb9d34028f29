// Markdown of an agent's answer as elements. No string becomes markup: every piece is a node that is built here, and an
// address is shown as text next to its words, never opened by a click. Unknown markdown stays as it is
// written. While a text grows, only its last block is drawn again.

import { html, memo } from "./view.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const INLINE =
  /`([^`\n]+)`|\*\*([^*\n]+)\*\*|__([^_\n]+)__|\*([^*\s][^*\n]*)\*|\b_([^_\s][^_\n]*)_\b|\[([^\]\n]{1,300})\]\(([^()\s]{1,2000})\)/;
const ROW = /^ {0,3}\|.*\|\s*$/;
const RULED = /^[\s|:-]+$/; // the row below the head of a table
const OWN = /^\/(?!\/)/; // a link to another page of this server
const LONGEST_LINE = 20000; // characters; a longer line is text without inline marks
const SHORT_LINE = 500; // characters; a longer line is neither a heading nor a rule
const MARKS = 500; // inline marks of a line at most

/** Split a text into blocks: { kind, lines, ... }. Pure. */
export function blocksOf(text) {
  const blocks = [];
  let open = null, // the block that the next line may continue
    fence = "";
  for (const line of text.split("\n")) {
    if (!fence) {
      const block = blockAt(line, open);
      if (block && block !== open) blocks.push(block);
      if (block?.kind === "code") fence = FENCE.exec(line)[1];
      open = block?.kind === "heading" || block?.kind === "rule" ? null : block;
    } else if (line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "")) {
      fence = "";
      open = null;
    } else open.lines.push(line);
  }
  return blocks;
}

/** The block of a line outside of code: `open` if the line continues it, else a new one; null for an empty line. */
function blockAt(line, open) {
  if (FENCE.test(line)) return { kind: "code", lines: [] };
  if (!line.trim()) return null;
  const short = line.length <= SHORT_LINE && shortBlock(line, open);
  if (short) return short;
  const item = ITEM.exec(line);
  if (item) return lineOf(item[2] ? "numbers" : "points", item[3], open, { first: Number(item[2] ?? 1) });
  const quote = QUOTE.exec(line);
  if (quote) return lineOf("quote", quote[1], open);
  if (open?.kind !== "points" && open?.kind !== "numbers") return lineOf("text", line, open);
  open.lines[open.lines.length - 1] += `\n${line.trim()}`;
  return open;
}

/** The block of a line that is a heading, a rule or a row of a table; null for others. */
function shortBlock(line, open) {
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, lines: [heading[2]] };
  if (RULE.test(line)) return { kind: "rule", lines: [] };
  return ROW.test(line) ? lineOf("table", line, open) : null;
}

/** The open block with one line more, or a new one of another kind. */
function lineOf(kind, line, open, more = {}) {
  if (open?.kind !== kind) return { kind, ...more, lines: [line] };
  open.lines.push(line);
  return open;
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
  if (kind === "table")
    return html`<${Table} rows=${lines.map(cellsOf)} ruled=${lines.length > 1 && RULED.test(lines[1])} />`;
  if (kind === "quote") return html`<blockquote>${inline(lines.join("\n"))}</blockquote>`;
  return html`<p>${inline(lines.join("\n"))}</p>`;
}, sameBlock);

/** The cells of a table's row; `\\|` is a character within one. */
const cellsOf = line =>
  line
    .trim()
    .slice(1, -1)
    .split(/(?<!\\)\|/)
    .map(cell => cell.trim().replaceAll("\\|", "|"));

/** A table; its first row is the head if the second one rules it off. */
function Table({ rows, ruled }) {
  const [head, body] = ruled ? [rows[0], rows.slice(2)] : [null, rows];
  return html`<div class="table" tabindex="0" role="region" aria-label="Table">
    <table>
      ${
        head &&
        html`<thead>
          <tr>
            ${head.map(cell => html`<th scope="col">${inline(cell)}</th>`)}
          </tr>
        </thead>`
      }
      <tbody>
        ${body.map(
          row =>
            html`<tr>
              ${row.map(cell => html`<td>${inline(cell)}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/**
 * A line in pieces: code, strong and emphasized words, links to pages of this server, other links as words with their
 * address.
 */
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
    else if (OWN.test(address)) parts.push(html`<a href=${address}>${words}</a>`);
    else parts.push(words === address ? words : `${words} (${address})`);
    rest = rest.slice(found.index + all.length);
  }
  return [...parts, rest];
}
