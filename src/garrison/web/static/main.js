// Entry point: begin the session, open one of the two pages, and what both have. Nothing of a run or of a conversation is
// known here.

import { PAIR } from "./device.js";
import { keys } from "./keys.js";
import { noAccess } from "./no_access.js";
import { beginSession } from "./session.js";
import { render } from "./view.js";

const page = location.pathname === "/chat" ? "chat" : "run";
const main = document.getElementById("main");
document.querySelector(`[data-page="${page}"]`)?.setAttribute("aria-current", "page");
if (location.hash.startsWith(`#${PAIR}`)) {
  const code = location.hash.slice(1 + PAIR.length);
  history.replaceState(null, "", location.pathname);
  const { pairPage } = await import("./pair_page.js");
  pairPage(main, code);
} else if (await beginSession()) {
  const opened = page === "chat" ? await import("./chat_page.js") : await import("./run_page.js");
  try {
    keys(await opened.begin(main));
  } catch (problem) {
    render(problem.message, main);
    main.classList.add("trouble");
  }
} else noAccess(main);
