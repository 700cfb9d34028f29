// Session of this page: the bearer of its requests. It is in the tab's session storage, which belongs to this host and
// this port alone; a cookie would be sent to every other port of the host. The tabs of a browser hand it to each other. A
// paired device gets one whenever it needs one.

import { logIn } from "./device.js";

const KEY = "garrison-session";
const CHANNEL = "garrison-session";
const PATIENCE = 1500; // milliseconds until no other tab has a session
const EARLY = 1 / 3; // of its life: then a session is renewed
const TICKET = "t.";
const REFUSED = 401; // HTTP status
const RETRY = 30000; // milliseconds until the next try to renew it

const listeners = new Set();
const channel = new BroadcastChannel(CHANNEL);
let held = null; // { bearer, renew }: `renew` in milliseconds since the epoch

channel.addEventListener("message", ({ data: [kind, session] }) => {
  if (kind === "ask" && held && !isTicket(held)) channel.postMessage(["session", held]);
  else if (kind === "session" && session.renew > (held?.renew ?? 0)) keep(session);
  else if (kind === "refused") void endSession(session);
});

const isTicket = session => session.bearer.startsWith(TICKET);

/** The bearer of this page's requests; an empty string without a session. */
export const bearer = () => held?.bearer ?? "";

/** Call `listener` with the bearer, whenever it changes. */
export function watchSession(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Start the session of this page: from the address, this tab, or another tab; false if there is none. */
export async function beginSession() {
  const ticket = location.hash.slice(1);
  if (ticket.startsWith(TICKET)) {
    history.replaceState(null, "", location.pathname + location.search);
    keep({ bearer: ticket, renew: 0 });
  } else {
    held = kept();
    if (!held && !(await ownSession())) await askTabs();
  }
  if (held && Date.now() >= held.renew && (await renew()) === REFUSED) {
    forget(); // what this tab kept was too old
    await ownSession();
  }
  if (held) plan();
  return held !== null;
}

/**
 * End a session that the server refuses: get another one as a paired device, or reload this page without one, like all
 * tabs that have it; then nothing that it showed stays.
 */
export async function endSession(refused) {
  if (held?.bearer !== refused) {
    if (held) listeners.forEach(listener => listener(held.bearer)); // users of the old one may use this one
    return;
  }
  forget();
  if (await ownSession()) return;
  channel.postMessage(["refused", refused]); // before this tab asks them for a session
  location.reload();
}

function forget() {
  held = null;
  sessionStorage.removeItem(KEY);
}

/** Get a session as the paired device that this browser is; false if it is none. */
async function ownSession() {
  const got = await logIn().catch(() => null); // without a server there is none
  if (got) take(got);
  return got !== null;
}

function kept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY));
    return typeof found?.bearer === "string" && typeof found.renew === "number" ? found : null;
  } catch {
    return null;
  }
}

function keep(session) {
  held = session;
  sessionStorage.setItem(KEY, JSON.stringify(session));
  listeners.forEach(listener => listener(session.bearer));
}

function askTabs() {
  channel.postMessage(["ask"]);
  return new Promise(resolve => {
    const stop = watchSession(resolve);
    setTimeout(() => {
      stop();
      resolve(null);
    }, PATIENCE);
  });
}

let planned;

function plan() {
  clearTimeout(planned);
  planned = setTimeout(
    async () => {
      const used = bearer();
      if (held && Date.now() >= held.renew && (await renew()) === REFUSED) await endSession(used);
      if (held) plan();
    },
    Math.max(RETRY, held.renew - Date.now()),
  );
}

/** Exchange the ticket or session for a new session; the HTTP status. Without a response it is retried later. */
async function renew() {
  const { bearer } = held;
  let response;
  try {
    response = await fetch("/api/session", {
      method: "POST",
      body: "{}",
      headers: { Authorization: `Bearer ${bearer}`, "Content-Type": "application/json", "X-Garrison": "1" },
    });
  } catch {
    return null;
  }
  if (response.ok) take(await response.json());
  return response.status;
}

function take({ session, seconds }) {
  keep({ bearer: session, renew: Date.now() + 1000 * seconds * EARLY });
  channel.postMessage(["session", held]);
}
