// An answer of the butler and its crew while it arrives.

import { BUTLER } from "./chat_rail.js";
import { announce } from "./notice.js";

/** One answer: its events become bubbles and changes of the rail. */
export class Turn {
  constructor(chat, rail) {
    this.chat = chat;
    this.rail = rail;
    this.before = null; // bubbles that are not of this answer
    this.said = []; // its bubbles
    this.open = new Map(); // speaker → its bubble
    this.drawing = 0;
    this.done = false;
    this.proposals = [];
  }

  handle(event) {
    if (event.type === "text") this.add(event.agent ?? BUTLER, event.content ?? "");
    else if (event.type === "error") this.bad(event.message ?? "Something went wrong.");
    else if (event.type === "done") this.done = true;
    else this.rail.moved(event);
    if (event.proposals) this.proposals = event.proposals;
    if (event.type === "agent_complete") this.open.delete(event.agent);
  }

  add(who, text) {
    if (!this.open.has(who)) this.begin(who);
    const one = this.open.get(who);
    one.text += text;
    if (!this.drawing) this.drawing = requestAnimationFrame(() => this.draw());
  }

  begin(who) {
    this.said.push({ who, text: "" });
    this.open.set(who, this.said.at(-1));
  }

  /** Draw the text that arrived since the last frame. */
  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    this.before ??= this.chat.state.bubbles ?? [];
    this.chat.change(() => [...this.before, ...this.said.map(one => ({ ...one }))]);
  }

  async ended() {
    this.draw();
    await this.rail.seen();
    this.rail.rest();
    if (!this.done) return this.bad("The answer was interrupted.");
    if (!this.said.length) this.begin(BUTLER);
    this.said.at(-1).complete = true;
    this.draw();
    this.chat.setState({ proposals: this.proposals });
    announce(this.proposals.length ? "The butler asks for your approval." : "The butler has answered.");
  }

  bad(text) {
    this.said.push({ who: BUTLER, text, bad: true });
    this.draw();
  }
}
