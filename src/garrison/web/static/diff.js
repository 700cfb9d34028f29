// One changed file: its name, and its lines once it is opened, in one column or in two. What it shows was written by an
// agent; the server has spelled out what hides, cut long lines, and sends a long diff in pieces.

import { get, part } from "./api.js";
import { languageOf, pieces } from "./highlight.js";
import { Component, Empty, html, memo, useLayoutEffect, useRef, useState } from "./view.js";
import { count } from "./words.js";

const SIGNS = { added: "+", deleted: "−", modified: "±", renamed: "→", copied: "→", "changed its type": "±" };
const KINDS = { added: "add", deleted: "del" };
const CLASSES = { "+": "add", "-": "del", " ": "same", "@": "hunk" };
const MODES = { 100644: "plain file", 100755: "executable", 120000: "symbolic link", 160000: "submodule" };
const COLUMNS = 4;

/** "+3 −1", or what takes its place for data. */
export const amount = file => (file.added === null ? "data" : `+${file.added} −${file.removed}`);

/**
 * A changed file.
 * @param {Object} props
 * @param {Object} props.change the change that it belongs to: run, node, attempt, head
 * @param {Object} props.file as the server lists it
 * @param {boolean} props.open whether it is open at first
 * @param {boolean} props.split in two columns
 * @param {boolean} props.may whether lines may be commented
 * @param {Map<number, string>|undefined} props.comments line → comment
 * @param {(a: Object, b: number, c: string) => void} props.comment keeps a comment on a line, or removes it (an empty one)
 */
export class ChangedFile extends Component {
  constructor(props) {
    super(props);
    this.state = { read: [], next: 0, reading: false, trouble: "" };
  }

  componentDidUpdate(before) {
    const { change } = this.props;
    if (change.head === before.change.head && change.attempt === before.change.attempt) return;
    this.head = null; // its lines are others by now
    this.setState({ read: [], next: 0 });
    if (this.open) this.more(0);
  }

  turned(details) {
    this.open = details.open;
    if (this.open && this.head !== this.props.change.head) this.more(0);
  }

  async more(from) {
    const { change, file } = this.props;
    this.head = change.head;
    this.setState({ reading: true, trouble: "" });
    try {
      const found = await get(
        `runs/${part(change.run)}/nodes/${part(change.node)}/diff` +
          `?attempt=${change.attempt}&head=${part(change.head)}&file=${file.number}&from=${from}`,
      );
      if (this.head === change.head)
        this.setState(({ read }) => ({ read: [...(from ? read : []), found], next: found.next, reading: false }));
    } catch (problem) {
      if (this.head === change.head) this.setState({ trouble: problem.message, reading: false });
    }
  }

  render({ file, open, split, may, comments, comment }, { read, next, reading, trouble }) {
    return html`<details
      class="file"
      data-file=${file.number}
      open=${open}
      onToggle=${event => this.turned(event.currentTarget)}
    >
      <summary>
        <span class="did k-${KINDS[file.status] ?? ""}" title=${file.status}>${SIGNS[file.status] ?? "±"}</span>
        <span class="path">${file.old_path ? `${file.old_path} → ${file.path}` : file.path}</span>${
          file.mode &&
          html`<span class="kind"
            >${file.mode
              .split(" ")
              .map(mode => MODES[mode] ?? mode)
              .join(" ")}</span
          >`
        } <span class="amount">${amount(file)}</span>
      </summary>
      <div class="diff-body" tabindex="0" role="region" aria-label="Lines of ${file.path}">
        ${read.map(
          (found, at) =>
            html`${found.note && html`<${Empty}>${found.note}<//>`}
            ${
              found.lines.length > 0 &&
              html`<${Lines}
                key=${at}
                lines=${found.lines}
                file=${file}
                split=${split}
                may=${may}
                comments=${comments}
                comment=${comment}
              />`
            }`,
        )}
        ${(reading || trouble) && html`<${Empty}>${trouble || "Reading…"}<//>`}
        ${
          read.length > 0 &&
          next !== null &&
          !reading &&
          html`<button type="button" class="more" onClick=${() => this.more(next)}>More lines</button>`
        }
      </div>
    </details>`;
  }
}

/** A piece of the diff. One line at most is being commented. */
const Lines = memo(({ lines, file, split, may, comments, comment }) => {
  const [edited, edit] = useState(null);
  const language = languageOf(file.path);
  const said = (line, text) => {
    edit(null);
    comment(file, line, text);
  };
  const below = line => [
    edited === line &&
      html`<${CommentForm}
        key="form ${line}"
        line=${line}
        text=${comments?.get(line) ?? ""}
        done=${text => said(line, text)}
        close=${() => edit(null)}
      />`,
    comments?.has(line) &&
      html`<tr key="said ${line}" class="comment">
        <td colspan=${COLUMNS}><p>${comments.get(line)}</p></td>
      </tr>`,
  ];
  const look = { path: file.path, language, may, edit };
  const rows = split
    ? pairs(lines).map((pair, at) => html`<${Pair} key=${at} pair=${pair} look=${look} />${shownOf(pair).map(below)}`)
    : lines.map(
        (line, at) =>
          html`<${Single} key=${at} line=${line} look=${look} />${line[0] !== "@" && below(numberOf(line))}`,
      );
  return html`<table class=${split ? "diff split" : "diff"} aria-label=${file.path}>
    ${
      split &&
      html`<colgroup>
        ${["n", "", "n", ""].map((name, at) => html`<col key=${at} class=${name} />`)}
      </colgroup>`
    }
    <tbody>
      ${rows}
    </tbody>
  </table>`;
});

/** A form for a comment below a line. */
function CommentForm({ line, text, done, close }) {
  const field = useRef(null);
  useLayoutEffect(() => {
    const control = /** @type {HTMLElement|null} */ (document.activeElement);
    field.current.focus();
    return () => {
      if (control?.isConnected) control.focus();
    };
  }, []);
  const finish = () => done(field.current.value.trim());
  const pressed = event => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) finish();
  };
  return html`<tr class="editing">
    <td colspan=${COLUMNS}>
      <textarea
        rows="2"
        ref=${field}
        aria-label="Comment on line ${Math.abs(line)}"
        defaultValue=${text}
        onKeyDown=${pressed}
      />
      <div class="row">
        <button type="button" class="primary" onClick=${finish}>Comment</button
        ><button type="button" onClick=${() => close()}>Not now</button>
        ${text && html`<button type="button" onClick=${() => done("")}>Remove</button>`}
      </div>
    </td>
  </tr>`;
}

/** The number of a line for comments: a removed one has the negative of its old number. */
const numberOf = line => (line[0] === "-" ? -line[1] : line[2]);

const shownOf = ([left, right]) =>
  left?.[0] === "@" ? [] : [left?.[0] === "-" ? numberOf(left) : null, right ? numberOf(right) : null].filter(Boolean);

const Code = ({ line, language }) =>
  html`${pieces(line[3], language).map(([kind, text]) => (kind ? html`<span class="t-${kind}">${text}</span>` : text))}
  ${line[4] > 0 && html`<span class="cut"> … ${count(line[4], "character")} more</span>`}`;

/** The number of a line on a side; a button where it may be commented. */
function LineNumber({ line, side, may, look }) {
  const at = side === "old" ? line?.[1] : line?.[2];
  if (!at || !may) return html`<td class="n">${at || null}</td>`;
  const signed = line[0] === "-" ? -at : at;
  return html`<td class="n">
    <button
      type="button"
      aria-label="Comment on line ${at}${signed < 0 ? " before the change" : ""} of ${look.path}"
      onClick=${() => look.edit(signed)}
    >
      ${at}
    </button>
  </td>`;
}

const Hunk = ({ line }) =>
  html`<tr class="hunk">
    <td colspan=${COLUMNS}>${line[3]}</td>
  </tr>`;

const Single = ({ line, look }) =>
  line[0] === "@"
    ? html`<${Hunk} line=${line} />`
    : html`<tr class=${CLASSES[line[0]]} data-line=${numberOf(line)}>
        <${LineNumber}
          line=${line[0] === "+" ? null : line}
          side="old"
          may=${look.may && line[0] === "-"}
          look=${look}
        />
        <${LineNumber} line=${line[0] === "-" ? null : line} side="new" may=${look.may} look=${look} />
        <td class="sign">${line[0] === "-" ? "−" : line[0]}</td>
        <td class="code"><${Code} line=${line} language=${look.language} /></td>
      </tr>`;

/** Lines side by side: removed ones next to the added ones that follow them. */
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
    const removed = lines.slice(from, middle),
      added = lines.slice(middle, at);
    for (let row = 0; row < Math.max(removed.length, added.length); row++) found.push([removed[row], added[row]]);
  }
  return found;
}

const Pair = ({ pair: [left, right], look }) =>
  left?.[0] === "@"
    ? html`<${Hunk} line=${left} />`
    : html`<tr data-line=${right?.[2] ?? -(left?.[1] ?? 0)}>
        <${Side} line=${left} other=${right} side="old" look=${look} /><${Side}
          line=${right}
          other=${left}
          side="new"
          look=${look}
        />
      </tr>`;

const Side = ({ line, other, side, look }) =>
  html` <${LineNumber}
      line=${line}
      side=${side}
      may=${look.may && (side === "new" || line?.[0] === "-")}
      look=${look}
    />
    <td class="code ${line && line !== other ? CLASSES[line[0]] : ""}">
      ${line && html`<${Code} line=${line} language=${look.language} />`}
    </td>`;
