// The read models: state, generation, progress of a build, last comparison with the source; and the buttons of an operator.
import { button } from "./dialog.js";
import { byId, cell, row, setText } from "./elements.js";
import { ago, grouped, isKnown, plural, twoUnits } from "./format.js";

const STATES = { complete: "good", incomplete: "warn", building: "plan", removed: "" };

const rows = new Map();
let operator = null;
let latest = null;

/** Shows the buttons of an operator, or removes them. `actions`: { rebuild, rollback, cancel, verify }, or null. */
export function setReadModelActions(actions) {
  operator = actions;
  byId("models").classList.toggle("read-only", !actions);
  if (latest) showReadModels(latest);
}

export function showReadModels(status) {
  latest = status;
  const body = byId("models").tBodies[0];
  const models = status.read_models;
  const names = new Set(models.map((model) => model.name));
  [...rows].filter(([name]) => !names.has(name)).forEach(([name, made]) => {
    made.line.remove();
    rows.delete(name);
  });
  byId("no-models").hidden = models.length > 0;
  models.forEach((model, at) => {
    if (!rows.has(model.name)) rows.set(model.name, makeRow(model.name));
    const made = rows.get(model.name);
    // In place, so that a click or the focus is never lost.
    if (body.rows[at] !== made.line) body.insertBefore(made.line, body.rows[at] ?? null);
    updateRow(made, model, status.generation);
  });
  showGeneration(status.generation);
}

function makeRow(name) {
  const span = (className = "") => Object.assign(document.createElement("span"), { className });
  const parts = { state: span("tag"), documents: span(), applied: span(), parked: span(), verified: span(), note: span("note") };
  const choices = Object.assign(document.createElement("div"), { className: "choices" });
  const make = (text, label, run, className) => {
    const made = button(text, `${label} ${name}`, () => operator?.[run](name), className);
    choices.append(made);
    return made;
  };
  parts.verify = make("Verify …", "verify", "verify");
  parts.rebuild = make("Rebuild …", "rebuild", "rebuild");
  parts.rollback = make("Roll back …", "roll back", "rollback");
  const state = document.createDocumentFragment();
  state.append(parts.state, parts.note);
  const id = Object.assign(span("id"), { textContent: name });
  parts.line = row([cell(id), cell(parts.documents, "number"), cell(parts.applied, "number roomy"), cell(parts.parked, "number roomy"), cell(state), cell(parts.verified, "roomy verified"), cell(choices, "number actions")]);
  return parts;
}

function setKnown(element, value, format) {
  element.classList.toggle("unknown", !isKnown(value));
  setText(element, isKnown(value) ? format(value) : "unknown");
}

function updateRow(parts, model, generation) {
  setKnown(parts.state, model.state, (state) => state);
  parts.state.className = `tag ${STATES[model.state] ?? ""}`;
  setText(parts.note, model.incomplete ? model.incomplete.reason : "");
  setKnown(parts.documents, model.documents, grouped);
  setKnown(parts.applied, model.applied_seconds_ago, ago);
  setKnown(parts.parked, model.parked_aggregates, grouped);
  const result = model.verification;
  setText(parts.verified, result ? verifiedText(result) : "never");
  parts.verified.className = result && result.different > result.repaired ? "problem" : result ? "" : "quiet";
  parts.verified.title = result ? verifiedTitle(result) : "";
  const idle = generation?.stage === "active" && !generation.request;
  const serves = ["complete", "incomplete"].includes(model.state);
  parts.verify.disabled = !serves;
  parts.rebuild.disabled = !serves || !idle;
  parts.rollback.disabled = !idle || !model.has_previous;
}

function verifiedText({ seconds_ago: seconds, compared, different, repaired }) {
  const found = different ? `${plural(different, "document")} differed${repaired ? `, ${grouped(repaired)} repaired` : ""}` : `${grouped(compared)} equal`;
  return `${found}, ${ago(seconds)}`;
}

function verifiedTitle({ by, scope, compared, skipped, kinds }) {
  const found = Object.entries(kinds).map(([kind, count]) => `${kind}: ${grouped(count)}`);
  return [`by ${by}`, scope, `${grouped(compared)} compared, ${grouped(skipped)} skipped`, ...found].join("\n");
}

function showGeneration(generation) {
  byId("generation").classList.toggle("unknown", !generation);
  setText("generation", generation ? `generation ${generation.number}` : "generation unknown");
  const stage = byId("generation-stage");
  stage.hidden = !generation;
  if (!generation) return;
  setText(stage, generation.request && generation.stage === "active" ? "requested" : generation.stage).className = `tag ${generation.problem ? "bad" : generation.stage === "active" && !generation.request ? "good" : "plan"}`;
  setText("generation-problem", generation.problem ?? "");
  const { built_aggregates: built, total_aggregates: total, built_events: events, seconds_left: left, replication_lag_seconds: lag, build_paused: paused = false } = generation;
  const building = generation.stage === "building" && isKnown(built);
  byId("build").hidden = !building;
  if (building) {
    const bar = byId("build-bar");
    bar.max = Math.max(total ?? 0, built, 1);
    bar.value = built;
    const rest = paused ? "; paused" : isKnown(lag) ? `; paused: the secondaries of the source are ${twoUnits(lag)} behind` : isKnown(left) ? `, about ${twoUnits(left)} left` : "";
    setText("build-note", `${grouped(built)} of about ${plural(total ?? built, "aggregate")}${isKnown(events) ? `, ${plural(events, "event")}` : ""}${rest}`);
  }
  const pause = byId("pause-build");
  pause.hidden = !operator || (!building && !paused);
  setText(pause, paused ? "Resume the build" : "Pause the build").value = paused ? "resume" : "pause";
  setText("request-note", generation.request ? generation.request : "");
  byId("cancel-change").hidden = !operator || (generation.stage === "active" && !generation.request);
  byId("cancel-change").disabled = generation.stage === "switching";
}
