// Changes of one attempt of a node: commits, files with their lines, conflicts, what judged the work, what it left; and,
// while it waits for the user, comments on lines, approval and rejection. `garrison review` shows the same.

import { get, part } from "./api.js";
import { ask } from "./ask.js";
import { Act } from "./controls.js";
import { ChangedFile } from "./diff.js";
import { Component, createRef, Empty, html, Skeleton, useState } from "./view.js";
import { clock, count } from "./words.js";

const OPENED = 8; // files that are open at first, if
const OPENED_LINES = 400; // they have at most so many changed lines in all
const NARROW = 900; // pixels below which there is one column
const SPLIT = "garrison.diff.split";
const SHORT = 10;

const sent = ({ file, line, text }) => ({ file, line, text });

/**
 * The view. What is shown already stays until there is something else.
 * @param {Object} props
 * @param {string} props.run
 * @param {string} props.node
 * @param {number} props.attempt
 * @param {number} props.version changes when it may be different by now
 * @param {boolean} props.write whether changes are allowed
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
    };
    this.note = createRef();
    this.asked = 0;
    this.comment = this.comment.bind(this);
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
    if (change?.node !== this.props.node || change?.attempt !== this.props.attempt)
      this.setState({ change: null, told: "" });
    let found;
    try {
      found = await get(`${this.path}/changes?attempt=${this.props.attempt || 0}`);
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
        comments: kept(found),
        more: [],
        next: found.next,
        trouble: "",
        told: "",
      });
  }

  async moreFiles() {
    const { change, next } = this.state;
    try {
      const found = await get(`${this.path}/changes?attempt=${change.attempt}&from=${next}`);
      if (this.state.change === change)
        this.setState(({ more }) => ({ more: [...more, ...found.files], next: found.next, trouble: "" }));
    } catch (problem) {
      this.setState({ trouble: problem.message });
    }
  }

  /** Keep a comment on a line, or remove it. */
  comment(file, line, text) {
    const { change, comments } = this.state;
    const others = comments.filter(one => one.file !== file.number || one.line !== line);
    this.remember(change, text ? [...others, { file: file.number, line, text, path: file.path }] : others);
  }

  remember(change, comments) {
    sessionStorage.setItem(storage(change), JSON.stringify(comments));
    this.setState({ comments });
  }

  turn() {
    const split = !this.state.split;
    localStorage.setItem(SPLIT, split ? "1" : "");
    this.setState({ split });
  }

  async send(change, data) {
    if (!(await this.props.act(`gates/${part(`review:${change.entry}`)}`, data))) return;
    sessionStorage.removeItem(storage(change));
    if (this.note.current) this.note.current.value = "";
  }

  async approve() {
    const { change, comments } = this.state,
      note = this.note.current.value.trim();
    const lines = [
      `${count(change.count, "file")} +${change.added} −${change.removed}, commit ${change.commit.slice(0, SHORT)}. ` +
        `It lands on ${change.target} once it has passed the gate.`,
      ...(comments.length
        ? [`${count(comments.length, "comment")} of yours ${comments.length === 1 ? "is" : "are"} kept with it.`]
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

  render({ run, write }, { change, told, comments, more, next, trouble, split }) {
    if (!change)
      return html`<div class="changes">${told ? html`<${Empty}>${told}<//>` : html`<${Skeleton} lines=${6} />`}</div>`;
    const may = change.awaits_approval && write;
    const few = change.count <= OPENED && change.added + change.removed <= OPENED_LINES;
    const columns = split && window.innerWidth >= NARROW;
    const files = [...change.files, ...more];
    return html`<div class="changes">
      <${Head} change=${change} split=${split} turn=${() => this.turn()} />
      ${
        may &&
        html`<div class="verdict">
          <textarea
            rows="2"
            ref=${this.note}
            aria-label="Note, or reason for its next attempt"
            placeholder="Note, or reason for its next attempt"
          />
          <div class="row">
            <${Act} class="primary" does=${() => this.approve()}>Approve<//>
            <${Act} class="danger" does=${() => this.reject()}
              >${comments.length ? `Reject with ${count(comments.length, "comment")}` : "Reject"}<//
            >
            <span class="kind">${!comments.length && "Select a line's number to comment on it."}</span>
          </div>
        </div>`
      }
      <${Conflicts} change=${change} /><${Checks} checks=${change.checks} /><${Commits} change=${change} />
      <h3>${count(change.count, "changed file")}</h3>
      ${
        change.count
          ? html`<div class="files">
              ${files.map(
                file =>
                  html`<${ChangedFile}
                    key="${change.attempt} ${file.number} ${file.path}"
                    change=${change}
                    file=${file}
                    open=${few}
                    split=${columns}
                    may=${may}
                    comments=${linesOf(comments, file)}
                    comment=${this.comment}
                  />`,
              )}
            </div>`
          : html`<${Empty}>It changed no file.<//>`
      }
      ${
        next !== null &&
        html`<${Act} class="more" does=${() => this.moreFiles()}>
          ${trouble || `More files (${next} of ${change.count} shown)`}
        <//>`
      }
      ${
        change.evidence.length > 0 &&
        html`<section>
          <h3>Evidence</h3>
          <ul class="evidence">
            ${change.evidence.map(line => html`<li>${line}</li>`)}
          </ul>
        </section>`
      }
      ${
        change.artefacts.length > 0 &&
        html`<section>
          <h3>Files of the attempt</h3>
          ${change.artefacts.map(
            file =>
              html`<${Artefact}
                key=${file.name}
                file=${file}
                path="runs/${part(run)}/nodes/${part(change.node)}/artefact?attempt=${change.attempt}&name=${part(file.name)}"
              />`,
          )}
          <p class="kind">${change.folder}</p>
        </section>`
      }
    </div>`;
  }
}

const storage = change => `garrison.comments ${change.run} ${change.node} ${change.head}`;
const kept = change => JSON.parse(sessionStorage.getItem(storage(change)) ?? "[]");

/** The comments on a file: line → text; undefined without any, so that its lines are not drawn again. */
function linesOf(comments, file) {
  const own = comments.filter(one => one.file === file.number);
  return own.length ? new Map(own.map(one => [one.line, one.text])) : undefined;
}

function Head({ change, split, turn }) {
  const state = change.landing || (change.uncommitted ? "not all of it is committed yet" : "not in the merge queue");
  return html`<div class="changes-head">
    <p>
      <strong>${count(change.count, "file")} </strong><span class="plus">+${change.added} </span
      ><span class="minus">−${change.removed}</span>
      ${` · attempt ${change.attempt} at ${change.commit.slice(0, SHORT)}, onto ${change.target}: ${state}`}
    </p>
    <button type="button" class="quiet" aria-pressed=${String(split)} onClick=${turn}>Two columns</button>
  </div>`;
}

const Conflicts = ({ change: { conflicts, reason } }) =>
  conflicts.length > 0 &&
  html`<section>
    <h3>Conflicts: ${reason}</h3>
    ${conflicts.map(
      file =>
        html` <details key=${file.path} class="conflict" open=${conflicts.length < OPENED}>
          <summary>${file.path}${file.note ? ` (${file.note})` : ""}</summary>
          <pre tabindex="0">
${file.lines.map(line => html`<span class="side-${line.side}">${`${String(line.number).padStart(5)}  ${line.text}\n`}</span>`)}</pre>
        </details>`,
    )}
  </section>`;

const Checks = ({ checks }) =>
  checks.length > 0 &&
  html`<section>
    <h3>Checks</h3>
    ${checks.map((check, at) => {
      const state =
        check.result === "passed" ? "landed" : /not (run|decided)/.test(check.result) ? "waiting" : "failed";
      return html`<details key=${at} class="check s-${state}" open=${state === "failed"}>
        <summary>
          <span class="sign" aria-hidden="true">${{ landed: "✓", waiting: "○", failed: "✕" }[state]}</span>
          ${check.what}: ${check.result}${check.exit_code === null ? "" : `, exit code ${check.exit_code}`}
        </summary>
        <pre class="wrap command">$ ${check.command}</pre>
        <pre class="wrap tail" tabindex="0">${check.tail || "It printed nothing."}</pre>
        ${check.log && html`<p class="kind">All of it: ${check.log}</p>`}
      </details>`;
    })}
  </section>`;

const Commits = ({ change: { commits, more_commits: more } }) =>
  commits.length > 0 &&
  html`<section>
    <h3>${count(commits.length + more, "commit")}</h3>
    <ol class="commits">
      ${more > 0 && html`<li class="kind">… ${more} earlier</li>`}
      ${commits.map(
        one =>
          html`<li key=${one.oid}>
            <code>${one.oid.slice(0, SHORT)}</code> ${one.subject}
            <span class="kind"> ${one.author}, ${clock(one.at)}</span>
          </li>`,
      )}
    </ol>
  </section>`;

/** A file that the attempt left, read when it is opened. */
function Artefact({ file, path }) {
  const [text, show] = useState("Reading…");
  const turned = async event => {
    if (!event.currentTarget.open) return;
    try {
      show((await get(path)).text || "It is empty.");
    } catch (problem) {
      show(problem.message);
    }
  };
  return html`<details onToggle=${turned}>
    <summary>${file.name} (${file.bytes.toLocaleString()} bytes)</summary>
    <pre class="wrap tail" tabindex="0">${text}</pre>
  </details>`;
}
