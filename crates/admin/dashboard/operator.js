// What an operator may do from this page, where the pod has a token. It is kept in this page's memory: whoever loads it anew shows it anew.
import { byId, cell, fill, row, say } from "/elements.js";
import { ago, grouped, plural } from "/format.js";

const EVERY = 3_000;

let token = null;
let leader = null;

/** Shows the lock, if there is one; returns what is to be called with every status. */
export async function unlockable() {
  const answer = await fetch("/api/operator", { cache: "no-store" });
  if (!(await answer.json()).token) return () => {};
  byId("operator").hidden = false;
  byId("unlock").addEventListener("submit", unlock);
  byId("lock").addEventListener("click", () => lock("locked"));
  byId("step-down").addEventListener("click", stepDown);
  return (status) => {
    leader = status.leader;
    byId("step-down").disabled = !leader;
  };
}

/** Asks with the token. `null`: the token is not the pod's. */
async function ask(path, body) {
  const method = body === undefined ? "GET" : "POST";
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  if (answer.status === 401) return null;
  return answer.headers.get("content-type")?.startsWith("application/json") ? answer.json() : { refused: await answer.text() };
}

async function unlock(event) {
  event.preventDefault();
  token = byId("token").value.trim();
  const list = await ask("/api/parked").catch(() => undefined);
  if (list === undefined) return tell("no answer; try again", "bad");
  if (list === null) return lock("that is not this pod's token", "bad");
  byId("token").value = "";
  byId("unlock").hidden = true;
  byId("acts").hidden = false;
  byId("step-down").focus();
  tell("");
  show(list);
  setTimeout(look, EVERY);
}

function lock(why, kind) {
  token = null;
  byId("acts").hidden = true;
  byId("unlock").hidden = false;
  byId("token").focus();
  tell(why, kind);
}

function tell(text, kind = "") {
  say("act-note", text).className = `note ${kind}`;
}

async function look() {
  if (!token) return;
  const list = await ask("/api/parked").catch(() => undefined);
  if (list === null) lock("the token is no longer this pod's", "bad");
  else if (list) show(list);
  setTimeout(look, EVERY);
}

function show(list) {
  if (!Array.isArray(list)) return tell(list.refused, "bad");
  const table = byId("parked-list");
  const key = JSON.stringify(list);
  // Only when something changed: whoever stands on a button stays there.
  if (table.dataset.shown === key) return;
  table.dataset.shown = key;
  fill("parked-list", list.map(waiting), "nothing is parked");
}

function waiting(entry) {
  const name = Object.assign(document.createElement("span"), { className: "id", textContent: entry.aggregate });
  const acts = Object.assign(document.createElement("div"), { className: "choices" });
  acts.append(button("Retry", `retry ${entry.aggregate} in ${entry.read_model}`, () => retry(entry)));
  acts.append(button("Discard", `discard ${entry.aggregate} in ${entry.read_model}`, () => discard(entry), "danger"));
  return row([
    cell(name), cell(entry.read_model), cell(entry.reason, "roomy"), cell(grouped(entry.events), "number"),
    cell(ago((Date.now() - new Date(entry.since)) / 1_000), "number roomy"), cell(acts, "number"),
  ]);
}

function button(text, label, act, className = "") {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, className });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

async function stepDown() {
  if (!leader) return;
  const { pod, term } = leader;
  const text = `It sends what it has read, saves the checkpoint and gives term ${term} up; another pod leads about a second later. Nothing is lost, and nothing is published twice.`;
  if (await confirmed(`Ask ${pod} to step down?`, text, [["Step down", "step-down"]])) act("/api/step-down", {});
}

async function retry({ read_model, id, aggregate, events }) {
  const text = `${plural(events, "event")} of ${aggregate} will be applied to ${read_model}, in order. It stops at the first that still cannot be.`;
  if (await confirmed("Apply what waits?", text, [["Retry", "retry"]])) act("/api/parked/retry", { read_model, id });
}

async function discard({ read_model, id, aggregate, events }) {
  const text = `The read model ${read_model} will lack what is discarded of ${aggregate}, for good. It is kept in parked_events.`;
  const choices = [["Discard the first event", "first", "danger"]];
  if (events > 1) choices.push([`Discard all ${grouped(events)}`, "all", "danger"]);
  const chosen = await confirmed("Leave it out for good?", text, choices);
  if (chosen) act("/api/parked/discard", { read_model, id, all: chosen === "all" });
}

async function act(path, body) {
  tell("…");
  const answer = await ask(path, body).catch(() => ({ refused: "no answer" }));
  if (answer === null) return lock("the token is no longer this pod's", "bad");
  tell(answer.done ?? answer.refused, answer.done ? "" : "bad");
  const list = await ask("/api/parked").catch(() => undefined);
  if (list) show(list);
}

/** Which choice was taken; empty where none was. */
function confirmed(title, text, choices) {
  const dialog = byId("confirm");
  say("confirm-title", title);
  say("confirm-text", text);
  const close = (value) => () => dialog.close(value);
  const cancel = button("Cancel", "cancel", close(""));
  const buttons = choices.map(([words, value, className]) => button(words, words, close(value), className));
  byId("confirm-choices").replaceChildren(cancel, ...buttons);
  dialog.returnValue = "";
  dialog.showModal();
  cancel.focus();
  return new Promise((resolve) => { dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }); });
}
