// Target of a message's link: show exactly that card, or through which channel it has been answered.

import { get, part } from "./api.js";
import { announce, toast } from "./notice.js";
import { clock } from "./words.js";

const NOTICE = "notice"; // in the address
const PATIENCE = 3000; // milliseconds until a card that is open must be on the page

/** Show what the address names, once the state of the run is known; the name leaves the address. */
export async function showNotice(run, state) {
  const address = new URLSearchParams(location.search);
  const key = address.get(NOTICE);
  if (!key) return;
  address.delete(NOTICE);
  history.replaceState(null, "", `/?${address}`);
  const card = await found(() => cardOf(key, state));
  if (card) return point(card);
  const { answered, at, by } = await get(`runs/${part(run)}/notices/${key.split("/").map(part).join("/")}`);
  toast(answered ? `Answered ${at ? `at ${clock(at)} ` : ""}through ${by}.` : "This no longer waits for you.");
}

/** The card of a message's key on the page; null if there is none. */
function cardOf(key, state) {
  const [kind, ...rest] = key.split(":");
  const question = state.gates.find(one => key.startsWith(`gate:${one.gate}:`));
  const review = kind === "review" && state.gates.find(one => one.kind === "review" && one.node === rest[0]);
  const wanted = question || review;
  const cards = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".card")]);
  const named = card => card.querySelector(".name")?.textContent;
  if (wanted) return cards.find(card => card.dataset.key?.includes(wanted.gate)) ?? null;
  if (kind === "gate" || kind === "review") return null;
  if (kind === "question" && !state.nodes[rest[0]]?.asks) return null;
  return cards.find(card => named(card) === rest[0]) ?? null;
}

async function found(look) {
  const until = Date.now() + PATIENCE;
  for (;;) {
    const card = look();
    if (card || Date.now() > until) return card;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

function point(card) {
  card.scrollIntoView({ block: "center" });
  card.classList.add("pointed");
  card.focus();
  announce(`This waits for you: ${card.querySelector(".question")?.textContent ?? ""}`);
}
