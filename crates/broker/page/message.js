// One message: properties, application properties, annotations and body.
import { bodyText, bodyView } from "./body.js";
import { button } from "./dialog.js";
import { openDraft } from "./draft.js";
import { byId, cell, row } from "./elements.js";
import { dateTime, grouped, plural, twoUnits } from "./format.js";

const element = (name, className, text) => Object.assign(document.createElement(name), { className, textContent: text ?? "" });

/** Shows a message below its list. `actions` is null if the page is read-only. */
export function showMessage(message, place, actions, page, close) {
  const box = byId("message");
  const head = element("div", "title");
  const title = element("h3", "", `Message ${message.sequence}`);
  title.tabIndex = -1;
  const buttons = element("span", "choices");
  if (actions) addActions(buttons, message, place, actions, page);
  buttons.append(button("Copy body", "copy the body", () => copyBody(message, page)), button("Close", `close message ${message.sequence}`, close));
  head.append(title, buttons);
  const parts = [head, properties(message)];
  if (message.properties.length) parts.push(element("h4", "", "Application properties"), table(message.properties));
  parts.push(element("h4", "", "Body"), bodyView(message.body, `Body of message ${message.sequence}`));
  if (message.annotations.length) {
    const more = document.createElement("details");
    more.append(element("summary", "", plural(message.annotations.length, "annotation")), table(message.annotations));
    parts.push(more);
  }
  box.replaceChildren(...parts);
  box.hidden = false;
  title.focus({ preventScroll: true });
  box.scrollIntoView({ block: "nearest" });
}

function addActions(buttons, message, place, actions, page) {
  const number = message.sequence;
  if (actions.isDeadLetter) {
    buttons.append(button("Resubmit …", `resubmit message ${number}`, () => actions.resubmit([message])));
    const edit = button("Edit and resubmit …", `edit and resubmit message ${number}`, () => editAndResubmit(message, place, page));
    if (!message.editable) {
      edit.disabled = true;
      edit.title = "The form cannot hold all of this message: its body is not text, is too long, or it has properties of rare types. Resubmit it unchanged.";
    }
    buttons.append(edit);
  } else if (message.state !== "scheduled") {
    buttons.append(button("Dead-letter …", `dead-letter message ${number}`, () => actions.deadLetter([message])));
  }
  buttons.append(button(message.state === "scheduled" ? "Cancel …" : "Delete …", `delete message ${number}`, () => actions.remove([message]), "danger"));
}

async function editAndResubmit(message, place, page) {
  const text = bodyText(message.body);
  const own = new Set(["DeadLetterReason", "DeadLetterErrorDescription"]);
  const draft = {
    ...message, body: text ?? "", as_string: message.body_kind === "text",
    properties: message.properties.filter(({ name }) => !own.has(name)), scheduled_for: null,
  };
  const done = await openDraft({ title: `Edit and resubmit message ${message.sequence}`, path: place.target, requiresSession: place.requiresSession, draft, replaces: { ...place, sequence: message.sequence } });
  if (!done) return;
  page.showNote(done.resubmitted ? `1 message resubmitted to ${place.target}` : done.problem ?? "the message is gone, or a receiver holds it", done.resubmitted ? "" : "bad");
  await page.refreshNow();
}

async function copyBody({ body }, page) {
  const text = bodyText(body);
  try {
    await navigator.clipboard.writeText(text ?? body.base64);
    page.showNote(text === null ? "the body was copied as base64" : "the body was copied");
  } catch {
    page.showNote("the browser did not allow the copy", "bad");
  }
}

function properties(message) {
  const time = (millis) => (millis ? `${dateTime(millis)} (${new Date(millis).toISOString()})` : null);
  const pairs = [
    ["Message id", message.message_id], ["Subject", message.subject], ["Session id", message.session_id], ["Correlation id", message.correlation_id],
    ["Content type", message.content_type], ["To", message.to], ["Reply to", message.reply_to], ["Reply to session", message.reply_to_session_id], ["Partition key", message.partition_key],
    ["State", `${message.state}${message.locked ? ", locked by a receiver" : ""}`], ["Deliveries", grouped(message.delivery_count)], ["Enqueued", time(message.enqueued_at)],
    ["Due", message.scheduled_for ? time(message.scheduled_for) : null], ["Time to live", message.time_to_live ? twoUnits(message.time_to_live / 1_000) : null], ["Expires", time(message.expires_at)],
    ["Dead-letter reason", message.dead_letter_reason], ["Description", message.dead_letter_description], ["Body", message.body_kind === "data" ? null : message.body_kind],
  ];
  const list = element("dl", "pairs");
  for (const [name, value] of pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")) {
    const pair = document.createElement("div");
    pair.append(element("dt", "", name), element("dd", "", value));
    list.append(pair);
  }
  return list;
}

function table(entries) {
  const made = element("table", "entries");
  const head = made.createTHead().insertRow();
  for (const title of ["Name", "Type", "Value"]) head.append(Object.assign(element("th", "", title), { scope: "col" }));
  const body = made.createTBody();
  body.append(...entries.map(({ name, type, value }) => {
    const shown = type === "timestamp" && Number.isSafeInteger(Number(value)) ? new Date(Number(value)).toISOString() : value;
    return row([cell(name, "id"), cell(type), cell(shown, "id")]);
  }));
  return made;
}
