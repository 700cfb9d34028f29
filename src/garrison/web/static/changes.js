// Changes of one attempt at a node: commits, files with their lines, conflicts, what judged the work, what it left; and,
// while it waits for a person, comments on lines, approval and rejection. `garrison review` shows the same.

import { get, part } from "./api.js";
import { ask } from "./ask.js";
import { amount, commentRow, fileOf } from "./diff.js";
import { el, empty, say, set } from "./dom.js";
import { legible } from "./legible.js";
import { clock, count } from "./words.js";

const OPENED = 8; // files that are open at first, if
const OPENED_LINES = 400; // they have at most so many changed lines in all
const SPLIT = "garrison.diff.split";
const SHORT = 10;

/** The view; `act` posts a change, `run` names the run. */
export function changesView(run, act) {
  const element = el("div", { class: "changes" });
  let shown = null, asked = 0, comments = [], split = localStorage.getItem(SPLIT) === "1", write = true;

  /** Read and show the changes of an attempt; what is shown already stays until there is something else. */
  async function load(node, attempt, may) {
    const turn = ++asked;
    write = may;
    if (shown?.node !== node || shown?.attempt !== attempt) element.replaceChildren(empty("Reading the changes…"));
    let found;
    try {
      found = await get(`runs/${part(run)}/nodes/${part(node)}/changes?attempt=${attempt || 0}`);
    } catch (problem) {
      if (turn === asked) element.replaceChildren(empty(problem.message));
      return;
    }
    if (turn !== asked) return;
    if (found.none) {
      shown = null;
      element.replaceChildren(empty(`Nothing to show: ${found.none}`));
      return;
    }
    const key = JSON.stringify([found, write]);
    if (shown?.key === key) return;
    shown = { ...found, key };
    comments = kept(found);
    draw();
  }

  const storage = change => `garrison.comments ${change.run} ${change.node} ${change.head}`;
  const kept = change => JSON.parse(sessionStorage.getItem(storage(change)) ?? "[]");

  function keep() {
    sessionStorage.setItem(storage(shown), JSON.stringify(comments));
    element.querySelector(".verdict")?.replaceWith(verdict(element.querySelector(".verdict textarea")?.value ?? ""));
  }

  function draw() {
    const open = new Set([...element.querySelectorAll("details.file[open]")].map(file => file.dataset.file));
    const note = element.querySelector(".verdict textarea")?.value ?? "";
    const may = shown.awaits_approval && write;
    const look = { split: split && window.innerWidth >= 900, may };
    const at = { of: (file, line) => comments.find(one => one.file === file.number && one.line === line), edit };
    const files = shown.files.map(file => fileOf(shown, file, look, at));
    const few = shown.count <= OPENED && shown.added + shown.removed <= OPENED_LINES;
    const list = el("div", { class: "files" }, files);
    element.replaceChildren(...[head(), may ? verdict(note) : null, conflicts(), checks(), commits(),
      el("h3", {}, count(shown.count, "changed file")), shown.count ? list : empty("It changed no file."), moreFiles(list, look, at),
      evidence(), artefacts()].filter(Boolean));
    for (const file of files) if (few || open.has(file.dataset.file)) set(file, "open", true);
  }

  function head() {
    const state = shown.landing || (shown.uncommitted ? "not all of it is committed yet" : "not in the merge queue");
    const toggle = el("button", { type: "button", class: "quiet", "aria-pressed": String(split), onclick: () => {
      split = !split;
      localStorage.setItem(SPLIT, split ? "1" : "");
      draw();
    } }, "Two columns");
    return el("div", { class: "changes-head" }, el("p", {}, el("strong", {}, `${count(shown.count, "file")} `),
      el("span", { class: "plus" }, `+${shown.added} `), el("span", { class: "minus" }, `−${shown.removed}`),
      ` · attempt ${shown.attempt} at ${shown.commit.slice(0, SHORT)}, onto ${shown.target}: ${state}`), toggle);
  }

  function verdict(note) {
    const text = el("textarea", { rows: 2, "aria-label": "Note, or reason for its next attempt", placeholder: "Note, or reason for its next attempt" });
    text.value = note;
    const change = shown;
    const sent = async (data, control) => {
      if (await act(`gates/${part(`review:${change.entry}`)}`, data, control)) {
        sessionStorage.removeItem(storage(change));
        text.value = "";
      }
    };
    const files = `${count(change.count, "file")} +${change.added} −${change.removed}`;
    const approve = async event => {
      const control = event.currentTarget;
      const lines = [`${files}, commit ${change.commit.slice(0, SHORT)}. It lands on ${change.target} once it has passed the gate.`,
        ...(comments.length ? [`${count(comments.length, "comment")} of yours would not be sent: comments are part of a rejection.`] : [])];
      if (await ask({ title: `Approve attempt ${change.attempt} of ${change.node}?`, lines, yes: "Approve", kind: "primary" })) {
        await sent({ choice: "Approve", text: text.value.trim() }, control);
      }
    };
    const reject = event => {
      if (!text.value.trim() && !comments.length) return text.focus();
      return sent({ text: text.value, comments: comments.map(({ file, line, text: said }) => ({ file, line, text: said })) }, event.currentTarget);
    };
    return el("div", { class: "verdict" }, text, el("div", { class: "row" },
      el("button", { type: "button", class: "primary", onclick: approve }, "Approve"),
      el("button", { type: "button", class: "danger", onclick: reject }, comments.length ? `Reject with ${count(comments.length, "comment")}` : "Reject"),
      el("span", { class: "kind" }, comments.length ? "" : "Select a line's number to comment on it.")));
  }

  /** Open a form for a comment below a line. */
  function edit(file, line, row) {
    element.querySelector("tr.editing")?.remove();
    const known = comments.find(one => one.file === file.number && one.line === line);
    const field = el("textarea", { rows: 2, "aria-label": `Comment on line ${Math.abs(line)}` });
    field.value = known?.text ?? "";
    const columns = 4;
    const done = text => {
      comments = comments.filter(one => one !== known);
      const below = row.nextElementSibling?.nextElementSibling; // the form is between
      if (known && below?.classList.contains("comment")) below.remove();
      if (text) comments.push({ file: file.number, line, text, path: file.path });
      form.remove();
      if (text) row.after(commentRow(text, columns));
      row.querySelector("button")?.focus();
      keep();
    };
    const form = el("tr", { class: "editing" }, el("td", { colspan: columns }, field, el("div", { class: "row" },
      el("button", { type: "button", class: "primary", onclick: () => done(field.value.trim()) }, "Comment"),
      el("button", { type: "button", onclick: () => form.remove() }, "Not now"),
      known ? el("button", { type: "button", onclick: () => done("") }, "Remove") : null)));
    field.addEventListener("keydown", event => {
      if (event.key === "Escape") {
        event.stopPropagation();
        form.remove();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(field.value.trim());
    });
    row.after(form);
    field.focus();
  }

  function moreFiles(list, look, at) {
    if (shown.next === null) return null;
    const change = shown;
    const button = el("button", { type: "button", class: "more", onclick: async () => {
      button.disabled = true;
      try {
        const found = await get(`runs/${part(run)}/nodes/${part(change.node)}/changes?attempt=${change.attempt}&from=${button.dataset.from}`);
        list.append(...found.files.map(file => fileOf(change, file, look, at)));
        button.dataset.from = found.next;
        if (found.next === null) button.remove();
        else say(button, words(found.next));
      } catch (problem) {
        say(button, problem.message);
      }
      button.disabled = false;
    }, dataset: { from: change.next } });
    const words = from => `More files (${from} of ${change.count} shown)`;
    say(button, words(change.next));
    return button;
  }

  function conflicts() {
    if (!shown.conflicts.length) return null;
    return el("section", {}, el("h3", {}, `Conflicts: ${shown.reason}`), shown.conflicts.map(file => el("details", { class: "conflict", open: shown.conflicts.length < OPENED },
      el("summary", {}, file.path, file.note ? ` (${file.note})` : ""),
      el("pre", { tabindex: "0" }, file.lines.map(line => el("span", { class: `side-${line.side}` }, `${String(line.number).padStart(5)}  ${line.text}\n`))))));
  }

  function checks() {
    if (!shown.checks.length) return null;
    return el("section", {}, el("h3", {}, "Checks"), shown.checks.map(check => {
      const state = check.result === "passed" ? "landed" : /not (run|decided)/.test(check.result) ? "waiting" : "failed";
      return el("details", { class: `check s-${state}`, open: state === "failed" }, el("summary", {},
        el("span", { class: "sign", "aria-hidden": "true" }, { landed: "✓", waiting: "○", failed: "✕" }[state]),
        ` ${check.what}: ${check.result}`, check.exit_code === null ? null : `, exit code ${check.exit_code}`),
      el("pre", { class: "wrap command" }, `$ ${check.command}`), el("pre", { class: "wrap tail", tabindex: "0" }, check.tail || "It printed nothing."),
      check.log ? el("p", { class: "kind" }, `All of it: ${check.log}`) : null);
    }));
  }

  const commits = () => shown.commits.length ? el("section", {}, el("h3", {}, count(shown.commits.length + shown.more_commits, "commit")), el("ol", { class: "commits" },
    shown.more_commits ? el("li", { class: "kind" }, `… ${shown.more_commits} earlier`) : null,
    shown.commits.map(one => el("li", {}, el("code", {}, one.oid.slice(0, SHORT)), ` ${one.subject} `, el("span", { class: "kind" }, `${one.author}, ${clock(one.at)}`))))) : null;

  const evidence = () => shown.evidence.length ? el("section", {}, el("h3", {}, "Evidence"), el("ul", { class: "evidence" },
    shown.evidence.map(line => el("li", {}, line)))) : null;

  function artefacts() {
    if (!shown.artefacts.length) return null;
    const change = shown;
    return el("section", {}, el("h3", {}, "Files of the attempt"), shown.artefacts.map(file => {
      const text = el("pre", { class: "wrap tail", tabindex: "0" }, "Reading…");
      const made = el("details", {}, el("summary", {}, `${file.name} (${file.bytes.toLocaleString()} bytes)`), text);
      made.addEventListener("toggle", async () => {
        if (!made.open) return;
        try {
          const found = await get(`runs/${part(run)}/nodes/${part(change.node)}/artefact?attempt=${change.attempt}&name=${part(file.name)}`);
          text.textContent = legible(found.text) || "It is empty.";
        } catch (problem) {
          text.textContent = problem.message;
        }
      });
      return made;
    }), el("p", { class: "kind" }, shown.folder));
  }

  return { element, load };
}

/** The outcomes that lead to a gate, in an element that is filled when they are read. */
export function decisionOf(run, gate) {
  const made = el("ul", { class: "outcomes" });
  get(`runs/${part(run)}/gates/${part(gate)}`).then(found => {
    made.replaceChildren(...found.outcomes.map(one => el("li", {}, el("strong", {}, one.node), ` ${one.state}`,
      one.files === null ? "" : ` · ${count(one.files, "file")} ${amount(one)}`, one.usd ? ` · $${one.usd.toFixed(2)}` : "",
      one.reason && one.state !== "landed" ? el("span", { class: "kind" }, ` ${one.reason.split("\n")[0]}`) : "")),
    ...(found.more ? [el("li", { class: "kind" }, `… and ${found.more} more`)] : []),
    ...(found.usd ? [el("li", { class: "kind" }, `The run has cost $${found.usd.toFixed(2)} so far.`)] : []));
  }).catch(() => made.remove());
  return made;
}
