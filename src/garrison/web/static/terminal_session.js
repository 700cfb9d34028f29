// One terminal of an agent: its stream is drawn piece by piece, typed text is sent in order, one request at a time.

import { act, part, streamed } from "./api.js";
import { openScreen } from "./terminal_screen.js";

const PIECE = 2000; // characters of one request
const PASTED = /^\x1b\[200~([^]*)\x1b\[201~$/; // eslint-disable-line no-control-regex

/** Split typed text into pieces that fit a request; each piece of a paste is a paste. Pure. */
export function piecesOf(text) {
  const pasted = PASTED.exec(text);
  const letters = [...(pasted ? pasted[1] : text)];
  const pieces = [];
  for (let at = 0; at < letters.length; at += PIECE / 2) pieces.push(letters.slice(at, at + PIECE / 2).join(""));
  return pasted ? pieces.map(piece => `\x1b[200~${piece}\x1b[201~`) : pieces;
}

/**
 * A terminal in `place`. `tell` is called with what has changed: { title, readOnly, opened, held, ended }.
 */
export function terminalSession(place, run, node, tell) {
  const stop = new AbortController();
  let screen = null,
    id = "",
    held = false,
    queue = [],
    sending = false,
    watched = null,
    room = "";

  async function begin() {
    try {
      for await (const { name, data } of streamed(`runs/${part(run)}/nodes/${part(node)}/terminal`, stop.signal)) {
        if (name === "ready") await open(data);
        else if (name === "screen") await screen.draw(data);
        else if (name === "size") screen.resize(data);
        else if (name === "end") return finish(data.why);
        if (stop.signal.aborted) return;
      }
      finish("the connection was lost; the agent continues");
    } catch (problem) {
      if (problem.name !== "AbortError") finish(problem.message);
    }
  }

  async function open({ terminal, title, read_only: readOnly, columns, rows }) {
    id = terminal;
    screen = await openScreen(place, { columns, rows }, type, () => release(true));
    if (stop.signal.aborted) return close();
    watched = new ResizeObserver(() => {
      if (held) fill();
      else screen.scale();
    });
    watched.observe(place);
    tell({ title, readOnly, opened: true });
  }

  function finish(why) {
    hold(false);
    tell({ ended: why });
  }

  function hold(on) {
    held = on;
    queue = [];
    screen?.hold(on);
    tell({ held: on });
  }

  const keyboard = data => act(`terminals/${part(id)}/keyboard`, data);

  /** Ask for the keyboard; the window of the agent gets the size of this screen. */
  async function take() {
    screen.hold(true); // letters of the usual size: they say how many there is room for
    const wanted = screen.room();
    try {
      await keyboard({ hold: true, ...wanted });
    } catch (problem) {
      screen.hold(false);
      throw problem;
    }
    room = JSON.stringify(wanted);
    hold(true);
  }

  /** Fill the place, whose size has changed. */
  function fill() {
    const wanted = screen.room();
    if (JSON.stringify(wanted) === room) return;
    room = JSON.stringify(wanted);
    keyboard({ hold: true, ...wanted }).catch(lost);
  }

  async function release(byKeyboard = false) {
    hold(false);
    tell({ left: byKeyboard });
    await keyboard({ hold: false }).catch(() => {});
  }

  function type(text) {
    queue.push(...piecesOf(text));
    if (!sending) send();
  }

  async function send() {
    sending = true;
    try {
      while (held && queue.length) {
        const pasted = queue[0].startsWith("\x1b[200~");
        let text = queue.shift();
        while (!pasted && queue.length && !queue[0].startsWith("\x1b[200~") && text.length + queue[0].length <= PIECE)
          text += queue.shift();
        await act(`terminals/${part(id)}/keys`, { text });
      }
    } catch (problem) {
      lost(problem);
    }
    sending = false;
  }

  function lost(problem) {
    hold(false);
    tell({ problem: problem.message });
  }

  function close() {
    watched?.disconnect();
    screen?.close();
    screen = null;
  }

  begin();
  return {
    take,
    release,
    stop() {
      stop.abort();
      held = false;
      close();
    },
  };
}
