// Rail of the crew in the chat: an icon for each member, which are at work, and who delegated to which, from the server's
// events. An event is shown at once; several that arrive together are shown one after the other.

import { AgentIcon } from "./agent_icons.js";
import { Component, html, Panel, Skeleton } from "./view.js";

export const BUTLER = "butler";
const AT_WORK = "at work";
const LISTENING = "listening";
const SEEN = 80; // milliseconds that each change is shown at least; the mark of a hand-over stays until the next answer

/** No agent has the work. */
const IDLE = { crew: [], working: [], marks: {}, last: "", doing: "" };

/** State after an event: `working` agents, `marks` (agent → the one that handed over to it), the one that completed `last`. Pure. */
export function afterEvent(before, event) {
  const name = event.agent ?? event.to,
    from = event.from ?? BUTLER,
    begins = event.type === "agent_start" && name === BUTLER;
  const crew =
    !name || before.crew.some(one => one.agent === name)
      ? before.crew
      : [...before.crew, { agent: name, title: name, what: "" }];
  const { working, marks, last } = before;
  const without = (...names) => working.filter(one => !names.includes(one));
  const changed = {
    // an agent without a mark was handed nothing in this answer
    agent_start: () => (begins ? { marks: {}, working: [name] } : { working: [...without(name), name] }),
    agent_resume: () => ({ marks: { ...marks, [name]: last }, working: [name] }),
    agent_delegate: () => ({
      marks: { ...marks, [event.to]: from },
      working: [...without(from, event.to), event.to],
    }),
    agent_complete: () => (name === BUTLER ? {} : { last: name, working: without(name) }),
  }[event.type]?.();
  const after = { working, marks, last, ...changed };
  return { ...after, crew, working: after.working.length ? after.working : [BUTLER], doing: AT_WORK };
}

/**
 * The rail's panel.
 * @param {Object} props
 * @param {Array<{agent: string, title: string, what: string}>|null} props.crew the butler first; null: not known yet
 * @param {{current: ChatRail}} props.handle gets the rail: moved(event), seen(), rest()
 */
export class ChatRail extends Component {
  constructor(props) {
    super(props);
    this.state = IDLE;
    props.handle.current = this;
    this.changed = 0;
    this.shown = Promise.resolve();
  }

  static getDerivedStateFromProps({ crew }, { crew: known }) {
    return crew && !known.length ? { crew } : null;
  }

  componentDidUpdate() {
    this.changed = performance.now();
  }

  /** Resolve once the last change was shown long enough. */
  pause() {
    const left = this.changed + SEEN - performance.now();
    return left > 0 ? new Promise(resolve => setTimeout(resolve, left)) : null;
  }

  /** Show an event once the earlier ones were visible; the text of the answer does not wait for that. */
  moved(event) {
    this.shown = this.shown
      .then(() => this.pause())
      .then(
        () =>
          new Promise(drawn =>
            this.setState(
              state => afterEvent(state, event),
              () => drawn(null),
            ),
          ),
      );
  }

  /** Resolve when all events were shown. */
  seen() {
    return this.shown.then(() => this.pause());
  }

  /** No agent works any more; the butler listens. */
  rest() {
    this.setState({ working: [BUTLER], doing: LISTENING });
  }

  render(_, { crew, working, marks, doing }) {
    const titles = new Map(crew.map(one => [one.agent, one.title]));
    return html`<${Panel} id="rail" title="Crew"
      >${!crew.length && html`<${Skeleton} lines=${6} />`}
      <ul class="agents" tabindex="0" aria-label="Agents of the crew" data-testid="agent-rail">
        ${crew.map(
          ({ agent, title, what }) =>
            html`<${Member}
              key=${agent}
              agent=${agent}
              title=${title}
              about=${what}
              active=${working.includes(agent)}
              doing=${doing}
              from=${marks[agent]}
              named=${titles.get(marks[agent])}
            />`,
        )}
      </ul><//
    >`;
  }
}

const Member = ({ agent, title, about, active, doing, from, named }) =>
  html` <li
    class="agent${active ? " active s-working" : ""}"
    title=${about || null}
    data-testid="agent-${agent}"
    data-agent=${agent}
  >
    <span class="picture"
      ><${AgentIcon} agent=${agent} /><span class="sign" aria-hidden="true"
        >${active && doing === AT_WORK ? "◐" : "○"}</span
      >
      <span class="hand-over" hidden=${!from} title=${from ? `from ${named ?? from}` : null} data-from=${from || null}
        >${from ? "→" : ""}</span
      ></span
    >
    <span class="name">${title}</span><span class="kind">${active ? doing : ""}</span>
  </li>`;
