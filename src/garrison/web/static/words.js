// Words of the page: states, times, amounts. Pure. Each state has a word and its own symbol, so that none is shown
// by colour alone, and each fact is put into words in one place.

const STATES = {
  waiting: ["○", "waiting"],
  working: ["◐", "working"],
  asking: ["?", "asks you"],
  landing: ["◕", "queued"],
  landed: ["✓", "landed"],
  passed: ["✓", "done"], // a node without an agent, a process, a run
  failed: ["✕", "failed"],
  parked: ["‖", "parked"],
  stopped: ["■", "stopped"], // its run does not continue, and so neither does the node
  skipped: ["–", "skipped"],
  unchanged: ["=", "no change"],
  kept: ["+", "kept"], // a candidate that passed its checks
};
const ALSO = {
  pending: "waiting",
  new: "waiting",
  planning: "waiting",
  active: "working",
  running: "working",
  executing: "working",
  candidate: "working",
  testing: "working",
  starting: "working",
  alive: "working",
  agent: "working",
  spawning: "working",
  queued: "landing",
  impl_complete: "landing",
  validating: "landing",
  validated: "landed",
  merged: "landed",
  done: "passed",
  success: "passed",
  partial_success: "passed",
  succeeded: "passed",
  finished: "passed",
  terminated: "passed",
  ended: "passed",
  fail: "failed",
  dead: "failed",
  crashed: "failed",
  rejected: "failed",
  conflict: "failed",
  corrupt: "failed",
  "no change": "unchanged",
  undone: "failed",
  cancelled: "skipped",
  superseded: "skipped",
  interrupted: "parked",
  held: "parked",
  paused: "parked",
  landing_blocked: "parked",
  stopping: "parked",
  hung: "parked",
};

/** One of the states, for a status of a node, run, layer or queue entry. */
export function stateOf(status) {
  const word = String(status ?? "").toLowerCase();
  return word in STATES ? word : Object.hasOwn(ALSO, word) ? ALSO[word] : "waiting";
}

/** The symbol of a state. */
export const signOf = status => STATES[stateOf(status)][0];

/** A node's status in a word for the user. */
export const wordOf = status => STATES[stateOf(status)][1];

/** A node's state in a word: while it lands, what the queue does with it, in the words of the command line. */
export const nodeWord = (node, state) => (state === "landing" && node?.state ? node.state : wordOf(state));

/** Milliseconds since the epoch of a time on the wire (ISO 8601, or seconds); null if there is none. */
export function millis(time) {
  if (time === null || time === undefined || time === "") return null;
  const found = typeof time === "number" ? time * 1000 : Date.parse(time);
  return Number.isNaN(found) ? null : found;
}

/** A span of seconds: "8 s", "3 min", "2 h 05". */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}\u00a0s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}\u00a0min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The time of day of a time on the wire, with seconds; the date too if it was another day. */
export function clock(time, now = Date.now()) {
  const at = millis(time);
  if (at === null) return "";
  const date = new Date(at);
  const day =
    date.toDateString() === new Date(now).toDateString()
      ? ""
      : date.toLocaleDateString(undefined, { month: "short", day: "numeric" }) + " ";
  return (
    day + date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false })
  );
}

/** The zone of all times on the page: "Europe/Berlin (UTC+02:00)". */
export function zone(date = new Date()) {
  const minutes = -date.getTimezoneOffset(),
    whole = Math.abs(minutes);
  const offset = `UTC${minutes < 0 ? "−" : "+"}${String(Math.floor(whole / 60)).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name && name !== "UTC" ? `${name} (${offset})` : minutes ? offset : "UTC";
}

/** Dollars; an empty string for none. */
export function dollars(usd) {
  if (!usd) return "";
  return usd < 0.005 ? "< $0.01" : `$${usd.toFixed(2)}`;
}

/** Dollars of a limit: "$0.43 of $2.00"; an empty string for none. */
export const dollarsOf = (usd, limit) => (usd && limit ? `${dollars(usd)} of ${dollars(limit)}` : dollars(usd));

/** Bytes: 812 B, 4.2 kB, 17 MB. */
export function size(bytes) {
  let [scale, unit] = [1, 0];
  for (; bytes >= 1000 * scale && unit < 3; unit++) scale *= 1000;
  return `${Number((bytes / scale).toPrecision(3))} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** [input, output] tokens: "12 k tokens in, 3.4 k out"; an empty string for none. */
export function tokens([input, output] = [0, 0]) {
  const short = n =>
    n < 1000
      ? String(n)
      : n < 1e6
        ? `${(n / 1000).toPrecision(n < 1e4 ? 2 : 3).replace(/\.0$/, "")} k`
        : `${(n / 1e6).toFixed(1)} M`;
  return input || output ? `${short(input)} tokens in, ${short(output)} out` : "";
}

/** What an agent at work has changed so far: "2 files +14 −3, 1 new file"; an empty string if that is not known. */
export function changedSoFar(work) {
  const { files = 0, added = 0, removed = 0, new: fresh = 0 } = work?.changed ?? {};
  if (!work?.changed) return "";
  if (!files && !fresh) return "nothing changed yet";
  return [files && `${count(files, "file")} +${added} −${removed}`, fresh && count(fresh, "new file")]
    .filter(Boolean)
    .join(", ");
}

/** How long a node at work usually takes: "usually 3 min"; twice as long is said as well. An empty string if unknown. */
export function usually(work, since, now = Date.now()) {
  if (!(work?.usual?.seconds >= 1)) return "";
  const took = (now - millis(since)) / 1000;
  return `${took > 2 * work.usual.seconds && took > 60 ? "longer than usual: " : "usually "}${span(work.usual.seconds)}`;
}

/** "1 death", "3 deaths". */
export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** A node in one line, for a screen reader and the tooltip. */
export function nodeLine(node, state = stateOf(node.status)) {
  const label = node.label && node.label !== node.node ? ` (${node.label})` : "";
  const deaths = node.deaths ? `, ${count(node.deaths, "death")}` : ""; // next to the name, as on the node, for screen readers
  const parts = [`${node.node}${deaths}${label}: ${nodeWord(node, state)}`];
  if (node.attempt > 1) parts.push(`attempt ${node.attempt}`);
  if (node.answer) parts.push(`answered: ${node.answer}`);
  if (node.doing || node.reason) parts.push(node.doing || node.reason);
  return parts.join(", ");
}

/** Tabs of a node: their names in the address, and their words. */
export const NODE_TABS = [
  ["story", "Why"],
  ["changes", "Changes"],
  ["log", "Log"],
  ["transcript", "Transcript"],
  ["terminal", "Terminal"],
  ["task", "Task"],
];
