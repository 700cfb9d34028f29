// Page that pairs this browser: its rights and its name. The code comes with the address of the QR code, or is
// typed, as in an app on the home screen, which shares nothing with the browser that has read the QR code.

import { useBusy } from "./controls.js";
import { canPair, pair } from "./device.js";
import { link } from "./notice.js";
import { html, render, useState } from "./view.js";

const NAMES = { iPhone: "iPhone", iPad: "iPad", Android: "Android phone" };

function nameOfBrowser() {
  const word = Object.keys(NAMES).find(each => navigator.userAgent.includes(each));
  return word ? NAMES[word] : "Browser";
}

/** Show in `main` the form that pairs this browser; `code` may be empty. */
export function pairPage(main, code) {
  link("off");
  render(html`<${PairForm} code=${code} />`, main);
}

/** Form that pairs this browser with a code. */
export function PairForm({ code: given = "" }) {
  const [code, write] = useState(given);
  const [name, call] = useState(nameOfBrowser);
  const [may, choose] = useState(/** @type {"watch"|"decide"} */ ("watch"));
  const [problem, tell] = useState("");
  const [busy, run] = useBusy(async () => {
    tell("");
    try {
      await pair(code, name, may);
      location.replace("/");
    } catch (trouble) {
      tell(trouble.message);
    }
  });
  if (!canPair())
    return html`<section class="hello" aria-labelledby="pair-title">
      <h1 id="pair-title">Pairing needs HTTPS</h1>
      <p>
        This address is plain HTTP, and browsers make no keys for such a page. <code>garrison serve --qr</code> says
        which two ways there are, and how ntfy tells you without.
      </p>
    </section>`;
  const right = (value, words) =>
    html`<label class="right"
      ><input type="radio" name="may" value=${value} checked=${may === value} onChange=${() => choose(value)} />
      ${words}</label
    >`;
  return html`<section class="hello pairing" aria-labelledby="pair-title">
    <h1 id="pair-title">Pair this device</h1>
    <form
      onSubmit=${event => {
        event.preventDefault();
        run();
      }}
    >
      ${
        !given &&
        html`<label
          >Code
          <input
            type="text"
            value=${code}
            autocomplete="off"
            autocapitalize="characters"
            spellcheck="false"
            placeholder="ABCD-EFGH-JKMN"
            onInput=${event => write(event.currentTarget.value)}
        /></label>`
      }
      <label
        >Name
        <input
          type="text"
          value=${name}
          maxlength="40"
          autocomplete="off"
          onInput=${event => call(event.currentTarget.value)}
      /></label>
      <fieldset>
        <legend>It may</legend>
        ${right("watch", "watch: see runs, and get messages")}
        ${right("decide", "decide: answer, approve, start, stop")}
      </fieldset>
      <p class="trouble-line" role="alert">${problem}</p>
      <button type="submit" class="primary" disabled=${busy || !code.trim() || !name.trim()}>Pair</button>
    </form>
    <p class="kind">
      Its key stays in this browser. <code>garrison serve --devices --revoke NAME</code> takes its access away.
    </p>
  </section>`;
}
