// Buttons, and the dialog that asks before an action.
import { byId, setText } from "./elements.js";

/** A button with a label for screen readers. */
export function button(text, label, onClick, className = "") {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, className });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", onClick);
  return made;
}

/** Asks for confirmation. `choices`: [text, value, className]. Returns the chosen value, or an empty string. */
export function askConfirmation(title, text, choices) {
  const dialog = byId("confirm");
  setText("confirm-title", title);
  setText("confirm-text", text);
  const close = (value) => () => dialog.close(value);
  const cancel = button("Cancel", "cancel", close(""));
  const buttons = choices.map(([text, value, className]) => button(text, text, close(value), className));
  byId("confirm-choices").replaceChildren(cancel, ...buttons);
  dialog.returnValue = "";
  dialog.showModal();
  cancel.focus();
  return new Promise((resolve) => { dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }); });
}
