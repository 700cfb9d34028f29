// View of a file that an agent writes, however long it is: it follows the end, goes back piece by piece to the start,
// is searched by the server, copied and downloaded. The caller draws the pieces.

import { inAddress, keepInAddress } from "./address.js";
import { get } from "./api.js";
import { Tool } from "./controls.js";
import { follower } from "./follower.js";
import { copy, download } from "./text_tools.js";
import { Component, createRef, Empty, html, memo, Skeleton } from "./view.js";

const PIECE = 256 * 1024; // bytes of a piece
const END = 400000; // bytes at the end that are shown first
const KEPT = 2000000; // characters on the page; more is dropped at the other end
const NEAR = 40; // pixels from the end within which the view stays at it

/**
 * The view; it scrolls its container. Its properties do not change: another file is another view, by its `key`.
 * @param {Object} props
 * @param {string} props.address path of the pieces, with its query started
 * @param {string} props.search path of the search, with its query started
 * @param {string} props.name of the downloaded file
 * @param {string} props.nothing text for an empty file
 * @param {string} props.box element that contains the pieces
 * @param {(a: Object, b: string|null) => Object} props.prepare properties of a piece, once; `b`: the searched text in it, if any
 * @param {(...given: any[]) => any} props.Piece component of a piece; the first match is in a <mark>, or has the class "hit"
 * @param {(a: Object) => string} props.text a piece as text
 * @param {() => boolean} props.live whether more may come
 */
export class FileView extends Component {
  constructor(props) {
    super(props);
    this.state = { pieces: [], following: false, told: "", trouble: "", read: false };
    this.box = createRef();
    this.input = createRef();
    this.pieces = []; // as in the state, which is drawn a moment later
    this.hit = null;
    this.stopped = false;
    this.made = 0;
  }

  componentDidMount() {
    const at = Number(inAddress("at"));
    if (at > 0) this.goTo(at);
    else this.follow();
  }

  /** Show the line that starts at this byte, marked. */
  async goTo(at) {
    const found = await this.piece(at);
    if (this.stopped) return;
    if (!found?.text) return this.follow();
    this.setState({ read: true });
    this.unfollow();
    this.put(found, false, found.text.split("\n")[0] || null, () => this.toMark());
    this.say("the linked line");
  }

  toMark() {
    (this.box.current.querySelector("mark") ?? this.box.current.firstElementChild)?.scrollIntoView({ block: "center" });
  }

  /** Copy the address of the selected line, else of the found one, else of the first in sight. */
  async link() {
    const at = lineInSight(this.box.current, this.place, this.pieces);
    if (at === null) return;
    keepInAddress({ at });
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    this.say("the address points to this line");
  }

  componentWillUnmount() {
    this.stopped = true;
    this.unfollow();
  }

  get place() {
    return this.box.current.parentElement;
  }
  get begin() {
    return this.pieces[0]?.found.from ?? 0;
  }
  get end() {
    return this.pieces.at(-1)?.found.next ?? 0;
  }
  say(told) {
    this.setState({ told });
  }

  /** Add a piece; `then` is called when it is drawn. */
  put(found, first, needle, then) {
    const { text, prepare } = this.props;
    const piece = { key: ++this.made, found, size: text(found).length, shown: prepare(found, needle) };
    const pieces = first ? [piece, ...this.pieces] : [...this.pieces, piece];
    let all = pieces.reduce((sum, one) => sum + one.size, 0);
    while (all > KEPT && pieces.length > 1) {
      all -= (first ? pieces.pop() : pieces.shift()).size;
      if (first) this.unfollow(); // the view no longer includes the end
    }
    this.show(pieces, then);
  }

  show(pieces, then) {
    this.pieces = pieces;
    this.setState({ pieces, following: Boolean(this.following) }, then);
  }

  unfollow() {
    this.following?.stop();
    this.following = null;
  }

  /** Follow the end. */
  follow() {
    this.unfollow();
    this.show([]);
    this.following = follower(
      this.props.address,
      -END,
      found => {
        this.setState({ read: true, trouble: "" });
        if (!this.props.text(found)) return;
        const atEnd =
          this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < NEAR || !this.pieces.length;
        this.put(found, false, null, () => {
          if (atEnd && !this.stopped) this.place.scrollTop = this.place.scrollHeight;
        });
      },
      problem => this.setState({ trouble: problem.message }),
      this.props.live,
    );
    this.setState({ following: true });
  }

  async piece(from, until) {
    try {
      return await get(`${this.props.address}&from=${from}${until === undefined ? "" : `&until=${until}`}`);
    } catch (problem) {
      this.say(problem.message);
      return null;
    }
  }

  /** Show the piece before; the view stays at its line. */
  async back() {
    const until = this.begin;
    const found = await this.piece(Math.max(0, until - PIECE), until);
    if (!found || this.stopped || this.begin !== until) return;
    const height = this.place.scrollHeight;
    this.put(found, true, null, () => {
      this.place.scrollTop += this.place.scrollHeight - height;
      if (this.begin && this.place.scrollHeight === height) this.back(); // a piece without anything to show
    });
  }

  async forth() {
    const end = this.end;
    const found = await this.piece(end);
    if (!found || this.stopped || this.end !== end) return;
    if (found.next === end) this.follow();
    else this.put(found, false, null);
  }

  async find(backwards) {
    const words = this.input.current.value,
      { search } = this.props;
    if (!words) return;
    this.say("Searching…");
    let from = this.hit === null ? (backwards ? -1 : 0) : backwards ? this.hit : this.hit + 1;
    for (;;) {
      let found;
      try {
        found = await get(`${search}&q=${encodeURIComponent(words)}&from=${from}${backwards ? "&back=1" : ""}`);
      } catch (problem) {
        this.say(problem.message);
        return;
      }
      if (this.stopped || this.input.current.value !== words) return;
      if (found.found !== null) {
        await this.reveal(found, words);
        return;
      }
      if (found.next === null) break;
      from = found.next;
    }
    this.say(this.hit === null ? "Not found" : "No more");
  }

  async reveal({ found: at, line, size }, words) {
    const around = await this.piece(line);
    if (!around || this.stopped) return;
    this.hit = at;
    this.unfollow();
    this.pieces = [];
    this.put(around, false, words, () => this.toMark());
    this.say(`at ${size ? Math.floor((100 * at) / size) : 0} %`);
  }

  async *whole() {
    const { address, text } = this.props;
    for (let from = 0; ;) {
      const found = await get(`${address}&from=${from}`);
      yield text(found);
      if (found.next === from || (!found.more && found.next >= (found.size ?? found.next))) return;
      from = found.next;
    }
  }

  render({ name, nothing, box, text, Piece }, { pieces, following, told, trouble, read }) {
    const sought = event => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.find(event.shiftKey);
      }
    };
    return html`<div class="file-bar">
        <input
          type="search"
          ref=${this.input}
          placeholder="Search"
          aria-label="Search in all of it"
          onKeyDown=${sought}
          onInput=${() => {
            this.hit = null;
            this.say("");
          }}
        />
        <${Tool} label="Search back" does=${() => this.find(true)}>↑<//
        ><${Tool} label="Search on" does=${() => this.find(false)}>↓<//>
        <span class="number" role="status">${told}</span>
        ${
          pieces[0]?.found.from > 0 &&
          html`<${Tool} key="earlier" label="Earlier: show what was before" does=${() => this.back()}>Earlier<//>`
        }
        ${
          !following &&
          html`<${Tool} key="later" label="Later: show what came after" does=${() => this.forth()}>Later<//>
            <${Tool} key="latest" label="Latest: follow the end" does=${() => this.follow()}>Latest<//>`
        }
        ${
          box === "pre" &&
          html`<${Tool}
            label="Copy a link to the selected line, the found one, or the first in sight"
            does=${() => this.link()}
            >Link<//
          >`
        }
        <${Tool} label="Copy what is shown" does=${() => copy(this.pieces.map(one => text(one.found)).join(""))}
          >Copy<//
        >
        <${Tool} label="Download all of it" does=${() => download(name, this.whole())}>Download<//>
      </div>
      ${!pieces.length && (trouble ? html`<${Empty}>${trouble}<//>` : read ? html`<${Empty}>${nothing}<//>` : html`<${Skeleton} />`)}
      <${box} ref=${this.box} class=${box === "ol" ? "blocks" : null}
        >${pieces.map(one => html`<${Drawn} key=${one.key} Piece=${Piece} shown=${one.shown} />`)}<//
      >`;
  }
}

/** The first byte of the selected line, else of the marked one, else of the first in sight; null if nothing is shown. */
function lineInSight(box, place, pieces) {
  const selection = getSelection();
  const selected = selection.rangeCount > 0 && !selection.isCollapsed && box.contains(selection.anchorNode);
  const { left, top } = box.getBoundingClientRect();
  const bar = place.querySelector(".file-bar").getBoundingClientRect(); // it stays above what is shown
  const mark = box.querySelector("mark");
  const { startContainer: node, startOffset: offset } = selected
    ? selection.getRangeAt(0)
    : mark
      ? { startContainer: mark, startOffset: 0 }
      : caretAt(left + 2, Math.max(bar.bottom, top) + 2);
  if (!node || !box.contains(node)) return pieces[0]?.found.from ?? null;
  const before = document.createRange();
  before.setStart(box, 0);
  before.setEnd(node, offset);
  let lines = before.toString().split("\n").length - 1;
  for (const { found } of pieces) {
    const texts = found.text.split("\n");
    if (lines < texts.length - 1 || found === pieces.at(-1).found)
      return found.from + new TextEncoder().encode(texts.slice(0, lines).join("\n") + (lines ? "\n" : "")).length;
    lines -= texts.length - 1;
  }
  return null;
}

/** The text node, and the place in it, at a point of the window; browsers have one function or the other. */
function caretAt(x, y) {
  const caret = document.caretPositionFromPoint?.(x, y);
  if (caret) return { startContainer: caret.offsetNode, startOffset: caret.offset };
  return document.caretRangeFromPoint?.(x, y) ?? { startContainer: null, startOffset: 0 };
}

const Drawn = memo(({ Piece, shown }) => html`<${Piece} ...${shown} />`);
