// The list of queues, topics and subscriptions, with their counts.
import { byId, setText } from "./elements.js";
import { grouped, plural } from "./format.js";
import { get } from "./api.js";

const PAGE = 200;

let shown = PAGE;
let latest = [];

/** The part of a path after its topic. */
export const shortName = ({ path, kind }) => (kind === "subscription" ? path.slice(path.toLowerCase().lastIndexOf("/subscriptions/") + 15) : path);
export const topicOf = (path) => path.slice(0, path.toLowerCase().lastIndexOf("/subscriptions/"));
export const hrefOf = (path, tab = "") => `#/${encodeURIComponent(path)}${tab ? `/${tab}` : ""}`;
export const findEntity = (path) => latest.find((entity) => entity.path.toLowerCase() === path.toLowerCase());

/** A slash sorts before every other character, so that subscriptions follow their topic. */
const order = (path) => path.toLowerCase().replaceAll("/", "\u0000");

export function initEntities(refresh) {
  byId("filter").addEventListener("input", () => {
    shown = PAGE;
    refresh();
  });
  byId("more-entities").addEventListener("click", () => {
    shown += PAGE;
    refresh();
  });
}

/** Loads and shows the list. Returns the answer of the broker. */
export async function refreshEntities(chosenPath) {
  const filter = byId("filter").value.trim();
  const rows = [];
  let answer;
  do {
    answer = await get("entities", { filter, skip: rows.length, top: Math.min(500, shown - rows.length) });
    rows.push(...answer.entities);
  } while (answer.entities.length && rows.length < Math.min(shown, answer.total));
  latest = rows.sort((one, other) => (order(one.path) < order(other.path) ? -1 : 1));
  const key = JSON.stringify([latest, chosenPath]);
  const list = byId("entities");
  // Only after a change, so that focus and scroll position stay.
  if (list.dataset.shown !== key) {
    list.dataset.shown = key;
    const focused = document.activeElement?.closest("#entities a")?.getAttribute("href");
    list.replaceChildren(...latest.map((entity) => entityItem(entity, chosenPath)));
    if (focused) [...list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }
  const none = filter ? "No entity has this name." : "There are no queues or topics. Create one with an SDK, with the official emulator's config.json (--config), or on first use (--create-on-first-use).";
  setText("entities-note", answer.total ? (answer.total > latest.length ? `${grouped(latest.length)} of ${grouped(answer.total)}` : "") : none);
  byId("more-entities").hidden = answer.total <= latest.length;
  return answer;
}

function entityItem(entity, chosenPath) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = hrefOf(entity.path);
  link.className = entity.kind;
  if (entity.path === chosenPath) link.setAttribute("aria-current", "true");
  const part = (className, text, title) => Object.assign(document.createElement("span"), { className, textContent: text, title: title ?? "" });
  link.append(part("kind", { queue: "Q", topic: "T", subscription: "S" }[entity.kind], entity.kind), part("name", shortName(entity), entity.path));
  if (entity.status !== "active") link.append(part("tag warn", entity.status.replaceAll("_", " ")));
  const counts = part("count", "");
  if (entity.kind === "topic") counts.append(part("", entity.subscriptions ? "" : "no subscriptions"));
  else counts.append(part("", grouped(entity.active + entity.transfer), plural(entity.active + entity.transfer, "message")));
  if (entity.dead_letter) counts.append(part("dead", grouped(entity.dead_letter), plural(entity.dead_letter, "dead letter")));
  link.append(counts);
  const spoken = [entity.kind, shortName(entity), entity.kind === "topic" ? "" : plural(entity.active, "message"), entity.dead_letter ? plural(entity.dead_letter, "dead letter") : ""];
  link.setAttribute("aria-label", spoken.filter(Boolean).join(", "));
  item.append(link);
  return item;
}
