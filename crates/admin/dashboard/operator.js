// The operator panel, shown if the pod has a token. The token is kept in memory only, so a reload asks for it again.
import { askConfirmation, button } from "./dialog.js";
import { byId, cell, fillTable, row, setText } from "./elements.js";
import { ago, grouped, plural } from "./format.js";
import { ofPipeline } from "./pipelines.js";
import { setReadModelActions } from "./read-models.js";

const REFRESH_INTERVAL = 3_000;

let token = null;
let leader = null;

/** Shows the panel if the pod has a token. Returns a function that takes every new status. */
export async function initOperatorPanel() {
  const response = await fetch("/api/operator", { cache: "no-store" });
  if (!(await response.json()).token) return () => {};
  byId("operator").hidden = false;
  byId("unlock").addEventListener("submit", unlock);
  byId("lock").addEventListener("click", () => lock("locked"));
  byId("step-down").addEventListener("click", stepDown);
  byId("cancel-change").addEventListener("click", cancelChange);
  byId("pause-build").addEventListener("click", pauseOrResumeBuild);
  return (status) => {
    leader = status.leader;
    byId("step-down").disabled = !leader;
  };
}

/** Sends a request with the token. Returns `null` if the token is wrong. */
async function request(path, body) {
  const method = body === undefined ? "GET" : "POST";
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const response = await fetch(ofPipeline(path), { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  if (response.status === 401) return null;
  return response.headers.get("content-type")?.startsWith("application/json") ? response.json() : { refused: await response.text() };
}

async function unlock(event) {
  event.preventDefault();
  token = byId("token").value.trim();
  const list = await request("/api/parked").catch(() => undefined);
  if (list === undefined) return showNote("no response; try again", "bad");
  if (list === null) return lock("wrong operator token", "bad");
  byId("token").value = "";
  byId("unlock").hidden = true;
  byId("actions").hidden = false;
  setReadModelActions({ verify, rebuild, rollback });
  byId("step-down").focus();
  showNote("");
  showParked(list);
  setTimeout(refreshParked, REFRESH_INTERVAL);
}

function lock(reason, kind) {
  token = null;
  setReadModelActions(null);
  byId("actions").hidden = true;
  byId("unlock").hidden = false;
  byId("token").focus();
  showNote(reason, kind);
}

function showNote(text, kind = "") {
  setText("action-note", text).className = `note ${kind}`;
}

async function refreshParked() {
  if (!token) return;
  const list = await request("/api/parked").catch(() => undefined);
  if (list === null) lock("the operator token has changed", "bad");
  else if (list) showParked(list);
  setTimeout(refreshParked, REFRESH_INTERVAL);
}

function showParked(list) {
  if (!Array.isArray(list)) return showNote(list.refused, "bad");
  const table = byId("parked-list");
  const key = JSON.stringify(list);
  // Only after a change, so that the focus stays on its button.
  if (table.dataset.shown === key) return;
  table.dataset.shown = key;
  fillTable("parked-list", list.map(parkedRow), "nothing is parked");
}

function parkedRow(entry) {
  const name = Object.assign(document.createElement("span"), { className: "id", textContent: entry.aggregate });
  const buttons = Object.assign(document.createElement("div"), { className: "choices" });
  buttons.append(button("Retry", `retry ${entry.aggregate} in ${entry.read_model}`, () => retry(entry)));
  buttons.append(button("Discard", `discard ${entry.aggregate} in ${entry.read_model}`, () => discard(entry), "danger"));
  return row([
    cell(name), cell(entry.read_model), cell(entry.reason, "roomy"), cell(grouped(entry.events), "number"),
    cell(ago((Date.now() - new Date(entry.since)) / 1_000), "number roomy"), cell(buttons, "number"),
  ]);
}

async function stepDown() {
  if (!leader) return;
  const { pod, term } = leader;
  const text = `The leader sends the events that it has read, saves the checkpoint, and ends term ${term}. Another pod takes over about a second later. Nothing is lost or published twice.`;
  if (await askConfirmation(`Make ${pod} step down?`, text, [["Step down", "step-down"]])) runAction("/api/step-down", {});
}

async function retry({ read_model, id, aggregate, events }) {
  const text = `${plural(events, "event")} of ${aggregate} will be applied to ${read_model}, in order, up to the first that still fails.`;
  if (await askConfirmation("Retry the parked events?", text, [["Retry", "retry"]])) runAction("/api/parked/retry", { read_model, id });
}

async function discard({ read_model, id, aggregate, events }) {
  const text = `${read_model} will never contain the discarded events of ${aggregate}. They stay in parked_events.`;
  const choices = [["Discard the first event", "first", "danger"]];
  if (events > 1) choices.push([`Discard all ${grouped(events)}`, "all", "danger"]);
  const chosen = await askConfirmation("Discard parked events?", text, choices);
  if (chosen) runAction("/api/parked/discard", { read_model, id, all: chosen === "all" });
}

async function verify(name) {
  const text = `500 aggregates of ${name}, chosen at random, are compared with a fold of the source. Nothing is changed. This can take a minute.`;
  if (await askConfirmation(`Verify a sample of ${name}?`, text, [["Verify", "verify"]])) runAction("/api/read-models/verify", { read_model: name });
}

async function rebuild(name) {
  const text = `The leader builds ${name} anew from the source, beside the present documents, and switches to it when it has caught up. Readers keep the present documents until then.`;
  if (await askConfirmation(`Rebuild ${name}?`, text, [["Rebuild", "rebuild"]])) runAction("/api/read-models/rebuild", { read_model: name });
}

async function rollback(name) {
  const text = `The leader builds the definition that ${name} had before its last change, and switches to it. The present configuration is left aside until it changes.`;
  if (await askConfirmation(`Roll back ${name}?`, text, [["Roll back", "rollback", "danger"]])) runAction("/api/read-models/rollback", { read_model: name });
}

async function cancelChange() {
  const text = "The leader stops the build. The present read models stay as they are.";
  if (await askConfirmation("Cancel the change?", text, [["Cancel the change", "yes", "danger"]])) runAction("/api/read-models/cancel", {});
}

/** The button says which; both can be taken back. */
function pauseOrResumeBuild() {
  runAction(`/api/read-models/build/${byId("pause-build").value}`, {});
}

async function runAction(path, body) {
  showNote("…");
  const result = await request(path, body).catch(() => ({ refused: "no response" }));
  if (result === null) return lock("the operator token has changed", "bad");
  showNote(result.done ?? result.refused, result.done ? "" : "bad");
  const list = await request("/api/parked").catch(() => undefined);
  if (list) showParked(list);
}
