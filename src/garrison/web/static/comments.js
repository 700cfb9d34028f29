// Comments of a review: drafts, kept in the browser until they are sent, and those of earlier
// attempts with the response of the next one.

import { addressWith, inAddress } from "./address.js";
import { html, memo, useLayoutEffect, useRef, useState } from "./view.js";
import { count } from "./words.js";

const VIEWED = "garrison.viewed"; // ids of viewed files, in this browser
const MOST_VIEWED = 3000;
const WORDS = {
  waiting: ["", "waiting", "No later attempt has work yet."],
  open: ["○", "open", "The next attempt left its lines as they were."],
  outdated: ["±", "outdated", "The next attempt changed its lines."],
  answered: ["✓", "answered", "The next attempt's agent answered it."],
};

// ---- drafts

const place = (what, change) => `garrison.${what} ${change.run} ${change.node} ${change.commit}`;

/** Unsent comments and note on a change. */
export const draftOf = change => ({
  comments: JSON.parse(sessionStorage.getItem(place("comments", change)) ?? "[]"),
  note: sessionStorage.getItem(place("note", change)) ?? "",
});

export const keepComments = (change, comments) =>
  keep(place("comments", change), comments.length ? JSON.stringify(comments) : "");
export const keepNote = (change, note) => keep(place("note", change), note);

/** Forget what was sent. */
export function forgetDraft(change) {
  keepComments(change, []);
  keepNote(change, "");
}

function keep(name, text) {
  if (text) sessionStorage.setItem(name, text);
  else sessionStorage.removeItem(name);
}

/** A comment in the form that the server accepts. */
export const sent = ({ file, line, last, text, since }) => ({ file, line, last, text, since });

// ---- viewed files

const idOf = file => `${file.path}\n${file.content}`;
let known = null; // their ids, once they were read
const viewed = () => (known ??= new Set(JSON.parse(localStorage.getItem(VIEWED) ?? "[]")));

/** Whether a file was viewed with its current content. */
export const isViewed = file => viewed().has(idOf(file));

/** Remember whether a file was viewed; new content counts as not viewed. */
export function markViewed(file, yes) {
  viewed().delete(idOf(file));
  if (yes) viewed().add(idOf(file));
  localStorage.setItem(VIEWED, JSON.stringify([...viewed()].slice(-MOST_VIEWED)));
}

// ---- lines in words

/** "line 5", "lines 5 to 9 before the change". */
export function linesOf({ line, last }) {
  const from = Math.abs(line),
    to = Math.abs(last || line);
  return `${from === to ? `line ${from}` : `lines ${from} to ${to}`}${line < 0 ? " before the change" : ""}`;
}

// ---- drawn

/** The state of a recorded comment. */
export const CommentState = ({ state }) => {
  const [sign, word, title] = WORDS[state];
  return html`<span class="comment-state k-${state}" title=${title}>${sign} ${word}</span>`;
};

/** A recorded comment: its text, the answer to it, and its state. */
export const Said = ({ one }) =>
  html`<p class="words">${one.text}</p>
    ${one.answer && html`<p class="answer"><strong>Answer: </strong>${one.answer}</p>`}`;

/** All comments on this attempt and the earlier ones; it scrolls to the one that the address names. */
export const Comments = memo(({ comments }) => {
  const list = useRef(null);
  const named = inAddress("comment");
  useLayoutEffect(() => {
    const found = named && list.current?.querySelector(`#comment-${CSS.escape(named)}`);
    if (found) {
      found.scrollIntoView({ block: "center" });
      found.focus({ preventScroll: true });
    }
  }, [named, comments.length]);
  if (!comments.length) return null;
  const left = comments.filter(one => one.state === "open").length;
  return html`<section>
    <h3>${count(comments.length, "comment")}${left ? `, ${left} open` : ""}</h3>
    <ol class="said" ref=${list}>
      ${comments.map(
        one =>
          html`<li key=${one.id} id="comment-${one.id}" tabindex="-1" class=${one.id === named ? "named" : ""}>
            <p class="head">
              <a href=${addressWith({ tab: "changes", attempt: one.attempt, comment: one.id })}
                ><span class="mono">${one.path}</span>, ${one.place}</a
              >
              <span class="kind"> attempt ${one.attempt}</span> <${CommentState} state=${one.state} />
            </p>
            <pre class="quoted wrap">${one.quoted.join("\n")}</pre>
            <${Said} one=${one} />
          </li>`,
      )}
    </ol>
  </section>`;
});

/** A form for a comment below a line: its text, and the last of several lines. */
export function CommentForm({ line, last, most, text, done, close }) {
  const field = useRef(null);
  const [until, setUntil] = useState(Math.abs(last || line));
  useLayoutEffect(() => setUntil(Math.abs(last || line)), [last]);
  useLayoutEffect(() => {
    const control = /** @type {HTMLElement|null} */ (document.activeElement);
    field.current.focus();
    return () => {
      if (control?.isConnected) control.focus();
    };
  }, []);
  const sign = Math.sign(line);
  const finish = () => done(field.current.value.trim(), until > Math.abs(line) ? sign * until : 0);
  const pressed = event => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) finish();
  };
  return html`<div class="comment-form" onKeyDown=${pressed}>
    <textarea
      rows="2"
      ref=${field}
      aria-label="Comment on ${linesOf({ line, last: sign * until })}"
      defaultValue=${text}
    />
    <div class="row">
      <button type="button" class="primary" onClick=${finish}>Comment</button
      ><button type="button" onClick=${() => close()}>Not now</button>
      ${text && html`<button type="button" onClick=${() => done("", 0)}>Remove</button>`}
      <label class="until"
        >up to line
        <input
          type="number"
          min=${Math.abs(line)}
          max=${most}
          value=${until}
          onInput=${event => setUntil(Number(event.currentTarget.value) || Math.abs(line))}
        />
      </label>
    </div>
  </div>`;
}
