// Entry point: start the session, open one of the two pages, and their common parts. No data of a run or a conversation is
// known here.

import { PAIR } from "./device.js";
import { beginSession } from "./session.js";
import { followEarly } from "./stream.js";

const main = document.getElementById("main");
const isChat = location.pathname === "/chat";

async function start() {
  document.querySelector(`[data-page="${isChat ? "chat" : "run"}"]`)?.setAttribute("aria-current", "page");
  if (location.hash.startsWith(`#${PAIR}`)) {
    const code = location.hash.slice(1 + PAIR.length);
    history.replaceState(null, "", location.pathname);
    (await import("./pair_page.js")).pairPage(main, code);
    return;
  }
  if (await beginSession()) await open();
  else (await import("./no_access.js")).noAccess(main);
}

async function open() {
  if (!isChat) followEarly(new URLSearchParams(location.search).get("run") || null);
  try {
    const page = await (isChat ? import("./chat_page.js") : import("./run_page.js"));
    const { keys } = await import("./keys.js");
    keys(await page.begin(main));
  } catch (problem) {
    const { render } = await import("./view.js");
    render(problem.message, main);
    main.classList.add("trouble");
  }
}

void start();
