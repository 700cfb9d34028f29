// Page of a browser without a session: what to do. It opens by itself once another tab has a session.

import { el } from "./dom.js";
import { link } from "./notice.js";
import { watchSession } from "./session.js";

/** Show in `main` that this browser has no access. */
export function noAccess(main) {
  link("off");
  main.replaceChildren(el("section", { class: "hello", "aria-labelledby": "hello-title" },
    el("h1", { id: "hello-title" }, "No access"),
    el("p", {}, "Open the address that ", el("code", {}, "garrison serve"), " printed: it ends with ", el("code", {}, "?token=…"),
      ". A tab that is open already gives access to the others of its browser."),
    el("p", {}, "The address is lost? End the server with Ctrl-C and start ", el("code", {}, "garrison serve"),
      " again; it prints the same address. Runs go on meanwhile.")));
  watchSession(() => location.reload());
}
