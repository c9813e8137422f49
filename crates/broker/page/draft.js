// The form for a new message, and for one that replaces a dead letter.
import { brokerNow, post } from "./api.js";
import { button } from "./dialog.js";
import { byId, setText } from "./elements.js";

const TEXTS = ["body", "content_type", "message_id", "session_id", "subject", "correlation_id", "to", "reply_to", "partition_key"];
const TYPES = ["string", "int", "long", "double", "boolean", "uuid", "timestamp", "uint", "ulong", "ushort", "ubyte", "short", "byte", "float"];

/** The form's values, to be sent again: people send many similar messages. */
let last = { content_type: "application/json" };
let submit = null;

/** Opens the form. Returns the broker's answer, or null if it was cancelled. */
export function openDraft({ title, path, requiresSession, draft, replaces }) {
  const [dialog, form] = [byId("draft"), byId("draft-form")];
  const values = draft ?? last;
  setText("draft-title", title);
  setText("draft-note", replaces ? `The message is sent to ${path} and the dead letter is removed.` : "");
  setText("draft-submit", replaces ? "Resubmit" : "Send");
  setText("draft-problem", "");
  for (const name of TEXTS) form.elements[name].value = values[name] ?? "";
  form.elements.as_string.checked = Boolean(values.as_string);
  form.elements.time_to_live.value = values.time_to_live ? values.time_to_live / 1_000 : "";
  form.elements.scheduled_for.value = "";
  form.elements.copies.value = 1;
  form.elements.session_id.required = Boolean(requiresSession);
  byId("draft-copies").hidden = Boolean(replaces);
  byId("draft-properties").replaceChildren(...(values.properties ?? []).map(propertyRow));
  form.onsubmit = (event) => {
    event.preventDefault();
    submit?.();
  };
  byId("draft-cancel").onclick = () => dialog.close();
  byId("add-property").onclick = () => {
    const made = propertyRow({ name: "", type: "string", value: "" });
    byId("draft-properties").append(made);
    made.querySelector("input").focus();
  };
  dialog.showModal();
  byId("draft-body").focus();
  return new Promise((resolve) => {
    let answer = null;
    submit = async () => {
      byId("draft-submit").disabled = true;
      try {
        const message = readForm(form);
        answer = replaces
          ? await post("resubmit", { path: replaces.path, subqueue: replaces.subqueue, messages: [{ sequence: replaces.sequence }], edited: message })
          : await post("send", { path, message, copies: Number(form.elements.copies.value) });
        if (!replaces) last = { ...message, scheduled_for: null };
        dialog.close();
      } catch (error) {
        setText("draft-problem", error.message);
      }
      byId("draft-submit").disabled = false;
    };
    dialog.addEventListener("close", () => resolve(answer), { once: true });
  });
}

function readForm(form) {
  const message = Object.fromEntries(TEXTS.map((name) => [name, form.elements[name].value]));
  const [ttl, due] = [form.elements.time_to_live.value, form.elements.scheduled_for.value];
  message.time_to_live = ttl ? Math.round(Number(ttl) * 1_000) : null;
  message.scheduled_for = due ? new Date(due).getTime() : null;
  if (message.scheduled_for !== null && message.scheduled_for < brokerNow()) throw new Error("the delivery time is in the past");
  message.as_string = form.elements.as_string.checked;
  message.properties = [...byId("draft-properties").children].map((line) => {
    const [name, type, value] = line.querySelectorAll("input, select");
    const isTime = type.value === "timestamp" && !/^-?\d+$/.test(value.value);
    return { name: name.value, type: type.value, value: isTime ? String(new Date(value.value).getTime()) : value.value };
  });
  return message;
}

function propertyRow({ name, type, value }) {
  const line = Object.assign(document.createElement("div"), { className: "property" });
  const input = (label, text) => {
    const made = Object.assign(document.createElement("input"), { value: text, placeholder: label, autocomplete: "off" });
    made.setAttribute("aria-label", `property ${label}`);
    return made;
  };
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "property type");
  choice.append(...TYPES.map((option) => new Option(option, option)));
  choice.value = type;
  const nameInput = input("name", name);
  nameInput.required = true;
  line.append(nameInput, choice, input("value", value), button("Remove", `remove property ${name}`, () => line.remove()));
  return line;
}
