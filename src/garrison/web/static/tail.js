// End of an output: a program's last lines tell why it failed, so the end is visible first.

import { html, useEffect, useRef } from "./view.js";

/** The text in a box that is scrolled to its end, also when its container is opened later. */
export function Tail({ text }) {
  const box = useRef(null);
  useEffect(() => {
    const end = () => {
      box.current.scrollTop = box.current.scrollHeight;
    };
    end();
    const holder = box.current.closest("details");
    holder?.addEventListener("toggle", end);
    return () => holder?.removeEventListener("toggle", end);
  }, [text]);
  return html`<pre class="wrap tail" tabindex="0" ref=${box}>${text}</pre>`;
}
