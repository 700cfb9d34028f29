// One changed file: its name, and its lines once it is opened, in one column or in two, with the requested number of
// unchanged ones around them. An agent wrote it; the server has spelled out hidden characters, cut long lines, and
// sends a long diff in pieces.

import { get, part } from "./api.js";
import { CommentForm, CommentState, isViewed, linesOf, markViewed, Said } from "./comments.js";
import { languageOf, pieces } from "./highlight.js";
import { Component, createRef, Empty, html, memo, useState } from "./view.js";
import { count } from "./words.js";

const SIGNS = { added: "+", deleted: "−", modified: "±", renamed: "→", copied: "→", "changed its type": "±" };
const KINDS = { added: "add", deleted: "del" };
const CLASSES = { "+": "add", "-": "del", " ": "same", "@": "hunk" };
const MODES = { 100644: "plain file", 100755: "executable", 120000: "symbolic link", 160000: "submodule" };
const COLUMNS = 4;
const CONTEXT = 3; // unchanged lines around each change at first,
const MORE_CONTEXT = 25; // and when more is asked for
const WHOLE_FILE = 100000000;
const WHOLE = new Set(["added", "deleted"]); // nothing of such a file is left out

/** "+3 −1", or its replacement for data. */
export const amount = file => (file.added === null ? "data" : `+${file.added} −${file.removed}`);

/**
 * A changed file.
 * @param {Object} props
 * @param {Object} props.change the change of the file: run, node, attempt, head, since
 * @param {Object} props.file as the server lists it
 * @param {boolean} props.open whether it is open at first
 * @param {{open: boolean}|null} props.all that all files were opened or closed; another object each time
 * @param {boolean} props.split in two columns
 * @param {boolean} props.may whether lines may be commented
 * @param {Map<number, Array<Object>>|undefined} props.comments last line → unsent comments
 * @param {Map<number, Array<Object>>|undefined} props.recorded last line → comments that were made on this attempt
 * @param {(a: Object, b: Object) => void} props.comment keeps a comment on lines, or removes it (an empty one)
 * @param {() => void} props.viewed called when it is marked
 */
export class ChangedFile extends Component {
  constructor(props) {
    super(props);
    this.state = { read: [], next: 0, reading: false, trouble: "", context: CONTEXT, viewed: isViewed(props.file) };
    this.big = false; // whether a big file was asked for
    this.details = createRef();
  }

  componentDidUpdate(before) {
    const { change, all } = this.props;
    if (all && all !== before.all) this.details.current.open = all.open;
    if (["head", "attempt", "since"].every(name => change[name] === before.change[name])) return;
    this.head = null; // its lines have changed
    this.setState({ read: [], next: 0, viewed: isViewed(this.props.file) });
    if (this.open) this.more(0);
  }

  turned(details) {
    this.open = details.open;
    if (this.open && this.head !== this.props.change.head) this.more(0);
  }

  async more(from, context = this.state.context) {
    const { change, file } = this.props;
    const mine = (this.asked = {});
    this.head = change.head;
    this.setState({ reading: true, trouble: "", context });
    try {
      const found = await get(
        `runs/${part(change.run)}/nodes/${part(change.node)}/diff?attempt=${change.attempt}&since=${change.since}` +
          `&head=${part(change.head)}&file=${file.number}&from=${from}&context=${context}${this.big ? "&big=1" : ""}`,
      );
      if (this.asked === mine)
        this.setState(({ read }) => ({ read: [...(from ? read : []), found], next: found.next, reading: false }));
    } catch (problem) {
      if (this.asked === mine) this.setState({ trouble: problem.message, reading: false });
    }
  }

  mark(yes) {
    markViewed(this.props.file, yes);
    this.setState({ viewed: yes });
    if (yes) this.details.current.open = false;
    this.props.viewed();
  }

  render({ file, open, split, may, comments, recorded, comment }, { read, next, reading, trouble, context, viewed }) {
    const shown = read.some(found => found.lines.length);
    const big = read.at(-1)?.can_load;
    return html`<div class="file-box${viewed ? " viewed" : ""}">
      <label class="seen"
        ><input type="checkbox" checked=${viewed} onChange=${event => this.mark(event.currentTarget.checked)} />
        Viewed<span class="visually-hidden"> ${file.path}</span></label
      >
      <details
        class="file"
        data-file=${file.number}
        ref=${this.details}
        open=${open && !isViewed(file)}
        onToggle=${event => this.turned(event.currentTarget)}
      >
        <${Name} file=${file} />
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
                  recorded=${recorded}
                  comment=${comment}
                />`
              }`,
          )}
          ${(reading || trouble) && html`<${Empty}>${trouble || "Reading…"}<//>`}
          ${!reading && html`<${MoreOf} file=${this} shown=${shown} big=${big} next=${next} context=${context} />`}
        </div>
      </details>
    </div>`;
  }
}

/** Its name and size. */
const Name = ({ file }) =>
  html`<summary>
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
  </summary>`;

/** Buttons that show more of a file. */
function MoreOf({ file, shown, big, next, context }) {
  const load = () => {
    file.big = true;
    file.more(0);
  };
  const more = shown && !WHOLE.has(file.props.file.status) && context < WHOLE_FILE;
  return html`<div class="row more-of">
    ${shown && next !== null && html`<button type="button" class="more" onClick=${() => file.more(next)}>More lines</button>`}
    ${
      more &&
      context < MORE_CONTEXT &&
      html`<button type="button" class="quiet" onClick=${() => file.more(0, MORE_CONTEXT)}>More context</button>`
    }
    ${more && html`<button type="button" class="quiet" onClick=${() => file.more(0, WHOLE_FILE)}>Whole file</button>`}
    ${big && html`<button type="button" onClick=${load}>Show it</button>`}
  </div>`;
}

/** A piece of the diff. One comment at most is being written. */
const Lines = memo(({ lines, file, split, may, comments, recorded, comment }) => {
  const [edited, edit] = useState(null); // {line, last, text}
  const language = languageOf(file.path);
  const most = Math.max(...lines.map(line => Math.max(line[1], line[2])));
  /** Start a comment on a line; with the shift key, extend the one that is being written to it. */
  const begin = (line, extend) => {
    const on = extend && edited && line * edited.line > 0 && Math.abs(line) > Math.abs(edited.line);
    edit(on ? { ...edited, last: line } : { line, last: 0, text: "" });
  };
  const below = line => [
    edited?.line === line &&
      html`<tr key="form" class="editing">
        <td colspan=${COLUMNS}>
          <${CommentForm}
            ...${edited}
            most=${most}
            done=${(text, last) => {
              edit(null);
              comment(file, { ...edited, last, text });
            }}
            close=${() => edit(null)}
          />
        </td>
      </tr>`,
    ...(comments?.get(line) ?? []).map(one => html`<${Written} key="written ${one.line}" one=${one} edit=${edit} />`),
    ...(recorded?.get(line) ?? []).map(one => html`<${Recorded} key=${one.id} one=${one} />`),
  ];
  const look = { path: file.path, language, may, edit: begin };
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

/** An unsent comment. */
const Written = ({ one, edit }) =>
  html`<tr class="comment">
    <td colspan=${COLUMNS}>
      ${one.last !== 0 && html`<p class="kind">${linesOf(one)}</p>`}
      <p class="words">${one.text}</p>
      <button type="button" class="quiet" onClick=${() => edit(one)}>Edit</button>
    </td>
  </tr>`;

/** A comment that was made on this attempt. */
const Recorded = ({ one }) =>
  html`<tr class="comment recorded">
    <td colspan=${COLUMNS}>
      <p class="kind">${one.place} <${CommentState} state=${one.state} /></p>
      <${Said} one=${one} />
    </td>
  </tr>`;

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
      onClick=${event => look.edit(signed, event.shiftKey)}
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
