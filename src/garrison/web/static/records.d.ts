// Written by tests/page_types.py from the records that the server sends; not by hand.

export interface Approval {
  attempt: number;
  commit: string;
  entry: string;
}

export interface Beat {
  status?: "new" | "running" | "waiting" | "parked" | "interrupted" | "stopped" | "done" | "failed" | "corrupt";
  reason?: string;
  problems?: Array<string>;
  gates?: Array<ShownQuestion>;
  waits?: Array<ShownWait>;
  queue?: PageQueue;
  notices?: Array<Notice>;
  pull_request?: ShownPullRequest | null;
  followed?: Record<string, number>;
  nodes?: Record<string, PageNode | ObservedNode>;
  timeline?: Array<TimelineEntry>;
  signals?: Array<SignalEntry>;
  timeline_add?: Array<TimelineEntry>;
  signals_add?: Array<SignalEntry>;
  layers?: Array<PageProcess>;
  costs?: ShownCosts;
  hint?: string;
  living?: boolean;
  run: string;
}

export interface Beginning {
  id: string;
  command: string;
  line: string;
  run: string;
  problem: string;
  plan: OfferedPlan | null;
}

export interface ChangedSoFar {
  files: number;
  added: number;
  removed: number;
  new: number;
}

export interface GivenReview {
  author: string;
  word: string;
  is_outdated: boolean;
  counts: boolean;
}

export interface ListedLessons {
  lessons: Array<ShownLesson>;
}

export interface ListedPlan {
  id: string;
  goal: string;
  repo: string;
  stage: string;
  mends: boolean;
}

export interface ListedPlans {
  plans: Array<ListedPlan>;
}

export interface LogPiece {
  attempt: number;
  from: number;
  next: number;
  more: boolean;
  ended: boolean;
  text: string;
  size: number;
}

export interface NodeDetail {
  node: string;
  label: string;
  prompt: string;
  command: string;
  acceptance: string;
  agent: string;
  attempts: Array<ShownAttempt>;
  hook: ShownHook | UnreadableHook | null;
  why: Array<ShownLine>;
  transcripts: Array<Transcript>;
  review: Approval | null;
  problems: Array<string>;
}

export interface Notice {
  key: string;
  event: string;
  node: string;
  text: string;
}

export interface ObservedNode {
  state: string;
  phase: string;
  doing: string;
  cost: number | null;
  cannot: boolean;
  work: WorkInProgress | null;
}

export interface OfferedChoice {
  label: string;
  key: string;
  irreversible?: boolean;
}

export interface OfferedPlan {
  plan: string;
  tasks: Array<PlanRow>;
  questions: Array<string>;
  notes: Array<string>;
  most_usd: number | null;
  graph: string;
  one_task: boolean;
}

export interface PageEntry {
  id: string;
  node: string;
  attempt: number;
  branch: string;
  state: string;
  word: string;
  position: number;
  since: string;
  priority: number;
  detail: string;
  tests: number;
}

export interface PageNode {
  node: string;
  label: string;
  shape: string;
  agent: string;
  deaths: number;
  status: string;
  place: string;
  attempt: number;
  since: string;
  reason: string;
  commit: string;
  asks: string;
  parked: string | null;
  answer?: string;
}

export interface PageProcess {
  who: string;
  kind: string;
  node: string;
  status: string;
  living: boolean;
  phase: string;
  life: number;
  pid: number | null;
  why: string;
  beat_age_s: number | null;
  cpu: number | null;
  memory_mib: number;
}

export interface PageQueue {
  paused: boolean;
  reason: string;
  target: string;
  entries: Array<PageEntry>;
}

export interface Parts {
  status?: "new" | "running" | "waiting" | "parked" | "interrupted" | "stopped" | "done" | "failed" | "corrupt";
  reason?: string;
  problems?: Array<string>;
  gates?: Array<ShownQuestion>;
  waits?: Array<ShownWait>;
  queue?: PageQueue;
  notices?: Array<Notice>;
  pull_request?: ShownPullRequest | null;
  followed?: Record<string, number>;
  nodes?: Record<string, PageNode | ObservedNode>;
  timeline?: Array<TimelineEntry>;
  signals?: Array<SignalEntry>;
  timeline_add?: Array<TimelineEntry>;
  signals_add?: Array<SignalEntry>;
  layers?: Array<PageProcess>;
  costs?: ShownCosts;
  hint?: string;
  living?: boolean;
}

export interface PlanRow {
  node: string;
  title: string;
  needs: string;
  files: string;
  agent: string;
  budget: number | null;
  cost: string;
  time: string;
}

export interface ReportedCheck {
  name: string;
  result: string;
  url: string;
}

export interface RunDefaults {
  repo: string;
  agent: string;
  gate: string;
  problem: string;
}

export interface RunDisk {
  records: number;
  worktrees: number;
}

export interface RunSnapshot {
  status?: "new" | "running" | "waiting" | "parked" | "interrupted" | "stopped" | "done" | "failed" | "corrupt";
  reason?: string;
  problems?: Array<string>;
  gates?: Array<ShownQuestion>;
  waits?: Array<ShownWait>;
  queue?: PageQueue;
  notices?: Array<Notice>;
  pull_request?: ShownPullRequest | null;
  followed?: Record<string, number>;
  nodes?: Record<string, PageNode | ObservedNode>;
  timeline?: Array<TimelineEntry>;
  signals?: Array<SignalEntry>;
  timeline_add?: Array<TimelineEntry>;
  signals_add?: Array<SignalEntry>;
  layers?: Array<PageProcess>;
  costs?: ShownCosts;
  hint?: string;
  living?: boolean;
  run: string;
  title: string;
  goal: string;
  pipeline: string;
  target: string;
  created: string;
  dot: string;
  next: Record<string, Array<string>>;
  id: string;
  write?: boolean;
  missed?: boolean;
}

export interface SessionBlock {
  role: string;
  kind: string;
  name: string;
  text: string;
  at: string;
  life: number | null;
  error: boolean;
}

export interface ShownAttempt {
  attempt: number;
  status: string;
  reason: string;
  why_again: string;
  branch: string;
  commit: string;
  result: string;
  tail: string;
  exit_code: number | null;
  started: string;
  ended: string;
  log_bytes: number;
  lives: Array<ShownIncarnation>;
}

export interface ShownCosts {
  usd: number | null;
  nodes: Record<string, number>;
  tokens: Tokens;
  limits: ShownLimits;
  today: number | null;
  windows: string;
}

export interface ShownHook {
  phase: string;
  incarnation: number;
  updated: string;
}

export interface ShownIncarnation {
  who: string;
  incarnation: number;
  started: string;
  ended: string;
  how: string;
  began: string;
}

export interface ShownLesson {
  id: string;
  state: string;
  text: string;
  written_by: string;
  quoted: string;
  place: string;
  times: number;
  sources: Array<Source>;
}

export interface ShownLimits {
  run: number | null;
  day: number | null;
  nodes: Record<string, number>;
}

export interface ShownLine {
  at: string;
  about: string;
  kind: string;
  text: string;
  observed: string;
  rule: string;
  same: boolean | null;
  plain: string | null;
}

export interface ShownPullRequest {
  state: string;
  number: number;
  url: string;
  text: string;
  waits_for: string;
  since: string;
  returns: Record<string, number>;
  checks: Array<ReportedCheck>;
  reviews: Array<GivenReview>;
}

export interface ShownQuestion {
  gate: string;
  node: string;
  kind: string;
  question: string;
  signal: string;
  deadline: string | null;
  free: boolean;
  default: string;
  choices: Array<OfferedChoice>;
  why?: string | null;
}

export interface ShownSchedule {
  name: string;
  times: string;
  zone: string;
  command: Array<string>;
  repo: string;
  next: string;
  paused: string;
  last: string;
  run: string;
  spent_week: number;
}

export interface ShownWait {
  kind: "run" | "gate" | "asks" | "parked" | "failed" | "empty" | "paused" | "no_gate" | "no_room" | "blocked" | "no_target" | "ref_locked" | "hindered";
  key: string;
  node: string;
  text: string;
  gate?: ShownQuestion | null;
  since?: string;
}

export interface SignalEntry {
  id: string;
  at: string;
  type: string;
  source: string;
  target: string;
  node: string;
  text: string;
}

export interface Source {
  run: string;
  node: string;
  attempt: number;
}

export interface StartOffer {
  places: Array<RunDefaults>;
  agents: Array<string>;
}

export interface StreamChange {
  id: string;
  run: string;
  at: string;
  type: string;
  node: string;
  text: string;
  patch: Parts;
}

export interface TimelineEntry {
  id: string;
  at: string;
  kind: string;
  node: string;
  text: string;
  minor: boolean;
}

export interface Tokens {
  all: [number, number];
  nodes: Record<string, [number, number]>;
}

export interface Transcript {
  attempt: number;
  name: string;
}

export interface TranscriptPiece {
  attempt: number;
  from: number;
  next: number;
  more: boolean;
  ended: boolean;
  blocks: Array<SessionBlock>;
}

export interface UnreadableHook {
  problem: string;
}

export interface UsualTime {
  seconds: number;
  of: string;
}

export interface WholeNode {
  node: string;
  label: string;
  shape: string;
  agent: string;
  deaths: number;
  status: string;
  place: string;
  attempt: number;
  since: string;
  reason: string;
  commit: string;
  asks: string;
  parked: string | null;
  answer?: string;
  state: string;
  phase: string;
  doing: string;
  cost: number | null;
  cannot: boolean;
  work: WorkInProgress | null;
}

export interface WorkInProgress {
  line: string;
  changed: ChangedSoFar | null;
  usual: UsualTime | null;
}
