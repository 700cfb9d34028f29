// The chat with the butler, and the crew that helps him. The rule of this room: the rail shows who is at work as the
// server's events say it, in their order, each long enough to be seen.

import { act, get, part, posted, replayed } from "./api.js";
import { el, panel, say, set } from "./dom.js";
import { link, tab, tell, toast } from "./notice.js";

const SEEN = 450; // milliseconds that each change of the rail stays at least
const BUTLER = "butler";
const TRIES = 6; // to go on with an answer whose connection broke
const PAUSE = 1000; // milliseconds before each

/** Build the page into `main`; its shortcuts. */
export async function begin(main) {
  const chat = new Chat(main, await get("crew"));
  link("live");
  tab("chat", 0);
  await chat.remembered();
  return [["/", "to the message", () => chat.input.focus()], ["r", "to the run", () => { location.href = "/"; }],
    ["Escape", "stops the answer", () => chat.stop()]];
}

class Chat {
  constructor(main, crew) {
    this.conversation = null;
    this.turn = null;
    this.rail = rail(crew);
    this.list = el("ol", { class: "talk", "aria-live": "polite", "aria-relevant": "additions" });
    this.input = el("textarea", { rows: "2", dataset: { testid: "chat-input" }, "aria-label": "Message to the butler",
      placeholder: "Ask the butler: what died last night? what waits for me?", onkeydown: event => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        this.send();
      } });
    this.button = el("button", { type: "submit", class: "primary", dataset: { testid: "send-button" } }, "Send");
    this.halt = el("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    const form = el("form", { class: "compose", onsubmit: event => { event.preventDefault(); this.send(); } }, this.input,
      el("div", { class: "row end" }, this.halt, this.button));
    const { section, body } = panel("talk", "Butler", el("button", { type: "button", class: "quiet", onclick: () => this.anew() }, "New conversation"));
    this.hello = el("p", { class: "empty" }, "The butler knows the runs of this home. He asks the crew where somebody else knows more.");
    this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Conversation" }, this.hello, this.list);
    body.append(this.scroll, form);
    main.className = "chat-page";
    main.append(this.rail.section, section);
    this.input.focus();
  }

  anew() {
    this.stop();
    this.conversation = null;
    history.replaceState(null, "", "/chat");
    this.list.replaceChildren();
    this.hello.hidden = false;
    this.rail.rest();
    this.input.focus();
  }

  /** A conversation that the address names is shown again. */
  async remembered() {
    const id = new URLSearchParams(location.search).get("conversation");
    if (!id) return;
    try {
      const { messages } = await get(`conversations/${part(id)}`);
      this.conversation = id;
      for (const message of messages) this.bubble(message.role === "user" ? "you" : message.agent ?? BUTLER, message.content ?? message.text);
    } catch (problem) {
      toast(problem.message, true);
    }
  }

  bubble(who, text) {
    this.hello.hidden = true;
    const words = el("p", { class: "words" }, text ?? "");
    const made = el("li", { class: `bubble ${who === "you" ? "you" : who === BUTLER ? "butler" : "crew"}` }, el("p", { class: "kind" }, who === "you" ? "You" : who), words);
    this.list.append(made);
    this.end();
    return { made, words };
  }

  end() { this.scroll.scrollTop = this.scroll.scrollHeight; }

  async send() {
    const message = this.input.value.trim();
    if (!message || this.turn) return;
    this.turn = new AbortController();
    this.busy(true);
    this.bubble("you", message);
    this.input.value = "";
    const turn = new Turn(this);
    try {
      const asked = { message, ...(this.conversation ? { conversation: this.conversation } : {}) };
      for await (const event of this.answer(asked, this.turn.signal)) await turn.heard(event);
      await turn.ended();
    } catch (problem) {
      if (problem.name === "AbortError") turn.bad("Stopped.");
      else turn.bad(problem.message);
      this.rail.rest();
    } finally {
      this.turn = null;
      this.busy(false);
    }
  }

  /** The events of an answer; where the connection breaks, those that are missing are asked for. */
  async *answer(asked, signal) {
    let source = posted("chat", asked, signal), last = "";
    for (let tries = 0; tries < TRIES; tries += 1) {
      try {
        for await (const [id, event] of source) {
          last = id || last;
          yield event;
          if (event.type === "done" || event.type === "error") return;
        }
      } catch (problem) {
        if (signal.aborted || !last) throw problem;
      }
      if (!last || !this.conversation) return;
      await new Promise(resolve => setTimeout(resolve, PAUSE));
      source = replayed(`chat/${part(this.conversation)}/events`, last, signal);
    }
  }

  stop() {
    if (!this.turn) return;
    this.turn.abort();
    if (this.conversation) act(`chat/${part(this.conversation)}/cancel`, {}).catch(problem => toast(problem.message, true));
  }

  busy(on) {
    this.button.disabled = on;
    this.halt.hidden = !on;
    set(this.list, "aria-busy", String(on));
  }

  talkedIn(conversation) {
    if (!conversation || conversation === this.conversation) return;
    this.conversation = conversation;
    history.replaceState(null, "", `/chat?conversation=${part(conversation)}`);
  }
}

/** One answer: its events become bubbles and changes of the rail. */
class Turn {
  constructor(chat) {
    this.chat = chat;
    this.open = new Map();
    this.last = null;
    this.done = false;
  }

  async heard(event) {
    const { chat } = this;
    chat.talkedIn(event.conversation);
    if (event.type === "text") this.said(event.agent ?? BUTLER, event.content ?? "");
    else if (event.type === "error") this.bad(event.message ?? event.content ?? "Something went wrong.");
    else if (event.type === "done") this.done = true;
    else await chat.rail.moved(event);
    if (event.type === "agent_complete") this.open.delete(event.agent);
  }

  said(who, text) {
    if (!this.open.has(who)) this.open.set(who, this.chat.bubble(who, ""));
    const bubble = this.open.get(who);
    bubble.words.append(text);
    this.last = bubble;
    this.chat.end();
  }

  async ended() {
    await this.chat.rail.seen();
    this.chat.rail.rest();
    const last = this.last ?? this.chat.bubble(BUTLER, "");
    if (!this.done) this.bad("The answer broke off.");
    set(last.made, "data-testid", "message-complete");
    tell("The butler has answered.");
  }

  bad(text) {
    this.chat.bubble(BUTLER, text).made.classList.add("bad");
  }
}

/** The rail: who of the crew is at work. */
function rail(crew) {
  const { section, body } = panel("rail", "Crew");
  const list = el("ul", { class: "agents", dataset: { testid: "agent-rail" } });
  const members = new Map();
  body.append(list);
  const working = new Set();
  let changed = 0, doing = "at work";

  function member(name, about) {
    const doing = el("p", { class: "doing" }, about ?? "");
    const made = el("li", { class: "agent", dataset: { testid: `agent-${name}`, agent: name } },
      el("span", { class: "sign", "aria-hidden": "true" }, "○"), el("div", { class: "who" }, el("span", { class: "name" }, name.replaceAll("_", " ")),
        el("span", { class: "kind" })), doing);
    members.set(name, made);
    list.append(made);
  }

  function paint() {
    for (const [name, made] of members) {
      const active = working.has(name);
      set(made, "class", `agent${active ? " active s-working" : ""}`);
      say(made.querySelector(".sign"), active ? "◐" : "○");
      say(made.querySelector(".kind"), active ? doing : "");
    }
    changed = performance.now();
  }

  const seen = () => new Promise(resolve => setTimeout(resolve, Math.max(0, changed + SEEN - performance.now())));

  async function moved(event) {
    await seen();
    doing = "at work";
    const name = event.agent ?? event.to;
    if (name && !members.has(name)) member(name);
    if (event.type === "agent_start" || event.type === "agent_resume") { working.clear(); working.add(name); }
    if (event.type === "agent_delegate") { working.delete(event.from ?? BUTLER); working.add(name); }
    if (event.type === "agent_complete" && name !== BUTLER) working.delete(name);
    if (!working.size) working.add(BUTLER);
    paint();
  }

  /** Nobody works; the butler listens. */
  function rest() {
    working.clear();
    working.add(BUTLER);
    doing = "listens";
    paint();
  }

  for (const one of crew) member(one.agent, one.what ?? one.title);
  return { section, moved, seen, rest };
}
