// Icons of the crew: a picture for each agent that garrison knows, the first letter of the name for all others.

import { html } from "./view.js";

const PATHS = {
  butler: "M4 17h16M5 17a7 7 0 0 1 14 0M12 10V7M10 7h4",
  triage: "M4 5h16v14H4zM4 13h4l2 3h4l2-3h4",
  scheduler: "M5 6h14v14H5zM5 10h14M9 4v4M15 4v4M9 14h2",
  communicator: "M4 6h16v12H4zM4 7l8 6 8-6",
  navigator: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M15 9l-2 4-4 2 2-4z",
  preference_learner: "M5 7h8M17 7h2M15 5v4M5 12h2M11 12h8M9 10v4M5 17h8M17 17h2M15 15v4",
};

/** The icon of an agent; decoration only. */
export const AgentIcon = ({ agent }) =>
  Object.hasOwn(PATHS, agent)
    ? html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[agent]} /></svg>`
    : html`<span class="icon letter" aria-hidden="true">${[...agent][0]?.toUpperCase() ?? "?"}</span>`;
