// The sessions, rules and settings of an entity.
import { brokerNow, get } from "./api.js";
import { bodyView } from "./body.js";
import { button } from "./dialog.js";
import { byId, cell, fillTable, row, setText } from "./elements.js";
import { hrefOf } from "./entities.js";
import { ago, bytes, dateTime, grouped, plural, twoUnits } from "./format.js";
import { filterSession, showMessages } from "./messages.js";

const PAGE = 100;

let sessionRows = PAGE;
let ruleRows = PAGE;
let entityShown = null;

export function initTables() {
  byId("more-sessions").addEventListener("click", () => {
    sessionRows += PAGE;
    return showSessions(entityShown);
  });
  byId("more-rules").addEventListener("click", () => {
    ruleRows += PAGE;
    return showRules(entityShown);
  });
}

function start(entity) {
  if (entity.path !== entityShown?.path) {
    sessionRows = ruleRows = PAGE;
    byId("session-state").hidden = true;
  }
  entityShown = entity;
}

/** Rows up to a number, some hundred at a time. */
async function load(name, path, count, field) {
  const rows = [];
  let answer;
  do {
    answer = await get(name, { path, skip: rows.length, top: Math.min(500, count - rows.length) });
    rows.push(...answer[field]);
  } while (answer.more && rows.length < count);
  return { rows, more: answer.more, total: answer.total };
}

const id = (text) => Object.assign(document.createElement("span"), { className: "id", textContent: text });

export async function showSessions(entity) {
  start(entity);
  const { rows, more, total } = await load("sessions", entity.path, sessionRows, "sessions");
  fillTable("sessions", rows.map((session) => {
    const buttons = Object.assign(document.createElement("div"), { className: "choices" });
    if (session.messages) buttons.append(button("Messages", `messages of session ${session.id}`, () => openSession(entity, session.id)));
    if (session.state) buttons.append(button("State", `state of session ${session.id}`, () => showState(entity, session)));
    const lock = session.locked_until ? `until ${dateTime(session.locked_until)}` : "free";
    const state = session.state ? `${bytes(session.state.bytes)}, set ${ago(Math.max(0, (brokerNow() - session.state.updated_at) / 1_000))}` : "none";
    return row([cell(id(session.id)), cell(grouped(session.messages), "number"), cell(lock), cell(state), cell(buttons, "number")]);
  }), "no session has messages, a state or a receiver");
  setText("sessions-range", rows.length ? `${grouped(rows.length)} of ${plural(total, "session")}` : "");
  byId("more-sessions").hidden = !more;
}

async function openSession(entity, session) {
  location.hash = hrefOf(entity.path, "messages");
  await showMessages(entity, "main");
  filterSession(session);
  byId("session").dispatchEvent(new Event("change"));
}

async function showState(entity, session) {
  const { state } = await get("session-state", { path: entity.path, session: session.id });
  const box = byId("session-state");
  const title = Object.assign(document.createElement("h3"), { textContent: `State of session ${session.id}`, tabIndex: -1 });
  box.replaceChildren(title, state ? bodyView(state, `State of session ${session.id}`) : "The session has no state any more.");
  box.hidden = false;
  title.focus();
}

export async function showRules(entity) {
  start(entity);
  const { rows, more } = await load("rules", entity.path, ruleRows, "rules");
  fillTable("rules", rows.map((rule) => {
    const kind = Object.assign(document.createElement("span"), { className: "tag", textContent: rule.kind === "sql" ? "SQL" : rule.kind });
    const filter = document.createElement("span");
    filter.append(kind, " ", Object.assign(document.createElement("span"), { className: rule.kind === "sql" ? "id" : "", textContent: rule.filter }));
    return row([cell(id(rule.name)), cell(filter), cell(rule.action ? id(rule.action) : "none")]);
  }), "no rules: the subscription gets no message");
  byId("more-rules").hidden = !more;
}

export async function showSettings(entity) {
  start(entity);
  const details = await get("entity", { path: entity.path });
  const duration = (millis) => (millis === null || millis > 3_153_600_000_000 ? "never" : twoUnits(millis / 1_000));
  const yes = (value) => (value ? "yes" : "no");
  const { send, receive } = details;
  const pairs = [["Status", details.status.replaceAll("_", " ")], ["Messages expire after", duration(details.time_to_live_ms)]];
  if (send) pairs.push(["Maximum size", bytes(send.max_size_bytes)], ["Partitioned", yes(send.partitioned)], ["Duplicate detection", send.duplicate_detection_ms === null ? "no" : `within ${duration(send.duplicate_detection_ms)}`]);
  if (receive) {
    pairs.push(["Lock duration", duration(receive.lock_duration_ms)], ["Maximum deliveries", grouped(receive.max_delivery_count)], ["Requires sessions", yes(details.requires_session)],
      ["Dead-letters expired messages", yes(receive.dead_letters_expired)], ["Forwards to", receive.forward_to ?? "nothing"], ["Forwards dead letters to", receive.forward_dead_letters_to ?? "nothing"]);
  }
  if (details.user_metadata) pairs.push(["User metadata", details.user_metadata]);
  pairs.push(["Created", dateTime(details.created_at)], ["Changed", dateTime(details.updated_at)], ["Last used", details.accessed_at ? dateTime(details.accessed_at) : "never"]);
  byId("settings").replaceChildren(...pairs.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: value }));
    return pair;
  }));
}
