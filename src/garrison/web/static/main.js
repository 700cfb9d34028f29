// Entry point: begin the session, open one of the two pages, and what both have. Nothing of a run or of a conversation is
// known here. The modules of a page are loaded while the session begins and its stream is opened.

import { PAIR } from "./device.js";
import { beginSession } from "./session.js";
import { followEarly, prepare } from "./stream.js";

const main = document.getElementById("main");
const isChat = location.pathname === "/chat";
document.querySelector(`[data-page="${isChat ? "chat" : "run"}"]`)?.setAttribute("aria-current", "page");
if (location.hash.startsWith(`#${PAIR}`)) {
  const code = location.hash.slice(1 + PAIR.length);
  history.replaceState(null, "", location.pathname);
  const { pairPage } = await import("./pair_page.js");
  pairPage(main, code);
} else {
  if (!isChat) prepare();
  const modules = Promise.all([import(isChat ? "./chat_page.js" : "./run_page.js"), import("./keys.js")]);
  if (await beginSession()) await open();
  else (await import("./no_access.js")).noAccess(main);

  async function open() {
    if (!isChat) followEarly(new URLSearchParams(location.search).get("run") || null);
    try {
      const [page, { keys }] = await modules;
      keys(await page.begin(main));
    } catch (problem) {
      const { render } = await import("./view.js");
      render(problem.message, main);
      main.classList.add("trouble");
    }
  }
}
