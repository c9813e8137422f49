// Shows /api/status, refreshed every second. Data is always set as text, never as markup.
import { initOperatorPanel } from "./operator.js";
import { byId, cell, fillTable, row, setDescription, setFigure, setText } from "./elements.js";
import { initPipelines, ofPipeline } from "./pipelines.js";
import { Plot } from "./plot.js";
import { showReadModels } from "./read-models.js";
import { ago, clockTime, dateTime, grouped, isKnown, joinUnit, lagDuration, longDuration, plural, rate, shortDuration, twoUnits } from "./format.js";

const REFRESH_INTERVAL = 1_000;
const HISTORY_SPAN = 300_000;
// In seconds. A pod responds in milliseconds; after this long without a response its last figures may be wrong.
const RESPONSE_LIMIT = 3;
const STATUS_AGE_LIMIT = 10;

// The sections of the page

const plots = [
  new Plot(byId("plot-lag"), {
    title: "Lag", least: 4, tick: (value) => `${grouped(value, value % 1 ? 1 : 0)} s`,
    series: [{ label: "", value: (point) => point.lag_seconds, format: (value) => joinUnit(lagDuration(value)) }],
  }),
  new Plot(byId("plot-throughput"), {
    title: "Events / s", least: 4, tick: (value) => (value >= 10_000 ? `${grouped(value / 1_000)} k` : grouped(value, value % 1 ? 1 : 0)),
    series: [
      { label: "applied", value: (point) => point.applied_per_second, format: rate },
      { label: "published", value: (point) => point.published_per_second, format: rate },
    ],
  }),
  new Plot(byId("plot-latency"), {
    title: "Insert to read model", least: 0.02, tick: (value) => (value === 0 ? "0" : joinUnit(shortDuration(value)).replace(".0 s", " s")),
    series: [
      { label: "p50", value: (point) => point.p50_seconds, format: (value) => joinUnit(shortDuration(value)) },
      { label: "p99", value: (point) => point.p99_seconds, format: (value) => joinUnit(shortDuration(value)) },
    ],
  }),
];

/** `stale`: the status is too old to be trusted. */
function showHealth(status, stale) {
  const critical = status.problems.filter((problem) => problem.severity === "critical").length;
  const health = byId("health");
  // Nobody compares the read models with the source: "healthy" alone would promise too much.
  const unproven = ["unaudited", "unauditable"].includes(status.audit?.state) ? `, ${status.audit.state}` : "";
  const summary = status.problems.length ? plural(status.problems.length, "problem") : `healthy${unproven}`;
  setText(health, stale ? "unknown" : summary);
  health.className = stale ? "tag" : `tag ${critical ? "bad" : status.problems.length ? "warn" : "good"}`;
  const list = byId("problem-list");
  const key = JSON.stringify(status.problems);
  if (list.dataset.shown !== key) {
    // Only after a change, because a screen reader announces every update.
    list.dataset.shown = key;
    byId("problems").hidden = !status.problems.length;
    list.replaceChildren(...status.problems.map(problemItem));
  }
}

function problemItem({ severity, text, page }) {
  const item = document.createElement("li");
  item.className = severity;
  const part = (name, className, content) => Object.assign(document.createElement(name), { className, textContent: content });
  item.append(part("span", "severity", severity === "critical" ? "critical" : "warning"), part("span", "", text));
  if (page) item.append(part("span", "page", `see docs/errors/${page}.md`));
  return item;
}

function showFigures(status) {
  const { leader, lag, latency, throughput, oplog } = status;
  const unavailable = status.collected.unavailable.length > 0;
  const name = byId("leader");
  setText(name, leader ? leader.pod : unavailable ? "unknown" : "none");
  name.classList.toggle("unknown", !leader && unavailable);
  name.classList.toggle("none", !leader && !unavailable);
  const since = leader && isKnown(leader.for_seconds) ? ` · for ${twoUnits(leader.for_seconds)}, since ${dateTime(leader.since)}` : "";
  setText("leader-note", leader ? `term ${leader.term}${since}` : unavailable ? "" : "a standby takes over when the lease expires");

  setFigure("lag", isKnown(lag.seconds) ? lagDuration(lag.seconds) : null);
  const least = lag.is_lower_bound ? "at least " : "";
  setText("lag-note", isKnown(lag.events) ? `${least}${plural(lag.events, "event")}` : "events: unknown");

  const [median, unit] = latency ? shortDuration(latency.p50_seconds) : [];
  setFigure("latency", latency ? [median, `${unit} median`] : null);
  setText("latency-note", latency ? `99 % within ${joinUnit(shortDuration(latency.p99_seconds))}` : throughput.applied_per_second ? "not measured" : "no recent event");

  const { applied_per_second: applied, published_per_second: published } = throughput;
  setFigure("throughput", isKnown(applied) ? [rate(applied), "/s applied"] : null);
  setText("throughput-note", isKnown(published) ? `${rate(published)} /s published` : "");

  setFigure("headroom", isKnown(oplog.headroom_seconds) ? longDuration(Math.max(0, oplog.headroom_seconds)) : null);
  setText("headroom-note", isKnown(oplog.window_seconds) ? `the oplog spans ${joinUnit(longDuration(oplog.window_seconds))}` : "the oplog cannot be read");
}

function showPods({ pods }) {
  const most = Math.max(1, ...pods.map((pod) => (pod.silent ? 0 : pod.sessions ?? 0)));
  fillTable("pods", pods.map((pod) => row([
    cell(podName(pod)),
    serviceState(pod, "producer"),
    serviceState(pod, "consumer"),
    cell(podFigure(pod, pod.sessions, (held) => bar(held, most))),
    cell(podFigure(pod, pod.role === "leader" ? pod.published_per_second : "–", perSecond), "number roomy"),
    cell(podFigure(pod, pod.applied_per_second, perSecond), "number"),
    cell(podFigure(pod, pod.latency ?? "–", quantiles), "number wide"),
    cell(lastSeen(pod), "number"),
    cell(pod.version, "wide"),
  ], pod.silent ? "silent" : "")), "no pod has announced itself");
}

/** The last figures of a silent pod are not shown. */
const podFigure = (pod, value, format) => (pod.silent ? "–" : isKnown(value) ? format(value) : null);
const perSecond = (value) => (value === "–" ? value : `${rate(value)} /s`);
const quantiles = (latency) =>
  (latency === "–" ? latency : `${joinUnit(shortDuration(latency.p50_seconds))} / ${joinUnit(shortDuration(latency.p99_seconds))}`);

function podName(pod) {
  const name = document.createDocumentFragment();
  // The address comes from another pod: only a host and port becomes a link.
  const reachable = /^[\w.:[\]-]+:\d{1,5}$/.test(pod.address ?? "");
  const id = document.createElement(reachable && !pod.silent ? "a" : "span");
  if (id instanceof HTMLAnchorElement) id.href = `http://${pod.address}/`;
  id.className = "id";
  id.textContent = pod.id;
  name.append(id);
  if (pod.role === "leader") name.append(Object.assign(document.createElement("span"), { className: "tag lead", textContent: "leader" }));
  return name;
}

function serviceState(pod, service) {
  const problem = pod.problems.find((problem) => problem.service === service);
  const td = cell(pod.silent ? "–" : pod[service], problem ? "roomy problem" : "roomy");
  if (problem) td.title = problem.text;
  return td;
}

const lastSeen = (pod) => (pod.silent ? `silent for ${twoUnits(pod.last_seen_seconds_ago)}` : ago(Math.max(0, pod.last_seen_seconds_ago - 3)));

function bar(value, most) {
  const box = document.createElement("div");
  box.className = "bar";
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("aria-hidden", "true");
  const filled = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  filled.setAttribute("height", "100%");
  filled.setAttribute("width", `${(100 * value) / most}%`);
  drawing.append(filled);
  box.append(Object.assign(document.createElement("span"), { textContent: grouped(value) }), drawing);
  return box;
}

/** The end of a term as text. A lost term ended before the next one started. */
function termEnd({ state, ended, next_started: next }) {
  if (state === "current") return "leads";
  if (state === "ended") return dateTime(ended);
  if (state === "lost") return `crashed or lost contact${next ? `, before ${dateTime(next)}` : ""}`;
  return null;
}

function termDuration({ state, started, ended, next_started: next }) {
  const end = ended ?? next;
  if (!end) return state === "current" ? "–" : null;
  const duration = twoUnits(Math.max(0, (new Date(end) - new Date(started)) / 1_000));
  return state === "lost" ? `at most ${duration}` : duration;
}

function showTerms({ terms }) {
  const rows = terms.slice(0, 8).map((term) => {
    const pod = Object.assign(document.createElement("span"), { className: "id", textContent: term.pod });
    const end = cell(termEnd(term), term.state === "lost" ? "number problem" : "number");
    return row([cell(grouped(term.term), "number"), cell(pod), cell(dateTime(term.started)), cell(termDuration(term), "number roomy"), end]);
  });
  fillTable("terms", rows, "no term has been recorded");
}

function showAttention({ parked, rejected, subscription }) {
  const total = (list, field) => list?.reduce((sum, entry) => sum + entry[field], 0) ?? null;
  const [aggregates, events, refused] = [total(parked, "aggregates"), total(parked, "events"), total(rejected, "events")];
  setDescription("parked", isKnown(aggregates) ? (aggregates ? plural(aggregates, "aggregate") : "none") : null, aggregates > 0);
  setText("parked-note", aggregates ? `${plural(events, "event")} in ${parked.map((entry) => entry.read_model).join(", ")}` : "");
  setDescription("rejected", isKnown(refused) ? (refused ? plural(refused, "event") : "none") : null, refused > 0);
  setText("rejected-note", refused ? rejected.map((entry) => `${entry.reason} ${grouped(entry.events)}`).join(", ") : "");
  const deadLetters = subscription.dead_letters;
  setDescription("dead-letters", isKnown(deadLetters) ? (deadLetters ? grouped(deadLetters) : "none") : null, deadLetters > 0);
}

function showAudit({ audit }) {
  const bad = Boolean(audit && (audit.missing || (audit.round?.found ?? 0) + (audit.last?.found ?? 0)));
  setDescription("audit", audit ? auditText(audit) : null, bad);
  setText("audit-note", audit ? auditNote(audit) : "");
}

function auditText({ state, missing, round, last }) {
  if (missing) return `events missing in ${plural(missing, "aggregate")}`;
  const found = (round?.found ?? 0) + (last?.found ?? 0);
  if (found) return `${plural(found, "aggregate")} healed`;
  return { pending: "not started", walking: "comparing", waiting: "waiting", resting: "nothing missing" }[state] ?? state;
}

function auditNote({ state, reason, suspects, round, last }) {
  if (state === "unauditable") return reason;
  const ended = last && isKnown(last.ended_seconds_ago) ? `last round ${ago(last.ended_seconds_ago)}: ${plural(last.compared, "aggregate")}` : "no round has ended yet";
  if (state === "unaudited" || state === "pending") return "";
  const now = round ? `now ${plural(round.compared, "aggregate")}` : "";
  const waits = state === "waiting" ? `, waits for the ${reason} of ${plural(suspects, "aggregate")}` : "";
  return now ? `${now}${waits}; ${ended}` : ended;
}

function showCheckpoint({ checkpoint, subscription }) {
  const snapshot = checkpoint && isKnown(checkpoint.scanned) ? `, ${plural(checkpoint.scanned, "document")} read` : "";
  setDescription("phase", checkpoint ? `${checkpoint.phase}${snapshot}` : null);
  setDescription("saved", checkpoint && isKnown(checkpoint.saved_seconds_ago) ? `${ago(checkpoint.saved_seconds_ago)}, by ${checkpoint.saved_by}` : null);
  setDescription("epoch", checkpoint ? `${checkpoint.epoch}` : null);
  setDescription("active-messages", isKnown(subscription.active_messages) ? plural(subscription.active_messages, "message") : null);
}

function show(status) {
  setText("pipeline", status.pipeline);
  showFigures(status);
  showPods(status);
  showTerms(status);
  showReadModels(status);
  showAttention(status);
  showAudit(status);
  showCheckpoint(status);
  setText("collected", `collected by ${status.collected.by} at ${clockTime(status.collected.at)}`);
}

// The refresh loop

const points = [];
let last = null;
let requestFailed = false;

function addPoint(point) {
  const time = Date.parse(point.at);
  if (points.length && time <= points.at(-1).time) return;
  points.push({ ...point, time });
  while (points[0].time < time - HISTORY_SPAN) points.shift();
}

const pointOf = (status) => ({
  at: status.collected.at,
  term: status.leader?.term ?? null,
  lag_seconds: status.lag.seconds,
  published_per_second: status.throughput.published_per_second,
  applied_per_second: status.throughput.applied_per_second,
  p50_seconds: status.latency?.p50_seconds ?? null,
  p99_seconds: status.latency?.p99_seconds ?? null,
});

/** The age of the figures is the time since they were received, plus their age at that time. */
function showFreshness() {
  const since = last ? (performance.now() - last.receivedAt) / 1_000 : Infinity;
  const noResponse = requestFailed || since > RESPONSE_LIMIT;
  const age = last ? last.status.collected.seconds_ago + since : null;
  const stale = noResponse || age > STATUS_AGE_LIMIT;
  document.body.className = stale ? "stale" : "fresh";
  setText("freshness", !last ? "no response" : noResponse ? `no response for ${twoUnits(since)}` : stale ? `not updated for ${twoUnits(age)}` : "live");
  if (!last) return;
  const { leader, pipeline } = last.status;
  const title = stale ? "no response" : leader ? `${leader.pod} leads` : "no leader";
  document.title = `${title} · ${pipeline} · Headwater`;
  showHealth(last.status, stale);
}

async function getJson(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5_000) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function refresh() {
  try {
    const status = await getJson(ofPipeline("/api/status"));
    last = { receivedAt: performance.now(), status };
    requestFailed = false;
    addPoint(pointOf(status));
    show(status);
    updateOperatorPanel(status);
    const now = Date.parse(status.collected.at);
    plots.forEach((plot) => plot.show(points, now));
  } catch (error) {
    requestFailed = true;
    console.debug(error);
  }
  showFreshness();
  setTimeout(refresh, REFRESH_INTERVAL);
}

await initPipelines().catch((error) => console.debug(error));
try {
  (await getJson(ofPipeline("/api/history"))).forEach(addPoint);
} catch (error) {
  console.debug(error);
}
const updateOperatorPanel = await initOperatorPanel().catch(() => () => {});
refresh();
// Also while a request is pending.
setInterval(showFreshness, REFRESH_INTERVAL / 2);
