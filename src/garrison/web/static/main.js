// Entry point: open one of the two pages, and what both have. Nothing of a run or of a conversation is known here.

import { keys } from "./keys.js";
import { say } from "./dom.js";

const page = location.pathname === "/chat" ? "chat" : "run";
for (const link of document.querySelectorAll("[data-page]")) {
  if (link.dataset.page === page) link.setAttribute("aria-current", "page");
}
const opened = page === "chat" ? await import("./chat_page.js") : await import("./run_page.js");
try {
  const shortcuts = await opened.begin(document.getElementById("main"));
  keys(shortcuts);
} catch (problem) {
  say(document.getElementById("main"), problem.message);
  document.getElementById("main").classList.add("trouble");
}
