// Shows /api/status, every second. Whatever comes from outside is set as text, never as markup.
import { unlockable } from "/operator.js";
import { byId, cell, fill, row, say, sayFigure, sayTerm } from "/elements.js";
import { Plot } from "/plot.js";
import { ago, behind, clock, grouped, joined, known, long, moment, plural, rate, short, span } from "/format.js";

const EVERY = 1_000;
const SPAN = 300_000;
// A pod answers in milliseconds; one that has not for so long may be gone, whatever its last answer said.
const ANSWERED_WITHIN = 3;
const GATHERED_WITHIN = 10;

// The parts of the page

const plots = [
  new Plot(byId("plot-lag"), {
    title: "Lag", least: 4, tick: (value) => `${grouped(value, value % 1 ? 1 : 0)} s`,
    series: [{ label: "", value: (point) => point.lag_seconds, format: (value) => joined(behind(value)) }],
  }),
  new Plot(byId("plot-throughput"), {
    title: "Events / s", least: 4, tick: (value) => (value >= 10_000 ? `${grouped(value / 1_000)} k` : grouped(value, value % 1 ? 1 : 0)),
    series: [
      { label: "applied", value: (point) => point.applied_per_second, format: rate },
      { label: "published", value: (point) => point.published_per_second, format: rate },
    ],
  }),
  new Plot(byId("plot-latency"), {
    title: "Insert to read model", least: 0.02, tick: (value) => (value === 0 ? "0" : joined(short(value)).replace(".0 s", " s")),
    series: [
      { label: "p50", value: (point) => point.p50_seconds, format: (value) => joined(short(value)) },
      { label: "p99", value: (point) => point.p99_seconds, format: (value) => joined(short(value)) },
    ],
  }),
];

/** `stale`: nobody knows whether it is still so. */
function showHealth(status, stale) {
  const critical = status.problems.filter((problem) => problem.severity === "critical").length;
  const health = byId("health");
  const words = status.problems.length ? plural(status.problems.length, "problem") : "healthy";
  say(health, stale ? "unknown" : words);
  health.className = stale ? "tag" : `tag ${critical ? "bad" : status.problems.length ? "warn" : "good"}`;
  const list = byId("problem-list");
  const key = JSON.stringify(status.problems);
  if (list.dataset.shown !== key) {
    // Only when something changed: a screen reader tells every change.
    list.dataset.shown = key;
    byId("problems").hidden = !status.problems.length;
    list.replaceChildren(...status.problems.map(problemItem));
  }
}

function problemItem({ severity, text, page }) {
  const item = document.createElement("li");
  item.className = severity;
  const part = (name, className, content) => Object.assign(document.createElement(name), { className, textContent: content });
  item.append(part("span", "word", severity === "critical" ? "critical" : "warning"), part("span", "", text));
  if (page) item.append(part("span", "page", `what to do: docs/errors/${page}.md`));
  return item;
}

function showFigures(status) {
  const { leader, lag, latency, throughput, oplog } = status;
  const unread = status.collected.unavailable.length > 0;
  const name = byId("leader");
  say(name, leader ? leader.pod : unread ? "unknown" : "nobody");
  name.classList.toggle("unknown", !leader && unread);
  name.classList.toggle("none", !leader && !unread);
  const since = leader && known(leader.for_seconds) ? ` · for ${long(leader.for_seconds)}, since ${moment(leader.since)}` : "";
  say("leader-note", leader ? `term ${leader.term}${since}` : unread ? "" : "a standby takes over when the lease has run out");

  sayFigure("lag", known(lag.seconds) ? behind(lag.seconds) : null);
  const least = lag.is_lower_bound ? "at least " : "";
  say("lag-note", known(lag.events) ? `${least}${plural(lag.events, "event")}` : "events: unknown");

  const [median, unit] = latency ? short(latency.p50_seconds) : [];
  sayFigure("latency", latency ? [median, `${unit} median`] : null);
  say("latency-note", latency ? `99 % within ${joined(short(latency.p99_seconds))}` : throughput.applied_per_second ? "not measured" : "no event lately");

  const { applied_per_second: applied, published_per_second: published } = throughput;
  sayFigure("throughput", known(applied) ? [rate(applied), "/s applied"] : null);
  say("throughput-note", known(published) ? `${rate(published)} /s published` : "");

  sayFigure("headroom", known(oplog.headroom_seconds) ? span(Math.max(0, oplog.headroom_seconds)) : null);
  say("headroom-note", known(oplog.window_seconds) ? `the oplog spans ${joined(span(oplog.window_seconds))}` : "the oplog cannot be read");
}

function showPods({ pods }) {
  const most = Math.max(1, ...pods.map((pod) => (pod.silent ? 0 : pod.sessions ?? 0)));
  fill("pods", pods.map((pod) => row([
    cell(podName(pod)),
    state(pod, "producer"),
    state(pod, "consumer"),
    cell(told(pod, pod.sessions, (held) => bar(held, most))),
    cell(told(pod, pod.role === "leader" ? pod.published_per_second : "–", perSecond), "number roomy"),
    cell(told(pod, pod.applied_per_second, perSecond), "number"),
    cell(told(pod, pod.latency ?? "–", quantiles), "number wide"),
    cell(seen(pod), "number"),
    cell(pod.version, "wide"),
  ], pod.silent ? "silent" : "")), "no pod has announced itself");
}

/** What a pod last said is not worth showing once it is silent. */
const told = (pod, value, words) => (pod.silent ? "–" : known(value) ? words(value) : null);
const perSecond = (value) => (value === "–" ? value : `${rate(value)} /s`);
const quantiles = (latency) =>
  (latency === "–" ? latency : `${joined(short(latency.p50_seconds))} / ${joined(short(latency.p99_seconds))}`);

function podName(pod) {
  const name = document.createDocumentFragment();
  // An address is somebody else's word: only what looks like one becomes a link.
  const reachable = /^[\w.:[\]-]+:\d{1,5}$/.test(pod.address ?? "");
  const id = document.createElement(reachable && !pod.silent ? "a" : "span");
  if (id instanceof HTMLAnchorElement) id.href = `http://${pod.address}/`;
  id.className = "id";
  id.textContent = pod.id;
  name.append(id);
  if (pod.role === "leader") name.append(Object.assign(document.createElement("span"), { className: "tag lead", textContent: "leader" }));
  return name;
}

function state(pod, service) {
  const problem = pod.problems.find((problem) => problem.service === service);
  const td = cell(pod.silent ? "–" : pod[service], problem ? "roomy problem" : "roomy");
  if (problem) td.title = problem.text;
  return td;
}

const seen = (pod) => (pod.silent ? `silent for ${long(pod.last_seen_seconds_ago)}` : ago(Math.max(0, pod.last_seen_seconds_ago - 3)));

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

function showTerms({ terms, leader }) {
  const shown = terms.slice(0, 8).map((term, n) => {
    const end = term.ended ?? terms[n - 1]?.started;
    const leads = leader?.term === term.term;
    const pod = document.createElement("span");
    pod.className = "id";
    pod.textContent = term.pod;
    const lasted = end ? long(Math.max(0, (new Date(end) - new Date(term.started)) / 1_000)) : leads ? "leads" : null;
    return row([cell(grouped(term.term), "number"), cell(pod), cell(moment(term.started)), cell(lasted, "number")]);
  });
  fill("terms", shown, "no term has been recorded");
}

function showReadModels({ read_models: models }) {
  fill("models", models.map((model) => {
    const name = Object.assign(document.createElement("span"), { className: "id", textContent: model.name });
    return row([
      cell(name),
      cell(known(model.documents) ? grouped(model.documents) : null, "number"),
      cell(known(model.applied_seconds_ago) ? ago(model.applied_seconds_ago) : null, "number"),
      cell(known(model.parked_aggregates) ? grouped(model.parked_aggregates) : null, "number"),
    ]);
  }), "no read model is configured");
}

function showWaiting({ parked, rejected, subscription }) {
  const total = (list, field) => list?.reduce((sum, entry) => sum + entry[field], 0) ?? null;
  const [aggregates, events, refused] = [total(parked, "aggregates"), total(parked, "events"), total(rejected, "events")];
  sayTerm("parked", known(aggregates) ? (aggregates ? plural(aggregates, "aggregate") : "none") : null, aggregates > 0);
  say("parked-note", aggregates ? `${plural(events, "event")} in ${parked.map((entry) => entry.read_model).join(", ")}` : "");
  sayTerm("rejected", known(refused) ? (refused ? plural(refused, "event") : "none") : null, refused > 0);
  say("rejected-note", refused ? rejected.map((entry) => `${entry.reason} ${grouped(entry.events)}`).join(", ") : "");
  const letters = subscription.dead_letters;
  sayTerm("dead-letters", known(letters) ? (letters ? grouped(letters) : "none") : null, letters > 0);
}

function showCheckpoint({ checkpoint, subscription }) {
  const snapshot = checkpoint && known(checkpoint.scanned) ? `, ${plural(checkpoint.scanned, "document")} read` : "";
  sayTerm("phase", checkpoint ? `${checkpoint.phase}${snapshot}` : null);
  sayTerm("saved", checkpoint && known(checkpoint.saved_seconds_ago) ? `${ago(checkpoint.saved_seconds_ago)}, by ${checkpoint.saved_by}` : null);
  sayTerm("epoch", checkpoint ? `${checkpoint.epoch}` : null);
  sayTerm("bus", known(subscription.active_messages) ? plural(subscription.active_messages, "message") : null);
}

function show(status) {
  say("pipeline", status.pipeline);
  showFigures(status);
  showPods(status);
  showTerms(status);
  showReadModels(status);
  showWaiting(status);
  showCheckpoint(status);
  say("collected", `collected by ${status.collected.by} at ${clock(status.collected.at)}`);
}

// The loop

const points = [];
let last = null;
let unanswered = false;

function addPoint(point) {
  const time = Date.parse(point.at);
  if (points.length && time <= points.at(-1).time) return;
  points.push({ ...point, time });
  while (points[0].time < time - SPAN) points.shift();
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

/** Says how old the figures are: by this page's clock since they came, plus the age they had then. */
function showFreshness() {
  const since = last ? (performance.now() - last.came) / 1_000 : Infinity;
  const silent = unanswered || since > ANSWERED_WITHIN;
  const age = last ? last.status.collected.seconds_ago + since : null;
  const stale = silent || age > GATHERED_WITHIN;
  document.body.className = stale ? "stale" : "fresh";
  say("freshness", !last ? "no answer" : silent ? `no answer for ${long(since)}` : stale ? `no news for ${long(age)}` : "live");
  if (!last) return;
  const { leader, pipeline } = last.status;
  const title = stale ? "no answer" : leader ? `${leader.pod} leads` : "nobody leads";
  document.title = `${title} · ${pipeline} · Headwater`;
  showHealth(last.status, stale);
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5_000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function look() {
  try {
    const status = await ask("/api/status");
    last = { came: performance.now(), status };
    unanswered = false;
    addPoint(pointOf(status));
    show(status);
    toOperator(status);
    const now = Date.parse(status.collected.at);
    plots.forEach((plot) => plot.show(points, now));
  } catch (error) {
    unanswered = true;
    console.debug(error);
  }
  showFreshness();
  setTimeout(look, EVERY);
}

try {
  (await ask("/api/history")).forEach(addPoint);
} catch (error) {
  console.debug(error);
}
const toOperator = await unlockable().catch(() => () => {});
look();
// Also while an answer is waited for.
setInterval(showFreshness, EVERY / 2);
