// One changed file: its name, and its lines once it is opened, in one column or in two. What it shows was written by an
// agent; the server has spelled out what hides, cut long lines, and sends a long diff in pieces.

import { get, part } from "./api.js";
import { el, say, set } from "./dom.js";
import { languageOf, pieces } from "./highlight.js";
import { count } from "./words.js";

const SIGNS = { added: "+", deleted: "−", modified: "±", renamed: "→", copied: "→", "changed its type": "±" };

/** "+3 −1", or what takes its place for data. */
export const amount = file => file.added === null ? "data" : `+${file.added} −${file.removed}`;

/**
 * The element of a changed file.
 * @param {Object} change the change that it belongs to: run, node, attempt, head
 * @param {Object} file as the server lists it
 * @param {{split: boolean, may: boolean}} look two columns, and whether lines may be commented
 * @param {{of: function, edit: function}} comments comments of a line, and a form for one
 */
export function fileOf(change, file, look, comments) {
  const body = el("div", { class: "diff-body", tabindex: "0", role: "region", "aria-label": `Lines of ${file.path}` });
  const made = el("details", { class: "file", dataset: { file: file.number } },
    el("summary", {}, el("span", { class: `did k-${file.status === "added" ? "add" : file.status === "deleted" ? "del" : ""}`, title: file.status }, SIGNS[file.status] ?? "±"),
      el("span", { class: "path" }, file.old_path ? `${file.old_path} → ${file.path}` : file.path),
      file.mode ? el("span", { class: "kind" }, file.mode) : null, el("span", { class: "amount" }, amount(file))), body);
  let asked = false;
  made.addEventListener("toggle", () => {
    if (!made.open || asked) return;
    asked = true;
    more(0);
  });

  async function more(from) {
    const waits = el("p", { class: "empty" }, "Reading…");
    body.append(waits);
    try {
      const found = await get(`runs/${part(change.run)}/nodes/${part(change.node)}/diff?attempt=${change.attempt}&head=${part(change.head)}&file=${file.number}&from=${from}`);
      waits.remove();
      if (found.note) body.append(el("p", { class: "empty" }, found.note));
      if (found.lines.length) body.append(tableOf(found.lines, file, look, comments));
      if (found.next !== null) {
        body.append(el("button", { type: "button", class: "more", onclick: event => {
          event.currentTarget.remove();
          more(found.next);
        } }, "More lines"));
      }
    } catch (problem) {
      say(waits, problem.message);
    }
  }
  return made;
}

function tableOf(lines, file, look, comments) {
  const language = languageOf(file.path);
  const rows = look.split ? pairs(lines).map(pair => twoColumns(pair, file, language, look, comments))
    : lines.map(line => oneColumn(line, file, language, look, comments));
  return el("table", { class: look.split ? "diff split" : "diff", "aria-label": file.path },
    look.split ? el("colgroup", {}, ["n", "", "n", ""].map(name => el("col", { class: name }))) : null, el("tbody", {}, rows));
}

const CLASSES = { "+": "add", "-": "del", " ": "same", "@": "hunk" };

const code = (line, language) => [pieces(line[3], language).map(([kind, text]) => kind ? el("span", { class: `t-${kind}` }, text) : text),
  line[4] ? el("span", { class: "cut" }, ` … ${count(line[4], "character")} more`) : null];

/** The number of a line; a button where it may be commented. A removed line has the negative of its old number. */
function number(line, side, file, look, comments) {
  const at = side === "old" ? line?.[1] : line?.[2];
  const cell = el("td", { class: "n" });
  if (!at) return cell;
  if (!look.may) {
    cell.append(String(at));
    return cell;
  }
  const signed = line[0] === "-" ? -at : at;
  cell.append(el("button", { type: "button", "aria-label": `Comment on line ${at}${signed < 0 ? " before the change" : ""} of ${file.path}`,
    onclick: event => comments.edit(file, signed, event.currentTarget.closest("tr")) }, String(at)));
  return cell;
}

function withComments(row, line, file, comments, columns) {
  const at = line[0] === "-" ? -line[1] : line[2];
  const known = at ? comments.of(file, at) : null;
  return known ? [row, commentRow(known.text, columns)] : row;
}

/** The row of a comment below its line. */
export const commentRow = (text, columns) => el("tr", { class: "comment" }, el("td", { colspan: columns }, el("p", {}, text)));

function oneColumn(line, file, language, look, comments) {
  if (line[0] === "@") return el("tr", { class: "hunk" }, el("td", { colspan: 4 }, line[3]));
  const row = el("tr", { class: CLASSES[line[0]], dataset: { line: line[0] === "-" ? -line[1] : line[2] } },
    number(line[0] === "+" ? null : line, "old", file, { may: look.may && line[0] === "-" }, comments),
    number(line[0] === "-" ? null : line, "new", file, look, comments),
    el("td", { class: "sign" }, line[0] === "-" ? "−" : line[0]), el("td", { class: "code" }, code(line, language)));
  return withComments(row, line, file, comments, 4);
}

/** Lines side by side: removed ones beside the added ones that follow them. */
function pairs(lines) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    const from = at;
    while (lines[at]?.[0] === "-") at++;
    const middle = at;
    while (lines[at]?.[0] === "+") at++;
    if (at === from) {
      found.push([lines[at], lines[at]]);
      at++;
      continue;
    }
    const removed = lines.slice(from, middle), added = lines.slice(middle, at);
    for (let row = 0; row < Math.max(removed.length, added.length); row++) found.push([removed[row], added[row]]);
  }
  return found;
}

function twoColumns([left, right], file, language, look, comments) {
  if (left?.[0] === "@") return el("tr", { class: "hunk" }, el("td", { colspan: 4 }, left[3]));
  const side = (line, other, which) => [number(line, which, file, { may: look.may && (which === "new" || line?.[0] === "-") }, comments),
    el("td", { class: `code ${line && line !== other ? CLASSES[line[0]] : ""}` }, line ? code(line, language) : "")];
  const row = el("tr", { dataset: { line: right?.[2] ?? -(left?.[1] ?? 0) } }, side(left, right, "old"), side(right, left, "new"));
  const shown = [left?.[0] === "-" ? left : null, right].filter(Boolean);
  return [row, ...shown.flatMap(line => withComments(null, line, file, comments, 4)).filter(Boolean)];
}

/** Open or close a file. */
export const opened = (element, open) => set(element, "open", open);
