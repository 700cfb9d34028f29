// Panel of one node: what happened to it and why, its attempts and incarnations, its log and its transcript. All of it is
// requested again whenever something happened to the node.

import { inAddress, keepInAddress } from "./address.js";
import { get, part } from "./api.js";
import { Attempts } from "./attempts.js";
import { Changes } from "./changes.js";
import { answer, NodeAction, possible, TextForm } from "./node_actions.js";
import { Log, Transcript } from "./node_files.js";
import { shown } from "./state.js";
import { Tabs, TabPanel } from "./tabs.js";
import { TerminalView } from "./terminal.js";
import { Empty, html, memo, sameDrawing, Skeleton, useEffect, useLayoutEffect, useRef, useState } from "./view.js";
import { changedSoFar, clock, dollarsOf, NODE_TABS, nodeWord, signOf, tokens, usually } from "./words.js";

const WIDE = new Set(["changes", "terminal"]);
const SETTLE = 150; // milliseconds between an event and the request for what it changed
const OF = { runner: "runner: ", orchestrator: "agent: " }; // whose process a line is about
const AT_WORK = new Set(["working", "asking"]);

/**
 * The panel.
 * @param {Object} props
 * @param {Element} props.place its container; hidden without a node
 * @param {string} props.run
 * @param {string|null} props.node
 * @param {string|undefined} props.tab the tab to open it at
 * @param {number} props.opened changes when the user opens a node, also the same one
 * @param {import("./state").State} props.state of the run
 * @param {number} props.happened changes with each event of the node
 * @param {(...given: any[]) => any} props.act posts a change
 * @param {() => void} props.close called by the close button
 */
export function Detail({ place, run, node, tab: wanted, opened, state, happened, act, close }) {
  const [tab, show] = useState(wanted ?? "story");
  const turn = name => {
    show(name);
    keepInAddress({ tab: name === "story" ? null : name, comment: null, at: null });
  };
  const title = useRef(null),
    before = useRef(null),
    last = useRef(null);
  useLayoutEffect(() => {
    if (node && wanted) show(wanted);
  }, [opened]);
  useLayoutEffect(() => {
    if (node && !last.current) before.current = document.activeElement;
    place.toggleAttribute("hidden", !node);
    document.body.classList.toggle("with-detail", Boolean(node));
    if (node) title.current.focus();
    else if (last.current) (before.current?.isConnected ? before.current : document.getElementById("main")).focus();
    last.current = node;
  }, [node]);
  useLayoutEffect(() => {
    place.classList.toggle("wide", WIDE.has(tab));
  }, [tab]);
  return (
    node &&
    html` <${Top} run=${run} node=${node} state=${state} title=${title} act=${act} close=${close} />
      <${Bodies}
        key=${node}
        run=${run}
        node=${node}
        reached=${Boolean(state.nodes[node].agent || state.nodes[node].status)}
        now=${shown(state, state.nodes[node])}
        write=${state.write !== false}
        happened=${happened}
        tab=${tab}
        turn=${turn}
        act=${act}
      />`
  );
}

/** What a node has cost, in words. */
function spentOn({ nodes, costs }, node) {
  const { limits, tokens: used } = costs ?? {};
  return [dollarsOf(nodes[node].cost, limits?.nodes[node]), tokens(used?.nodes[node])];
}

/** The goal of a node, unless it is the same as its name. */
const goalOf = (one, node) => (one.label && one.label !== node ? one.label : "");

/** Its state, and the user's actions on it. */
const Top = memo(
  ({ run, node, state, title, act, close }) => {
    const one = state.nodes[node],
      now = shown(state, one),
      write = state.write !== false;
    const work = now === "working" ? one.work : null;
    const question = state.gates.find(each => each.node === node && each.free);
    const doing = [one.doing || one.reason, changedSoFar(work), usually(work, one.since), ...spentOn(state, node)];
    const over = state.status === "failed";
    return html` <div class="panel-head">
        <h2 tabindex="-1" id="detail-title" ref=${title}>${node}</h2>
        <span class="pill s-${now}">${signOf(now)} ${nodeWord(one, now)}</span>
        <button type="button" class="quiet close" aria-label="Close" onClick=${() => close()}>✕</button>
      </div>
      <p class="goal">${goalOf(one, node)}</p>
      ${work?.line && html`<p class="now mono" title="The last line of its output">${work.line}</p>`}
      <p class="doing">${doing.filter(Boolean).join(" · ")}</p>
      ${
        write &&
        (question || one.asks) &&
        html`<${TextForm}
          key="answer ${node} ${question?.gate ?? one.asks}"
          class="row grow answer"
          label="Answer"
          hint="Answer to ${node}"
          placeholder="Answer"
          send=${text => answer(act, node, question, text)}
          ><p class="question">${question?.question ?? one.asks}</p><//
        >`
      }
      <div class="row">
        ${
          write &&
          possible(one, now).map(
            action =>
              html`<${NodeAction}
                key="${node} ${action}"
                action=${action}
                run=${run}
                node=${node}
                over=${over}
                act=${act}
              />`,
          )
        }
      </div>`;
  },
  (one, other) =>
    one.node === other.node &&
    one.state.nodes[one.node] === other.state.nodes[one.node] &&
    sameDrawing(["gates", "status", "next", "costs", "write"], one, other),
);

/** The server's data on a node, requested again each time that something `happened` to it. */
function useNode(run, node, reached, happened, current, pick) {
  const [known, know] = useState(reached ? null : { attempts: [], why: [] });
  const [trouble, fail] = useState("");
  const [version, renew] = useState(0);
  useEffect(() => {
    if (!reached) return undefined; // a start, an exit: no record names it
    let wanted = true;
    const timer = setTimeout(
      async () => {
        try {
          const found = await get(`runs/${part(run)}/nodes/${part(node)}`);
          if (!wanted) return;
          if (current.known && found.attempts.length !== current.known.attempts.length) pick(null);
          know((current.known = found));
          fail("");
          renew(number => number + 1);
        } catch (problem) {
          if (wanted) fail(problem.message);
        }
      },
      current.known ? SETTLE : 0,
    );
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [happened, reached]);
  return { known, trouble, version };
}

/** Its tabs; all that is requested of a node. */
function Bodies({ run, node, reached, now, write, happened, tab, turn, act }) {
  const [picked, choosePicked] = useState(() => Number(inAddress("attempt")) || null); // an attempt; null: the latest
  const pick = attempt => {
    choosePicked(attempt);
    keepInAddress({ attempt, comment: null, at: null });
  };
  /** @type {Object<string, any>} */
  const current = useRef({}).current; // for callbacks while a file is followed
  const { known, trouble, version } = useNode(run, node, reached, happened, current, pick);
  // once shown they stay, with place and note; while hidden they request nothing
  const changes = useRef({ met: false }).current;
  const attempts = known?.attempts ?? [];
  const latest = attempts.at(-1)?.attempt,
    attempt = picked ?? latest ?? 1;
  Object.assign(current, { now, attempt, latest });
  if (tab === "changes") Object.assign(changes, { met: true, attempt, version });
  const files = {
    at: kind => `runs/${part(run)}/nodes/${part(node)}/${kind}?attempt=${attempt}`,
    name: `${run}-${node}-${attempt}`,
    live: () => current.attempt === current.latest && AT_WORK.has(current.now),
  };
  const body = (name, content) =>
    html`<${TabPanel} key=${name} prefix="detail" name=${name} chosen=${tab} class="tab-body ${name}" tabindex="0"
      >${content}<//
    >`;
  const unknown = trouble ? html`<${Empty}>${trouble}<//>` : html`<${Skeleton} lines=${6} />`;
  const once = draw => (known ? draw() : unknown); // the server has answered
  const one = `${attempt} ${attempts.length}`; // a new attempt starts another file, even of the same number
  return html` <div class="row between">
      <${Tabs} prefix="detail" label="About this node" tabs=${NODE_TABS} chosen=${tab} choose=${turn} /> ${
        attempts.length > 1 &&
        html`<select aria-label="Attempt" value=${attempt} onChange=${event => pick(Number(event.currentTarget.value))}>
          ${attempts.map(each => html`<option key=${each.attempt} value=${each.attempt}>Attempt ${each.attempt}</option>`)}
        </select>`
      }
    </div>
    ${body(
      "story",
      once(() => html`<${Story} known=${known} turn=${turn} />`),
    )}
    ${body("changes", changes.met && once(() => html`<${Changes} ...${changes} run=${run} node=${node} write=${write} act=${act} />`))}
    ${body("log", tab === "log" && once(() => html`<${Log} key=${one} ...${files} />`))}
    ${body("transcript", tab === "transcript" && once(() => html`<${Transcript} key=${one} ...${files} />`))}
    ${body("terminal", tab === "terminal" && html`<${TerminalView} key=${node} run=${run} node=${node} write=${write} />`)}
    ${body(
      "task",
      once(() => html`<${Task} known=${known} />`),
    )}`;
}

const Part = ({ title, children }) =>
  html`<section>
    <h3>${title}</h3>
    ${children}
  </section>`;

/** What happened to it, and why. */
const Story = memo(
  ({ known: { review, attempts, why, hook }, turn }) =>
    html` ${
        review &&
        html`<${Part} title="Attempt ${review.attempt} (${review.commit.slice(0, 10)}) waits for your approval">
          <button type="button" onClick=${() => turn("changes")}>See the changes</button><//
        >`
      }
      <${Part} title="Attempts"><${Attempts} all=${attempts} /><//>
      <${Part} title="What happened"
        >${
          why?.some(line => line.plain !== null)
            ? html`<ol class="why">
                ${why
                  .filter(line => line.plain !== null)
                  .map(
                    (line, at) =>
                      html`<li key=${at}><time>${clock(line.at)}</time><span>${line.plain || line.text}</span></li>`,
                  )}
              </ol>`
            : html`<${Empty}>Nothing has happened to it yet.<//>`
        }<//
      >
      <details>
        <summary>Records of its processes</summary>
        <ol class="why">
          ${why?.map((line, at) => html`<${Recorded} key=${at} line=${line} />`)}
        </ol>
        <${Facts} record=${hook} />
      </details>`,
);

/** A line of its supervisor's record, with the rule that decided. */
const Recorded = ({ line }) =>
  html`<li>
    <time>${clock(line.at)}</time>
    <span>
      ${OF[line.about?.split("-")[0]] ?? ""}${line.text}
      ${line.rule && !line.text.includes(line.rule) && html`<span class="rule"> ${line.rule}</span>`}
    </span>
  </li>`;

const Task = memo(({ known }) => {
  const parts = [
    ["Prompt", known.prompt],
    ["Command", known.command],
    ["Acceptance", known.acceptance],
  ].filter(([, text]) => text);
  return parts.length
    ? parts.map(([title, text]) => html`<${Part} key=${title} title=${title}><pre class="wrap">${text}</pre><//>`)
    : html`<${Empty}>It has neither prompt nor command: it only routes the pipeline.<//>`;
});

function Facts({ record }) {
  const rows = Object.entries(record ?? {}).filter(
    ([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length),
  );
  if (!rows.length) return html`<${Empty}>There are none yet.<//>`;
  return html`<dl class="facts">
    ${rows.map(
      ([name, value]) =>
        html`<div key=${name}>
          <dt>${name.replaceAll("_", " ")}</dt>
          <dd>${worded(value)}</dd>
        </div>`,
    )}
  </dl>`;
}

const worded = value =>
  /^\d{4}-\d\d-\d\dT/.test(value) ? clock(value) : typeof value === "object" ? JSON.stringify(value) : String(value);
