// Page of the chat with the butler and its crew. The server answers a message whether or not this page is open; a page that
// opens a conversation shows all of it, with the answer in progress.

import { addressWith, inAddress } from "./address.js";
import { act, get, part, posted, replayed } from "./api.js";
import { BUTLER, ChatRail } from "./chat_rail.js";
import { HistoryPager } from "./history_pager.js";
import { Markdown } from "./markdown.js";
import { Turn } from "./chat_turn.js";
import { link, skipTo, tab, toast } from "./notice.js";
import { Component, createRef, html, memo, Panel, render, Skeleton } from "./view.js";
import { clock, count, zone } from "./words.js";

const TRIES = 6; // to continue an answer whose connection broke
const PAUSE = 1000; // milliseconds before each
const YOU = "you";
const TITLE = 60; // characters of a conversation's first message

/** Build the page into `main`; its shortcuts. */
/** @returns {Promise<Array<[string, string, () => void]>>} the shortcuts */
export async function begin(main) {
  const chat = createRef();
  main.className = "chat-page";
  skipTo("#talk-title", "Skip to the conversation");
  const named = inAddress("conversation");
  const place = { run: inAddress("run") ?? "", node: inAddress("node") ?? "" }; // from where it was opened
  const draw = props => render(html`<${Chat} handle=${chat} ...${props} />`, main);
  draw({ crew: null, kept: null, conversation: named, place });
  const [crew, kept] = await Promise.all([get("crew"), get("conversations")]);
  draw({ crew, kept, conversation: named ?? kept[0]?.id ?? "default", place });
  link("live");
  tab("chat", 0);
  await chat.current.remember();
  return [
    ["/", "go to the message", () => chat.current.input.current.focus()],
    [
      "r",
      "go to the run",
      () => {
        location.href = place.run ? `/?run=${part(place.run)}` : "/";
      },
    ],
    ["Escape", "stop the answer", () => chat.current.stop()],
  ];
}

/** An entry of the conversation's file as a bubble. */
const bubbleOf = ({ id, role, content, note, delegations, at, about }) => ({
  id,
  at,
  about,
  who: role === "user" ? YOU : BUTLER,
  text: content || note,
  asked: (delegations ?? []).map(one => `${one.agent.replaceAll("_", " ")}${one.success === false ? " (failed)" : ""}`),
});

/** An entry as text, for copies. */
const entryText = ({ role, content, note, at }) =>
  `## ${role === "user" ? "You" : "Butler"}, ${at}\n\n${content || note}\n`;

const go = conversation => {
  location.href = addressWith({ conversation });
};

/** The kept conversations, including the open one. */
const withOpen = (kept, open) => (kept.some(one => one.id === open) ? kept : [{ id: open, first: "" }, ...kept]);

/** A run and node in words; "" for none. */
const placeWords = ({ run, node }) => (run ? `run ${run}${node ? `, node ${node}` : ""}` : "");

/** From where the chat was opened, with the way back. */
const From = ({ place }) =>
  place.run &&
  html`<p class="from">
    About${" "}
    <a href="/?${new URLSearchParams(place.node ? { ...place } : { run: place.run })}">${placeWords(place)}</a>
    <a class="kind" href=${addressWith({ run: null, node: null })}>about all runs instead</a>
  </p>`;

/** The line above the bubbles: there are none, or there are earlier ones. */
function Above({ shown, sought, earlier }) {
  if (!shown) return html`<${Skeleton} />`;
  if (!shown.length) {
    const none = sought ? "Nothing matches." : "The butler knows the runs of this home, and delegates to the crew.";
    return html`<p class="empty">${none}</p>`;
  }
  if (sought || earlier <= 0) return null;
  const them = earlier === 1 ? "it" : "them";
  return html`<p class="empty">${count(earlier, "earlier message")}: “Older” shows ${them}.</p>`;
}

/**
 * The conversation and its crew.
 *
 * A bubble is {who, text, at, asked, bad, complete}; bubbles are only added, and the texts of the current answer's
 * grow. Earlier messages are shown in pages; sending returns to the end.
 * @param {Object} props
 * @param {Array<Object>|null} props.crew null: not known yet
 * @param {Array<Object>|null} props.kept the conversations of this home
 * @param {string|null} props.conversation
 * @param {{run: string, node: string}} props.place the page from which it was opened
 * @param {{current: Chat}} props.handle gets the conversation
 */
class Chat extends Component {
  constructor(props) {
    super(props);
    // no bubbles: not known yet; `page`: of what was said before, null at the end; `pager`: number of the present pager
    this.state = { bubbles: null, earlier: 0, busy: false, proposals: [], page: null, pager: 0 };
    this.turn = null;
    props.handle.current = this;
    this.say = this.say.bind(this);
    this.read = query =>
      get(
        `conversations/${this.path}?${new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined))}`,
      );
    this.rail = createRef();
    this.input = createRef();
    this.scroll = createRef();
  }

  componentDidMount() {
    this.input.current.focus();
  }

  componentDidUpdate(_, { bubbles, proposals, page }) {
    if (this.state.page) {
      if (page !== this.state.page) this.scroll.current.scrollTop = 0;
    } else if (page || bubbles !== this.state.bubbles || proposals !== this.state.proposals)
      this.scroll.current.scrollTop = this.scroll.current.scrollHeight;
  }

  get path() {
    return part(this.props.conversation);
  }

  /** Show the conversation so far, and the answer in progress. */
  async remember() {
    const { entries, position, busy, after } = await get(`conversations/${this.path}`);
    this.setState({
      bubbles: entries.map(bubbleOf),
      earlier: position,
      proposals: busy ? [] : (entries.at(-1)?.proposals ?? []),
    });
    if (busy) this.follow(signal => replayed(`chat/${this.path}/events`, after, signal), after);
  }

  /** Change the bubbles by a function of them. */
  change(by) {
    this.setState(({ bubbles }) => ({ bubbles: by(bubbles ?? []) }));
  }

  send() {
    const { current: input } = this.input;
    const message = input.value.trim();
    if (!message || this.turn || !this.state.bubbles) return;
    input.value = "";
    this.say(message);
  }

  /** Send a message; with `proposals` it answers these, and the server refuses it if they have changed. */
  say(message, proposals) {
    if (this.turn) return;
    // any message removes the buttons and returns to the end
    this.setState(({ pager }) => ({ proposals: [], page: null, pager: pager + 1 }));
    const { conversation, place } = this.props;
    this.change(bubbles => [
      ...bubbles,
      { who: YOU, text: message, at: new Date().toISOString(), about: placeWords(place) },
    ]);
    this.follow(signal => posted("chat", { message, conversation, proposals, ...place }, signal), "");
  }

  /** Show an answer as it arrives. `begin` opens its events; `last` is the id of the last event seen. */
  async follow(begin, last) {
    this.turn = new AbortController();
    this.setState({ busy: true });
    const turn = new Turn(this, this.rail.current);
    try {
      for await (const event of this.answer(begin, last, this.turn.signal)) turn.handle(event);
      await turn.ended();
    } catch (problem) {
      turn.bad(problem.message);
      this.rail.current.rest();
    } finally {
      this.turn = null;
      this.setState({ busy: false });
    }
  }

  /** Yield the events of an answer; after a broken connection, those that were missed. */
  async *answer(begin, last, signal) {
    let source = begin(signal);
    for (let tries = 0; tries < TRIES; tries += 1) {
      try {
        for await (const [id, event] of source) {
          last = id || last;
          if (!event.type) throw new Error("The server was restarted; reopen the conversation to see the answer.");
          yield event;
          if (event.type === "done") return;
        }
      } catch (problem) {
        if (!last || !problem.broken) throw problem;
      }
      await new Promise(resolve => setTimeout(resolve, PAUSE));
      source = replayed(`chat/${this.path}/events`, last, signal);
    }
  }

  /** Ask the server to cancel the answer; its events report the end. */
  stop() {
    if (this.turn) act(`chat/${this.path}/cancel`, {}).catch(problem => toast(problem.message, true));
  }

  render({ crew, kept, conversation, place }, { bubbles, earlier, busy, proposals, page, pager }) {
    const shown = page ? page.entries.map(bubbleOf) : bubbles;
    const choice = !page && proposals.length ? proposals : null;
    const above =
      bubbles &&
      html`<${HistoryPager}
        key=${pager}
        live=${true}
        what="this conversation"
        read=${this.read}
        line=${entryText}
        show=${page => this.setState({ page })}
        search=${() => {}}
        name="chat-${conversation}.md"
        ><span class="zone">Times: ${zone()}</span><//
      >`;
    const known = withOpen(kept ?? [], conversation ?? "");
    const pressed = event => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    };
    const beside = html`<select aria-label="Conversation" onChange=${event => go(event.currentTarget.value)}>
        ${known.map(
          one =>
            html`<option key=${one.id} value=${one.id} selected=${one.id === conversation}>
              ${one.first?.slice(0, TITLE) || one.id}
            </option>`,
        )}
      </select>
      <button type="button" class="quiet" onClick=${() => go(`talk-${Date.now()}`)}>New conversation</button>`;
    return html`<${ChatRail} handle=${this.rail} crew=${crew} />
      <${Panel} id="talk" title="Butler" beside=${beside} above=${above}>
        <div class="scroll" tabindex="0" role="region" aria-label="Conversation" ref=${this.scroll}>
          <${Above} shown=${shown} sought=${Boolean(page)} earlier=${earlier} />
          <ol class="talk" aria-live="polite" aria-relevant="additions" aria-busy=${String(busy)}>
            ${shown?.map(
              (one, at) =>
                html`<${Bubble}
                  key=${page ? one.id : at}
                  ...${one}
                  choice=${at === shown.length - 1 ? choice : null}
                  say=${this.say}
                />`,
            )}
          </ol>
        </div>
        <form
          class="compose"
          onSubmit=${event => {
            event.preventDefault();
            this.send();
          }}
        >
          <${From} place=${place} />
          <textarea
            rows="2"
            ref=${this.input}
            data-testid="chat-input"
            aria-label="Message to the butler"
            placeholder="What died last night? What is waiting for me?"
            onKeyDown=${pressed}
          />
          <div class="row end">
            <button type="button" hidden=${!busy} onClick=${() => this.stop()}>Stop</button>
            <button type="submit" class="primary" data-testid="send-button" disabled=${busy || !bubbles}>Send</button>
          </div>
        </form><//
      >`;
  }
}

/** A message; `choice`: proposed commands, with the buttons that answer them. */
const Bubble = memo(
  ({ who, text, at, about, asked = [], bad, complete, choice, say }) =>
    html` <li
      class="bubble ${who === YOU ? "you" : who === BUTLER ? "butler" : "crew"}${bad ? " bad" : ""}"
      data-testid=${complete ? "message-complete" : null}
    >
      <p class="kind">
        ${who === YOU ? "You" : who.replaceAll("_", " ")}${at && html` <time datetime=${at}>${clock(at)}</time>`}${about && ` · ${about}`}
      </p>
      ${who === YOU ? html`<p class="words">${text}</p>` : html`<${Markdown} text=${text} />`}
      ${asked.length > 0 && html`<p class="kind">asked: ${asked.join(", ")}</p>`}
      ${
        choice &&
        html`<div class="row end" data-testid="proposal">
          <button type="button" onClick=${() => say("no", choice)}>No, change nothing</button>
          <button type="button" class="danger" onClick=${() => say("yes", choice)}>Yes, run it</button>
        </div>`
      }
    </li>`,
);
