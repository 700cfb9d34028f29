// Page of the chat with the butler and its crew. The server answers a message whether or not this page is open; a page that
// opens a conversation shows all of it, with the answer that is under way.

import { act, get, part, posted, replayed } from "./api.js";
import { BUTLER, chatRail } from "./chat_rail.js";
import { el, panel, say, set } from "./dom.js";
import { markdownView } from "./markdown.js";
import { announce, link, tab, toast } from "./notice.js";

const TRIES = 6; // to continue an answer whose connection broke
const PAUSE = 1000; // milliseconds before each

/** Build the page into `main`; its shortcuts. */
export async function begin(main) {
  const [crew, kept] = await Promise.all([get("crew"), get("conversations")]);
  const named = new URLSearchParams(location.search).get("conversation");
  const chat = new Chat(main, crew, kept, named ?? kept[0]?.id ?? "default");
  link("live");
  tab("chat", 0);
  await chat.remember();
  return [["/", "go to the message", () => chat.input.focus()], ["r", "go to the run", () => { location.href = "/"; }],
    ["Escape", "stop the answer", () => chat.stop()]];
}

class Chat {
  constructor(main, crew, kept, conversation) {
    this.conversation = conversation;
    this.turn = null;
    this.choice = null; // the buttons that answer what the butler proposes
    this.rail = chatRail(crew);
    this.list = el("ol", { class: "talk", "aria-live": "polite", "aria-relevant": "additions" });
    this.input = el("textarea", { rows: "2", dataset: { testid: "chat-input" }, "aria-label": "Message to the butler",
      placeholder: "What died last night? What is waiting for me?", onkeydown: event => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        this.send();
      } });
    this.button = el("button", { type: "submit", class: "primary", dataset: { testid: "send-button" } }, "Send");
    this.halt = el("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    const form = el("form", { class: "compose", onsubmit: event => { event.preventDefault(); this.send(); } }, this.input,
      el("div", { class: "row end" }, this.halt, this.button));
    const known = kept.some(one => one.id === conversation) ? kept : [{ id: conversation, first: "" }, ...kept];
    const picker = el("select", { "aria-label": "Conversation", onchange: () => this.go(picker.value) },
      known.map(one => el("option", { value: one.id, selected: one.id === conversation }, one.first?.slice(0, 60) || one.id)));
    const { section, body } = panel("talk", "Butler", picker,
      el("button", { type: "button", class: "quiet", onclick: () => this.go(`talk-${Date.now()}`) }, "New conversation"));
    this.hello = el("p", { class: "empty" }, "The butler knows the runs of this home, and delegates to the crew.");
    this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Conversation" }, this.hello, this.list);
    body.append(this.scroll, form);
    main.className = "chat-page";
    main.append(this.rail.section, section);
    const skip = document.querySelector(".skip");
    say(skip, "Skip to the conversation");
    set(skip, "href", "#talk-title");
    this.input.focus();
  }

  go(conversation) { location.href = `/chat?conversation=${part(conversation)}`; }

  /** Show the conversation so far, and the answer that is under way. */
  async remember() {
    const { entries, busy, after } = await get(`conversations/${part(this.conversation)}`);
    this.list.replaceChildren();
    let last = null;
    for (const entry of entries) {
      const { made } = last = this.bubble(entry.role === "user" ? "you" : BUTLER, entry.content);
      const asked = (entry.delegations ?? []).map(one => `${one.agent.replaceAll("_", " ")}${one.success === false ? " (failed)" : ""}`);
      if (asked.length) made.append(el("p", { class: "kind" }, `asked: ${asked.join(", ")}`));
    }
    const proposals = entries.at(-1)?.proposals ?? [];
    if (!busy && proposals.length) this.offer(last.made, proposals);
    if (busy) this.follow(signal => replayed(`chat/${part(this.conversation)}/events`, after, signal), after);
  }

  bubble(who, text) {
    this.hello.hidden = true;
    const shown = who === "you" ? null : markdownView();
    const words = shown?.view ?? el("p", { class: "words" }, text ?? "");
    shown?.show(text ?? "");
    const made = el("li", { class: `bubble ${who === "you" ? "you" : who === BUTLER ? "butler" : "crew"}` },
      el("p", { class: "kind" }, who === "you" ? "You" : who.replaceAll("_", " ")), words);
    this.list.append(made);
    this.end();
    return { made, show: shown?.show };
  }

  /** Offer the answers to proposed commands as buttons; whatever is sent next takes them away. */
  offer(made, proposals) {
    const answer = (label, message, kind) =>
      el("button", { type: "button", class: kind, onclick: () => this.say(message, proposals) }, label);
    this.withdraw();
    this.choice = el("div", { class: "row end", dataset: { testid: "proposal" } },
      answer("No, change nothing", "no", ""), answer("Yes, run it", "yes", "danger"));
    made.append(this.choice);
    this.end();
  }

  withdraw() {
    this.choice?.remove();
    this.choice = null;
  }

  end() { this.scroll.scrollTop = this.scroll.scrollHeight; }

  send() {
    const message = this.input.value.trim();
    if (!message || this.turn) return;
    this.input.value = "";
    this.say(message);
  }

  /** Send a message; with `proposals` it answers these, and the server refuses it if others wait by now. */
  say(message, proposals) {
    if (this.turn) return;
    this.withdraw();
    this.bubble("you", message);
    this.follow(signal => posted("chat", { message, conversation: this.conversation, proposals }, signal), "");
  }

  /** Show an answer as it arrives. `begin` opens its events; `last` is the id of the last event seen. */
  async follow(begin, last) {
    this.turn = new AbortController();
    this.busy(true);
    const turn = new Turn(this);
    try {
      for await (const event of this.answer(begin, last, this.turn.signal)) turn.handle(event);
      await turn.ended();
    } catch (problem) {
      turn.bad(problem.message);
      this.rail.rest();
    } finally {
      this.turn = null;
      this.busy(false);
    }
  }

  /** Yield the events of an answer; after a broken connection, those that were missed. */
  async *answer(begin, last, signal) {
    let source = begin(signal);
    for (let tries = 0; tries < TRIES; tries += 1) {
      try {
        for await (const [id, event] of source) {
          last = id || last;
          if (!event.type) throw new Error("The server was restarted; open the conversation again to see what was said.");
          yield event;
          if (event.type === "done") return;
        }
      } catch (problem) {
        if (!last || !problem.broken) throw problem;
      }
      await new Promise(resolve => setTimeout(resolve, PAUSE));
      source = replayed(`chat/${part(this.conversation)}/events`, last, signal);
    }
  }

  /** Ask the server to cancel the answer; its events say how it ends. */
  stop() {
    if (this.turn) act(`chat/${part(this.conversation)}/cancel`, {}).catch(problem => toast(problem.message, true));
  }

  busy(on) {
    this.button.disabled = on;
    this.halt.hidden = !on;
    set(this.list, "aria-busy", String(on));
  }
}

/** One answer: its events become bubbles and changes of the rail. */
class Turn {
  constructor(chat) {
    this.chat = chat;
    this.open = new Map();
    this.bubbles = [];
    this.drawing = 0;
    this.last = null;
    this.done = false;
    this.proposals = [];
  }

  handle(event) {
    const { chat } = this;
    if (event.type === "text") this.said(event.agent ?? BUTLER, event.content ?? "");
    else if (event.type === "error") this.bad(event.message ?? "Something went wrong.");
    else if (event.type === "done") this.done = true;
    else chat.rail.moved(event);
    if (event.proposals) this.proposals = event.proposals;
    if (event.type === "agent_complete") this.open.delete(event.agent);
  }

  said(who, text) {
    if (!this.open.has(who)) {
      this.open.set(who, this.chat.bubble(who, ""));
      this.bubbles.push(this.open.get(who));
    }
    this.last = this.open.get(who);
    this.last.text = (this.last.text ?? "") + text;
    if (!this.drawing) this.drawing = requestAnimationFrame(() => this.draw());
  }

  /** Draw what was said since the last frame. */
  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    for (const one of this.bubbles) {
      if (one.text !== undefined && one.text !== one.drawn) one.show(one.drawn = one.text);
    }
    this.chat.end();
  }

  async ended() {
    this.draw();
    await this.chat.rail.seen();
    this.chat.rail.rest();
    if (!this.done) return this.bad("The answer was interrupted.");
    set((this.last ?? this.chat.bubble(BUTLER, "")).made, "data-testid", "message-complete");
    if (this.proposals.length) this.chat.offer(this.last.made, this.proposals);
    announce(this.proposals.length ? "The butler asks for your word." : "The butler has answered.");
  }

  bad(text) {
    this.draw();
    this.last = this.chat.bubble(BUTLER, text);
    this.last.made.classList.add("bad");
  }
}
