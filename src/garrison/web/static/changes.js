// Changes of one attempt of a node: commits, files with their lines, conflicts, checks, the files it left; and,
// while it waits for the user, comments on lines, approval and rejection. `garrison review` shows the same.

import { get, part } from "./api.js";
import { ask } from "./ask.js";
import { Comments, draftOf, forgetDraft, isViewed, keepComments, keepNote, sent } from "./comments.js";
import { Checks, Commits, Conflicts, Evidence } from "./change_facts.js";
import { Act } from "./controls.js";
import { ChangedFile } from "./diff.js";
import { Component, createRef, Empty, html, Skeleton } from "./view.js";
import { count } from "./words.js";

const OPENED = 8; // files that are open at first, if
const OPENED_LINES = 400; // they have at most so many changed lines in all
const NARROW = 900; // pixels below which there is one column
const SPLIT = "garrison.diff.split";
const SHORT = 10;

/**
 * The view. It keeps what it shows until there is something else.
 * @param {Object} props
 * @param {string} props.run
 * @param {string} props.node
 * @param {number} props.attempt
 * @param {number} props.version changes when the work may be different
 * @param {boolean} props.write whether changes are allowed
 * @param {boolean} [props.columns] whether it is one of several columns
 * @param {(...given: any[]) => any} props.act posts a change
 */
export class Changes extends Component {
  constructor(props) {
    super(props);
    this.state = {
      change: null,
      told: "",
      comments: [],
      more: [],
      next: null,
      trouble: "",
      split: localStorage.getItem(SPLIT) === "1",
      since: 0, // the attempt with which it is compared; 0: the target
      all: null, // that all files were opened or closed
      seen: 0, // times that a file was marked
    };
    this.note = createRef();
    this.asked = 0;
    this.comment = this.comment.bind(this);
    this.viewed = () => this.setState(({ seen }) => ({ seen: seen + 1 }));
  }

  componentDidMount() {
    this.load();
  }

  componentDidUpdate(before) {
    if (["node", "attempt", "version"].some(name => before[name] !== this.props[name])) this.load();
  }

  componentWillUnmount() {
    this.asked = -1;
  }

  get path() {
    return `runs/${part(this.props.run)}/nodes/${part(this.props.node)}`;
  }

  async load() {
    const mine = ++this.asked;
    const { change } = this.state;
    let { since } = this.state;
    if (change?.node !== this.props.node || change?.attempt !== this.props.attempt) {
      since = 0;
      this.setState({ change: null, told: "", since, all: null });
    }
    let found;
    try {
      found = await get(`${this.path}/changes?attempt=${this.props.attempt || 0}&since=${since}`);
    } catch (problem) {
      if (mine === this.asked) this.setState({ change: null, told: problem.message });
      return;
    }
    if (mine !== this.asked) return;
    const key = JSON.stringify(found);
    if (found.none) this.setState({ change: null, told: `Nothing to show: ${found.none}` });
    else if (this.state.change?.key !== key)
      this.setState({
        change: { ...found, key },
        comments: draftOf(found).comments,
        more: [],
        next: found.next,
        trouble: "",
        told: "",
      });
  }

  async moreFiles() {
    const { change, next } = this.state;
    try {
      const found = await get(`${this.path}/changes?attempt=${change.attempt}&since=${change.since}&from=${next}`);
      if (this.state.change === change)
        this.setState(({ more }) => ({ more: [...more, ...found.files], next: found.next, trouble: "" }));
    } catch (problem) {
      this.setState({ trouble: problem.message });
    }
  }

  /** Keep a comment on lines, or remove it. */
  comment(file, { line, last, text }) {
    const { change, comments } = this.state;
    const others = comments.filter(one => one.path !== file.path || one.line !== line);
    const one = { file: file.number, since: change.since, path: file.path, line, last, text };
    const now = text ? [...others, one] : others;
    keepComments(change, now);
    this.setState({ comments: now });
  }

  /** Compare with the target, or with the work of an earlier attempt. */
  compare(since) {
    this.setState({ since, all: null }, () => this.load());
  }

  turn() {
    const split = !this.state.split;
    localStorage.setItem(SPLIT, split ? "1" : "");
    this.setState({ split });
  }

  async send(change, data) {
    if (!(await this.props.act(`gates/${part(`review:${change.entry}`)}`, data))) return;
    forgetDraft(change);
    if (this.note.current) this.note.current.value = "";
  }

  async approve() {
    const { change, comments } = this.state,
      note = this.note.current.value.trim();
    const lines = [
      `${count(change.count, "file")} +${change.added} −${change.removed}, commit ${change.commit.slice(0, SHORT)}. ` +
        `It lands on ${change.target} once it has passed the gate.`,
      ...(comments.length
        ? [`Your ${count(comments.length, "comment")} ${comments.length === 1 ? "is" : "are"} kept with it.`]
        : []),
    ];
    if (
      await ask({
        title: `Approve attempt ${change.attempt} of ${change.node}?`,
        lines,
        yes: "Approve",
        kind: "primary",
      })
    )
      await this.send(change, { choice: "Approve", text: note, comments: comments.map(sent) });
  }

  async reject() {
    const { change, comments } = this.state,
      text = this.note.current.value;
    if (!text.trim() && !comments.length) return this.note.current.focus();
    await this.send(change, { text, comments: comments.map(sent) });
  }

  render({ run, write, columns = false }, { change, told, comments, more, next, trouble, split, since, all }) {
    if (!change)
      return html`<div class="changes">${told ? html`<${Empty}>${told}<//>` : html`<${Skeleton} lines=${6} />`}</div>`;
    const may = change.awaits_approval && write;
    const few = change.count <= OPENED && change.added + change.removed <= OPENED_LINES;
    const files = [...change.files, ...more];
    return html`<div class="changes">
      <${Head}
        change=${change}
        split=${split}
        turn=${() => this.turn()}
        since=${since}
        compare=${attempt => this.compare(attempt)}
      />
      ${
        may &&
        html`<${Judgement}
          key=${change.commit}
          change=${change}
          note=${this.note}
          comments=${comments}
          approve=${() => this.approve()}
          reject=${() => this.reject()}
        />`
      }
      <${Comments} comments=${change.comments} />
      <${Conflicts} change=${change} /><${Checks} checks=${change.checks} /><${Commits} change=${change} />
      <${Files} change=${change} files=${files} turn=${open => this.setState({ all: { open } })} />
      ${
        change.count
          ? html`<div class="files">
              ${files.map(
                file =>
                  html`<${ChangedFile}
                    key="${change.attempt} ${change.since} ${file.number} ${file.path}"
                    change=${change}
                    file=${file}
                    open=${few}
                    all=${all}
                    split=${split && !columns && window.innerWidth >= NARROW}
                    may=${may}
                    comments=${onFile(comments, file)}
                    recorded=${madeOn(change, file)}
                    comment=${this.comment}
                    viewed=${this.viewed}
                  />`,
              )}
            </div>`
          : html`<${Empty}
              >${change.since ? `Nothing differs from attempt ${change.since}.` : "It changed no file."}<//
            >`
      }
      ${
        next !== null &&
        html`<${Act} class="more" does=${() => this.moreFiles()}>
          ${trouble || `More files (${next} of ${change.count} shown)`}
        <//>`
      }
      <${Evidence} change=${change} run=${run} />
    </div>`;
  }
}

/** Comments by the last of their lines; undefined if there are none, so that a file's lines are not drawn again. */
function byLine(comments) {
  const found = new Map();
  for (const one of comments) {
    const line = one.last || one.line;
    found.set(line, [...(found.get(line) ?? []), one]);
  }
  return found.size ? found : undefined;
}

/** The unsent comments on a file. Old lines differ where the work is compared with another attempt. */
const onFile = (comments, file) => byLine(comments.filter(one => one.path === file.path));

/** The comments on a file of this attempt that were made on it. */
const madeOn = (change, file) =>
  byLine(
    change.comments.filter(
      one => one.attempt === change.attempt && one.path === file.path && (one.line > 0 || !change.since),
    ),
  );

/** The decision about the work: a note, and two buttons. */
const Judgement = ({ change, note, comments, approve, reject }) =>
  html`<div class="verdict">
    <textarea
      rows="2"
      ref=${note}
      aria-label="Note, or reason for its next attempt"
      placeholder="Note, or reason for its next attempt"
      defaultValue=${draftOf(change).note}
      onInput=${event => keepNote(change, event.currentTarget.value)}
    />
    <div class="row">
      <${Act} class="primary" does=${approve}>Approve<//>
      <${Act} class="danger" does=${reject}
        >${comments.length ? `Reject with ${count(comments.length, "comment")}` : "Reject"}<//
      >
      <span class="kind">${!comments.length && "Select a line's number to comment on it."}</span>
    </div>
  </div>`;

/** The head of the files: how many, how many were viewed, and buttons that open or close all. */
function Files({ change, files, turn }) {
  const seen = files.filter(isViewed).length;
  return html`<div class="row between files-head">
    <h3>${count(change.count, "changed file")}${seen > 0 && `, ${seen} viewed`}</h3>
    ${
      change.count > 0 &&
      html`<span>
        <button type="button" class="quiet" onClick=${() => turn(true)}>Open all</button>
        <button type="button" class="quiet" onClick=${() => turn(false)}>Close all</button>
      </span>`
    }
  </div>`;
}

function Head({ change, split, turn, since, compare }) {
  const state = change.landing || (change.uncommitted ? "not all of it is committed yet" : "not in the merge queue");
  const earlier = change.attempts.filter(attempt => attempt < change.attempt);
  return html`<div class="changes-head">
    <p>
      <strong>${count(change.count, "file")} </strong><span class="plus">+${change.added} </span
      ><span class="minus">−${change.removed}</span>
      ${` · attempt ${change.attempt} at ${change.commit.slice(0, SHORT)}, onto ${change.target}: ${state}`}
    </p>
    ${
      earlier.length > 0 &&
      html`<select
        aria-label="Compared with"
        value=${since}
        onChange=${event => compare(Number(event.currentTarget.value))}
      >
        <option value="0">All of its changes</option>
        ${earlier.map(attempt => html`<option key=${attempt} value=${attempt}>Since attempt ${attempt}</option>`)}
      </select>`
    }
    <button type="button" class="quiet" aria-pressed=${String(split)} onClick=${turn}>Two columns</button>
  </div>`;
}
