// The broker's page: chooses an entity, shows its parts, refreshes every two seconds. Data is always set as text, never as markup.
import { canAct, forgetCredential, get, loadAccess, needsKey, post, Refusal, setCredential } from "./api.js";
import { openDraft } from "./draft.js";
import { byId, setText } from "./elements.js";
import { findEntity, hrefOf, initEntities, refreshEntities, shortName, topicOf } from "./entities.js";
import { bytes, grouped, plural } from "./format.js";
import { initMessages, showMessages } from "./messages.js";
import { initTables, showRules, showSessions, showSettings } from "./tables.js";

const REFRESH_INTERVAL = 2_000;

let chosen = null;
let lastCounts = "";
let timer;

// The address: #/path/tab

function parseAddress() {
  const [, path, tab] = location.hash.split("/");
  try {
    return path ? { path: decodeURIComponent(path), tab: tab ?? "" } : null;
  } catch {
    return null;
  }
}

/** The parts of an entity: [name, title, count]. */
function tabsOf(entity) {
  const tabs = [];
  if (entity.kind === "topic") tabs.push(["messages", "Scheduled", entity.scheduled]);
  else {
    tabs.push(["messages", "Messages", entity.active + entity.transfer + entity.scheduled], ["dead-letters", "Dead letters", entity.dead_letter]);
    if (entity.transfer_dead_letter || chosen.tab === "transfer-dead-letters") tabs.push(["transfer-dead-letters", "Transfer dead letters", entity.transfer_dead_letter]);
    if (entity.requires_session) tabs.push(["sessions", "Sessions", entity.sessions]);
  }
  if (entity.kind === "subscription") tabs.push(["rules", "Rules", null]);
  tabs.push(["settings", "Settings", null]);
  return tabs;
}

function showTabs(entity) {
  const list = byId("tabs");
  const tabs = tabsOf(entity);
  if (!tabs.some(([name]) => name === chosen.tab)) chosen.tab = "messages";
  const key = JSON.stringify([tabs, chosen.tab]);
  if (list.dataset.shown === key) return;
  list.dataset.shown = key;
  const hadFocus = list.contains(document.activeElement);
  list.replaceChildren(...tabs.map(([name, title, count]) => {
    const tab = Object.assign(document.createElement("button"), { type: "button", id: `tab-${name}`, textContent: title });
    tab.setAttribute("role", "tab");
    const selected = name === chosen.tab;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    if (count) tab.append(Object.assign(document.createElement("span"), { className: "tag", textContent: grouped(count) }));
    tab.addEventListener("click", () => { location.hash = hrefOf(entity.path, name); });
    return tab;
  }));
  if (hadFocus) byId(`tab-${chosen.tab}`).focus();
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const tabs = [...byId("tabs").children];
  const at = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  const next = tabs[(at + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}

const SUBQUEUES = { messages: "main", "dead-letters": "dead-letter", "transfer-dead-letters": "transfer-dead-letter" };

function showPart(entity) {
  const isList = chosen.tab in SUBQUEUES;
  for (const name of ["sessions", "rules", "settings"]) byId(`${name}-panel`).hidden = chosen.tab !== name;
  byId("messages-panel").hidden = !isList;
  byId("messages-panel").setAttribute("aria-labelledby", `tab-${isList ? chosen.tab : "messages"}`);
  if (isList) return showMessages(entity, SUBQUEUES[chosen.tab]);
  if (chosen.tab === "sessions") return showSessions(entity);
  if (chosen.tab === "rules") return showRules(entity);
  return showSettings(entity);
}

function showEntity(entity) {
  byId("nothing").hidden = true;
  byId("chosen").hidden = false;
  const title = byId("entity-title");
  const topic = entity.kind === "subscription" ? topicOf(entity.path) : "";
  const prefix = Object.assign(document.createElement("span"), { className: "topic", textContent: topic ? `${topic} / ` : "" });
  title.replaceChildren(prefix, shortName(entity));
  const tags = [[entity.kind, ""]];
  if (entity.requires_session) tags.push(["sessions", ""]);
  if (entity.status !== "active") tags.push([entity.status.replaceAll("_", " "), "warn"]);
  byId("entity-tags").replaceChildren(...tags.map(([text, kind]) => Object.assign(document.createElement("span"), { className: `tag ${kind}`, textContent: text })));
  const counts = entity.kind === "topic"
    ? [["Subscriptions", grouped(entity.subscriptions)], ["Scheduled", grouped(entity.scheduled)], ["Size", bytes(entity.bytes)]]
    : [["Active", grouped(entity.active)], ["Dead letters", grouped(entity.dead_letter), entity.dead_letter > 0], ["Scheduled", entity.kind === "queue" ? grouped(entity.scheduled) : null],
      ["To forward", entity.transfer ? grouped(entity.transfer) : null], ["Sessions", entity.requires_session ? grouped(entity.sessions) : null],
      ["Receivers", grouped(entity.receivers)], ["Size", bytes(entity.bytes)]];
  byId("counts").replaceChildren(...counts.filter(([, value]) => value !== null).map(([name, value, highlight]) => {
    const pair = document.createElement("div");
    pair.append(Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: value, className: highlight ? "highlight" : "" }));
    return pair;
  }));
  byId("send").hidden = !canAct();
  setText("send", entity.kind === "subscription" ? "Send to topic …" : "Send …");
  showTabs(entity);
}

async function choose() {
  const next = parseAddress();
  if (!next) {
    chosen = null;
    byId("chosen").hidden = true;
    byId("nothing").hidden = false;
    return refresh();
  }
  const moved = next.path !== chosen?.path || next.tab !== chosen?.tab;
  chosen = next;
  lastCounts = "";
  if (moved) showNote("");
  await refresh();
  const link = document.querySelector("#entities [aria-current]");
  link?.scrollIntoView({ block: "nearest" });
}

// The refresh loop

function showNote(text, kind = "") {
  setText("action-note", text).className = `note ${kind}`;
}

async function refresh() {
  clearTimeout(timer);
  try {
    const answer = await refreshEntities(chosen?.path);
    const { active, dead_letter: dead, scheduled } = answer.messages;
    setText("totals", `${plural(answer.total, "entity", "entities")} · ${plural(active, "message")} · ${plural(dead, "dead letter")} · ${grouped(scheduled)} scheduled`);
    if (chosen) {
      const entity = findEntity(chosen.path) ?? await get("entity", { path: chosen.path });
      showEntity(entity);
      const counts = JSON.stringify([entity.path, chosen.tab, entity.active, entity.dead_letter, entity.scheduled, entity.transfer, entity.transfer_dead_letter, entity.sessions, canAct()]);
      if (counts !== lastCounts) await showPart(entity);
      lastCounts = counts;
      document.title = `${shortName(entity)} · Headwater broker`;
    } else document.title = "Headwater broker";
    setLive(true, "live");
  } catch (error) {
    handleFailure(error);
  }
  if (!byId("workspace").hidden) timer = setTimeout(refresh, REFRESH_INTERVAL);
}

/** After a change: shows its result at once. */
async function refreshNow() {
  lastCounts = "";
  await refresh();
}

function setLive(live, text) {
  document.body.className = live ? "fresh" : "stale";
  setText("freshness", text);
}

function handleFailure(error) {
  if (!(error instanceof Refusal)) return setLive(false, "no response");
  if (error.status === 401) return lock(needsKey() ? error.message : "wrong token", "bad");
  if (error.status === 404 && chosen) {
    byId("chosen").hidden = true;
    byId("nothing").hidden = false;
    setLive(true, "live");
    setText("nothing", error.message);
    return undefined;
  }
  return showNote(error.message, "bad");
}

// Access

function describeUnlock() {
  setText("token-label", needsKey() ? "Connection string" : "Token");
  setText("unlock-note", needsKey()
    ? "This broker has keys. Paste a connection string whose key has the right to manage the namespace, or a SharedAccessSignature. The key stays in this page."
    : "This page is read-only. With the token that the broker printed at its start (page: …#token=…) it can also send, resubmit, dead-letter, delete and purge.");
}

function lock(reason, kind) {
  forgetCredential();
  byId("workspace").hidden = needsKey();
  byId("sign-in").hidden = false;
  byId("token").focus();
  showNote(reason, kind);
  lastCounts = "";
}

/** Checks a credential with a request that only it allows. */
async function unlock(text) {
  const problem = await setCredential(text);
  if (problem) return lock(problem, "bad");
  try {
    await post("check", {});
  } catch (error) {
    return error instanceof Refusal ? lock(needsKey() ? error.message : "wrong token", "bad") : showNote("no response; try again", "bad");
  }
  byId("token").value = "";
  byId("sign-in").hidden = true;
  byId("workspace").hidden = false;
  showNote("");
  lastCounts = "";
  await choose();
  byId("filter").focus({ preventScroll: true });
}

async function send() {
  const entity = findEntity(chosen.path);
  const path = entity.kind === "subscription" ? topicOf(entity.path) : entity.path;
  const sent = await openDraft({ title: `Send to ${path}`, path, requiresSession: entity.requires_session });
  if (!sent) return;
  const duplicates = sent.duplicates ? `; ${plural(sent.duplicates, "duplicate")} dropped` : "";
  showNote(`${plural(sent.sent, "message")} sent to ${path}${duplicates}`);
  await refreshNow();
}

async function start() {
  byId("unlock").addEventListener("submit", (event) => {
    event.preventDefault();
    unlock(byId("token").value.trim());
  });
  byId("tabs").addEventListener("keydown", moveTab);
  byId("send").addEventListener("click", send);
  initEntities(refresh);
  initMessages({ showNote, refreshNow });
  initTables();
  const given = /^#token=([0-9a-f]+)$/.exec(location.hash)?.[1];
  // Not kept in the address or the history of the browser.
  if (given) history.replaceState(null, "", location.pathname);
  try {
    setText("tier", (await loadAccess()).tier).hidden = false;
  } catch {
    setLive(false, "no response");
    setTimeout(() => location.reload(), REFRESH_INTERVAL);
    return;
  }
  describeUnlock();
  window.addEventListener("hashchange", choose);
  if (given && !needsKey()) return unlock(given);
  byId("sign-in").hidden = false;
  if (needsKey()) {
    setLive(true, "sign in");
    return byId("token").focus();
  }
  byId("workspace").hidden = false;
  await choose();
}

start();
