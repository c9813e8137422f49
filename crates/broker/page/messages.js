// The messages of a queue or of one of its dead-letter queues, page by page, and what can be done with them.
import { brokerNow, canAct, get, post } from "./api.js";
import { askConfirmation } from "./dialog.js";
import { byId, cell, fillTable, row, setText } from "./elements.js";
import { topicOf } from "./entities.js";
import { ago, bytes, dateTime, grouped, plural } from "./format.js";
import { showMessage } from "./message.js";

const PAGE = 50;

/** What is shown. `from` is the first sequence number of the page. */
let view = { entity: null, subqueue: "main", from: "", next: null, rows: [], open: null };
const selected = new Map();
let page;

export function initMessages(hooks) {
  page = hooks;
  byId("state").addEventListener("change", restart);
  byId("session").addEventListener("change", restart);
  byId("refresh").addEventListener("click", refreshMessages);
  byId("first").addEventListener("click", restart);
  byId("next").addEventListener("click", () => {
    view.from = view.next;
    view.open = null;
    return refreshMessages();
  });
  byId("all").addEventListener("change", () => {
    selected.clear();
    if (byId("all").checked) view.rows.forEach((message) => selected.set(message.sequence, message));
    showRows();
  });
  byId("resubmit").addEventListener("click", () => resubmit([...selected.values()]));
  byId("dead-letter").addEventListener("click", () => deadLetter([...selected.values()]));
  byId("delete").addEventListener("click", () => remove([...selected.values()]));
  byId("purge").addEventListener("click", purge);
  byId("resubmit-all").addEventListener("click", resubmitAll);
}

function restart() {
  view.from = "";
  view.open = null;
  selected.clear();
  return refreshMessages();
}

const isDeadLetters = () => view.subqueue !== "main";
const where = () => ({ path: view.entity.path, subqueue: view.subqueue });
const filter = () => ({ state: isDeadLetters() ? "" : byId("state").value, session: view.entity.requires_session && !isDeadLetters() ? byId("session").value : "" });
/** The name of what is shown, for questions. */
const place = () => `${isDeadLetters() ? "dead letters of " : ""}${view.entity.path}`;

/** Shows the messages of an entity. Another entity starts at its first page. */
export function showMessages(entity, subqueue) {
  const same = view.entity?.path === entity.path && view.subqueue === subqueue;
  view.entity = entity;
  if (same) return refreshMessages();
  byId("state").value = entity.kind === "topic" ? "scheduled" : "";
  byId("session").value = "";
  view.subqueue = subqueue;
  byId("message").hidden = true;
  return restart();
}

/** Shows the messages of one session. */
export function filterSession(id) {
  byId("session").value = id;
}

export async function refreshMessages() {
  const { entity } = view;
  byId("state").parentElement.hidden = isDeadLetters() || entity.kind === "topic";
  byId("session-filter").hidden = isDeadLetters() || !entity.requires_session;
  const asked = [entity.path, view.subqueue, view.from].join();
  const answer = await get("messages", { ...where(), ...filter(), from: view.from, top: PAGE });
  // Another entity was chosen in the meantime.
  if (asked !== [view.entity.path, view.subqueue, view.from].join()) return;
  // The last message of this page is gone: go back to the first.
  if (!answer.messages.length && view.from) return restart();
  view.rows = answer.messages;
  view.next = answer.next;
  const present = new Set(view.rows.map((message) => message.sequence));
  [...selected.keys()].filter((sequence) => !present.has(sequence)).forEach((sequence) => selected.delete(sequence));
  showRows();
  if (view.open && !present.has(view.open)) closeMessage();
}

function showRows() {
  const { rows } = view;
  byId("messages").className = `${view.subqueue} ${view.entity.requires_session ? "" : "no-sessions"} ${canAct() ? "" : "read-only"}`;
  const empty = isDeadLetters() ? "no dead letters" : view.entity.kind === "topic" ? "no scheduled messages" : filter().state || filter().session ? "no message matches" : "no messages";
  const focused = document.activeElement?.closest("#messages tbody tr")?.dataset.sequence;
  const focusedTick = document.activeElement?.type === "checkbox";
  fillTable("messages", rows.map(messageRow), empty);
  if (focused) byId("messages").querySelector(`tr[data-sequence="${focused}"] ${focusedTick ? "input" : "button"}`)?.focus();
  const all = byId("all");
  all.checked = rows.length > 0 && selected.size === rows.length;
  all.indeterminate = selected.size > 0 && selected.size < rows.length;
  byId("first").hidden = !view.from;
  byId("next").hidden = !view.next;
  setText("range", rows.length ? `${plural(rows.length, "message")} from ${rows[0].sequence}${selected.size ? ` · ${grouped(selected.size)} selected` : ""}` : "");
  showActions();
}

function showActions() {
  const act = canAct();
  const none = selected.size === 0;
  const scheduled = [...selected.values()].some((message) => message.state === "scheduled");
  for (const id of ["resubmit", "dead-letter", "delete", "purge", "resubmit-all"]) byId(id).hidden = !act;
  byId("resubmit").hidden = !act || !isDeadLetters();
  byId("resubmit-all").hidden = !act || !isDeadLetters();
  byId("dead-letter").hidden = !act || isDeadLetters() || view.entity.kind === "topic";
  byId("resubmit").disabled = none;
  byId("delete").disabled = none;
  byId("dead-letter").disabled = none || scheduled;
  byId("purge").disabled = byId("resubmit-all").disabled = view.rows.length === 0;
}

function messageRow(message) {
  const tick = Object.assign(document.createElement("input"), { type: "checkbox", checked: selected.has(message.sequence) });
  tick.setAttribute("aria-label", `select message ${message.sequence}`);
  tick.addEventListener("change", () => {
    if (tick.checked) selected.set(message.sequence, message);
    else selected.delete(message.sequence);
    showRows();
  });
  const open = Object.assign(document.createElement("button"), { type: "button", className: "link id", textContent: message.sequence });
  open.setAttribute("aria-label", `show message ${message.sequence}`);
  open.setAttribute("aria-expanded", String(view.open === message.sequence));
  open.addEventListener("click", (event) => {
    event.stopPropagation();
    openMessage(message);
  });
  const state = Object.assign(document.createElement("span"), { className: "states" });
  const tag = (text, kind = "") => state.append(Object.assign(document.createElement("span"), { className: `tag ${kind}`, textContent: text }));
  tag(isDeadLetters() ? "dead letter" : message.state, isDeadLetters() ? "bad" : { deferred: "warn", scheduled: "plan" }[message.state] ?? "good");
  if (message.locked) tag("locked");
  const reason = Object.assign(document.createElement("span"), { textContent: message.dead_letter_reason ?? "none", title: message.dead_letter_description ?? "" });
  const seconds = (brokerNow() - message.enqueued_at) / 1_000;
  const time = Object.assign(document.createElement("time"), { textContent: message.state === "scheduled" ? dateTime(message.scheduled_for) : ago(Math.max(0, seconds)), title: new Date(message.enqueued_at).toISOString() });
  const made = row([
    cell(tick, "check"), cell(open, "number"), cell(text(message.message_id), "clip"), cell(text(message.subject), "clip roomy"), cell(text(message.session_id), "session clip roomy"),
    cell(reason, "reason clip"), cell(state), cell(grouped(message.delivery_count), "number roomy"), cell(bytes(message.size), "number wide"), cell(time, "number roomy"),
  ], view.open === message.sequence ? "open" : "");
  made.dataset.sequence = message.sequence;
  made.addEventListener("click", (event) => {
    if (!event.target.closest("input, button, .check")) openMessage(message);
  });
  return made;
}

/** Text that may be absent: a dash, not "unknown". */
const text = (value) => Object.assign(document.createElement("span"), { textContent: value ?? "–", title: value ?? "" });

async function openMessage(message) {
  if (view.open === message.sequence) return closeMessage();
  try {
    const details = await get("message", { ...where(), sequence: message.sequence, session: view.entity.requires_session && !isDeadLetters() ? message.session_id : "" });
    view.open = message.sequence;
    showRows();
    const actions = canAct() ? { isDeadLetter: isDeadLetters(), resubmit, deadLetter, remove } : null;
    showMessage(details, { ...where(), target: target(), requiresSession: view.entity.requires_session }, actions, page, closeMessage);
  } catch (error) {
    page.showNote(error.message, "bad");
    await refreshMessages();
  }
  return undefined;
}

function closeMessage() {
  view.open = null;
  byId("message").hidden = true;
  showRows();
}

// Actions

const target = () => (view.entity.kind === "subscription" ? topicOf(view.entity.path) : view.entity.path);
const selectors = (messages) => messages.map(({ sequence, session_id: session }) => ({ sequence, session }));
const left = ({ unchanged }) => (unchanged ? `; ${grouped(unchanged)} unchanged: a receiver holds them, or they are gone` : "");

/** Runs an action and shows its result or why it was refused. */
async function act(run, describe) {
  try {
    page.showNote("…");
    const result = await run();
    selected.clear();
    page.showNote(`${describe(result)}${left(result)}${result.problem ? `; stopped: ${result.problem}` : ""}`, result.problem ? "bad" : "");
  } catch (error) {
    page.showNote(error.message, "bad");
  }
  await page.refreshNow();
}

async function resubmit(messages) {
  const others = view.entity.kind === "subscription" ? " The topic gives each message to every subscription whose rules match, not only to this one." : "";
  const question = `Resubmit ${plural(messages.length, "dead letter")}?`;
  const explanation = `Each message is sent to ${target()} as it was first sent, and removed here.${others}`;
  if (!await askConfirmation(question, explanation, [["Resubmit", "yes"]])) return;
  await act(() => post("resubmit", { ...where(), messages: selectors(messages) }), (result) => `${plural(result.resubmitted, "message")} resubmitted to ${target()}`);
}

async function deadLetter(messages) {
  byId("confirm-fields").hidden = false;
  byId("reason").value = byId("description").value = "";
  const chosen = await askConfirmation(`Dead-letter ${plural(messages.length, "message")}?`, "No receiver gets a dead letter. It can be resubmitted later.", [["Dead-letter", "yes"]]);
  byId("confirm-fields").hidden = true;
  if (!chosen) return;
  const [reason, description] = [byId("reason").value, byId("description").value];
  await act(() => post("dead-letter", { ...where(), messages: selectors(messages), reason, description }), (result) => `${plural(result.dead_lettered, "message")} dead-lettered`);
}

async function remove(messages) {
  const text = "A deleted message cannot be brought back. Scheduled messages are cancelled.";
  if (!await askConfirmation(`Delete ${plural(messages.length, "message")}?`, text, [["Delete", "yes", "danger"]])) return;
  await act(() => post("delete", { ...where(), messages: selectors(messages) }), (result) => `${plural(result.deleted, "message")} deleted`);
}

async function purge() {
  const { state, session } = filter();
  const kind = [state, "messages", session ? `of session ${session}` : ""].filter(Boolean).join(" ");
  const question = isDeadLetters() ? `Purge all ${place()}?` : `Purge all ${kind} of ${view.entity.path}?`;
  const text = "Deleted messages cannot be brought back. Messages that a receiver holds stay.";
  if (!await askConfirmation(question, text, [["Purge", "yes", "danger"]])) return;
  await act(async () => {
    let deleted = 0;
    for (;;) {
      // The broker deletes a part at a time, so that other clients do not wait.
      const part = await post("purge", { ...where(), state: state || null, session: session || null });
      deleted += part.deleted;
      if (!part.deleted) return { deleted };
      page.showNote(`${plural(deleted, "message")} deleted …`);
    }
  }, (result) => `${plural(result.deleted, "message")} deleted from ${place()}`);
}

async function resubmitAll() {
  const question = `Resubmit all ${place()}?`;
  if (!await askConfirmation(question, `Each message is sent to ${target()} as it was first sent, and removed here. Dead letters that arrive later stay.`, [["Resubmit all", "yes"]])) return;
  await act(async () => {
    let [resubmitted, from, last] = [0, "", null];
    for (;;) {
      const part = await post("resubmit-all", { ...where(), from, last });
      resubmitted += part.resubmitted;
      if (part.problem || !part.next) return { resubmitted, problem: part.problem };
      [from, last] = [part.next, part.last];
      page.showNote(`${plural(resubmitted, "message")} resubmitted …`);
    }
  }, (result) => `${plural(result.resubmitted, "message")} resubmitted to ${target()}`);
}
