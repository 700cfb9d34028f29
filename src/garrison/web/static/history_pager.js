// Pages of a list of the past: from the latest to the oldest and back, a search in all of it, copied or downloaded. While
// no page is chosen the list is live.

import { Tool } from "./controls.js";
import { copy, download } from "./text_tools.js";
import { Component, createRef, html } from "./view.js";

const SETTLE = 300; // milliseconds between the last key and the search
const GROWN = 1000; // milliseconds between two readings of a list that has no live form
const PAGE = 100;
const DOWNLOADED = 500; // entries of a request for a download

/**
 * The controls. Another list is another pager, by its `key`.
 * @param {Object} props
 * @param {boolean} props.live whether the list has a live form; one without starts with its latest page
 * @param {*} props.version changes when something happened in the run
 * @param {(a: Object) => Promise<Object>} props.read requests a page: {before, after, limit, q}
 * @param {(a: Object|null) => void} props.show called with the page to show; null: the list is live
 * @param {(a: boolean) => void} props.search called with whether a search is active
 * @param {string} props.name of a downloaded file
 * @param {string} [props.what] what the list is, for the name of its search
 * @param {(a: Object) => string} props.line an entry as text
 */
export class HistoryPager extends Component {
  constructor(props) {
    super(props);
    this.state = { page: null, trouble: "" };
    this.input = createRef();
    this.asked = 0;
  }

  componentDidMount() {
    if (!this.props.live) this.turn({});
  }

  componentDidUpdate(before) {
    if (before.version !== this.props.version) this.grown();
  }

  componentWillUnmount() {
    this.asked = -1;
    clearTimeout(this.soon);
    clearTimeout(this.stale);
  }

  get words() {
    return this.input.current?.value.trim() ?? "";
  }
  ask(wanted) {
    return this.props.read({ limit: PAGE, q: this.words, ...wanted });
  }

  /** Show another page, or the live list (null). */
  async turn(wanted) {
    const mine = ++this.asked;
    const take = page => {
      this.setState({ page, trouble: "" });
      this.props.search(this.words !== "");
      this.props.show(page);
    };
    if (wanted === null) return take(null);
    try {
      if (wanted.before === "") wanted = { before: (await this.ask({})).older ?? undefined }; // from the live list
      const page = await this.ask(wanted);
      if (mine === this.asked) take(page);
    } catch (problem) {
      if (mine === this.asked) this.setState({ trouble: problem.message });
    }
  }

  /** The latest page, or the live list. */
  latest() {
    return this.turn(this.words || !this.props.live ? {} : null);
  }

  sought() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.latest(), SETTLE);
  }

  /** Something happened: a list without a live form is read again, if its latest page is shown. */
  grown() {
    const atEnd = () => !this.props.live && !this.words && this.state.page?.newer === null;
    if (!atEnd() || this.stale) return;
    this.stale = setTimeout(() => {
      this.stale = null;
      if (atEnd()) this.turn({});
    }, GROWN);
  }

  async *all() {
    for (let after = ""; after !== null;) {
      const found = await this.ask({ after, limit: DOWNLOADED });
      yield found.entries.map(each => `${this.props.line(each)}\n`).join("");
      after = found.newer;
    }
  }

  render({ name, line, what = "what happened", children }, { page, trouble }) {
    const told = !page
      ? "live"
      : page.total
        ? `${page.position + 1}–${page.position + page.entries.length} of ${page.total}`
        : "none";
    const none = way => page !== null && page[way] === null;
    return html`<div class="pager" role="search" aria-label=${what}>
      <input
        type="search"
        ref=${this.input}
        placeholder="Search all of it"
        aria-label="Search in ${what}"
        onInput=${() => this.sought()}
      />
      <span class="number" role="status">${trouble || told}</span>
      <span class="ways"
        ><${Tool} label="Oldest" disabled=${none("older")} does=${() => this.turn({ after: "" })}>⇤<//>
        <${Tool} label="Older" disabled=${none("older")} does=${() => this.turn({ before: page?.older ?? "" })}
          >‹ Older<//
        >
        <${Tool} label="Newer" disabled=${!page || none("newer")} does=${() => this.turn({ after: page?.newer ?? "" })}
          >Newer ›<//
        >
        <${Tool} label="Latest" disabled=${!page} does=${() => this.latest()}>⇥ Latest<//></span
      >
      <${Tool}
        label="Copy this page"
        does=${async () => copy((page ?? (await this.ask({})))?.entries.map(line).join("\n") ?? "")}
        >Copy<//
      >
      <${Tool} label="Download all of it" does=${() => download(name, this.all())}>Download<//>${children}
    </div>`;
  }
}
