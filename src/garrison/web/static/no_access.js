// Page of a browser without a session: what to do. It opens by itself once another tab has a session.

import { canPair } from "./device.js";
import { link } from "./notice.js";
import { PairForm } from "./pair_page.js";
import { watchSession } from "./session.js";
import { html, render } from "./view.js";

/** Show in `main` that this browser has no access. */
export function noAccess(main) {
  link("off");
  render(
    html`<section class="hello" aria-labelledby="hello-title">
      <h1 id="hello-title">No access</h1>
      <p>
        Open the address that <code>garrison serve</code> printed: it ends with <code>?token=…</code>. ${" "} A tab that
        is open already gives access to the others of its browser.
      </p>
      <p>
        Lost the address? Stop the server with Ctrl-C and start <code>garrison serve</code> again; it prints the same
        address. Runs continue.
      </p>
      ${
        canPair() &&
        html`<details>
          <summary>Pair this device with a code</summary>
          <p><code>garrison serve --qr</code> shows a code; it is valid for two minutes.</p>
          <${PairForm} />
        </details>`
      }
    </section>`,
    main,
  );
  watchSession(() => location.reload());
}
