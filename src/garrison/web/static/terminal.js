// Panel of an agent's terminal: the live screen, read-only until the user asks for the keyboard. While they have
// it, a mark shows that, and a key leaves the terminal.

import { ask } from "./ask.js";
import { Act } from "./controls.js";
import { announce, toast } from "./notice.js";
import { terminalSession } from "./terminal_session.js";
import { html, useEffect, useRef, useState } from "./view.js";

const LEAVE = "Ctrl+Shift+L";

/** The terminal of a node's agent; it ends when it is no longer shown. */
export function TerminalView({ run, node, write }) {
  const [again, reopen] = useState(0);
  return html`<${OneTerminal} key=${again} run=${run} node=${node} write=${write} reopen=${() => reopen(again + 1)} />`;
}

function OneTerminal({ run, node, write, reopen }) {
  const place = useRef(null),
    button = useRef(null),
    session = useRef(null);
  const [now, change] = useState({ title: "", readOnly: "", opened: false, held: false, ended: "" });
  useEffect(() => {
    session.current = terminalSession(place.current, run, node, told => {
      if (told.problem) toast(told.problem, true);
      if (told.left) setTimeout(() => button.current?.focus());
      change(before => ({ ...before, ...told }));
    });
    return () => session.current.stop();
  }, []);

  async function take() {
    const agreed = await ask({
      title: `Type to the agent of ${node}?`,
      yes: "Type to the agent",
      lines: [
        "Every key you press in the terminal goes to the agent's program, until you stop. The run's journal records it.",
        `Until then its window has the size of this screen. ${LEAVE} leaves the terminal.`,
      ],
    });
    if (!agreed) return;
    try {
      await session.current.take();
      announce(`Your keys go to the agent. ${LEAVE} leaves the terminal.`);
    } catch (problem) {
      toast(problem.message, true);
    }
  }

  const controls = now.held
    ? html`<p class="typing-mark">
          <strong>Your keys go to the agent.</strong> <kbd>${LEAVE}</kbd> leaves the terminal.
        </p>
        <${Act} does=${() => session.current.release()}>Stop typing<//>`
    : html`<p class="empty">
          ${now.opened ? `${now.title}, read-only. What has scrolled away is in Log.` : "Opening the terminal…"}
        </p>
        ${write && now.opened && !now.readOnly && html`<button type="button" ref=${button} onClick=${take}>Type to the agent</button>`}`;
  return html`<div class=${now.held ? "terminal held" : "terminal"}>
    <div class="terminal-bar">
      ${
        now.ended
          ? html`<p role="status">The terminal has ended: ${now.ended}.</p>
              <button type="button" onClick=${reopen}>Open again</button>`
          : controls
      }
    </div>
    ${write && now.opened && now.readOnly && !now.ended && html`<p class="empty">${now.readOnly}.</p>`}
    <div
      class="terminal-screen"
      ref=${place}
      tabindex="0"
      role="region"
      aria-label="Screen of the agent; the tab Log has its output as text"
    />
  </div>`;
}
