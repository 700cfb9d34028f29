// End of an output: what a program says last is why it failed, so the end is what is seen first.

import { html, useEffect, useRef } from "./view.js";

/** The text in a box that is scrolled to its end, also when what holds it is opened later. */
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
