// Puts things on the page. Whatever comes from outside is set as text, never as markup.
import { known } from "/format.js";

export const byId = (id) => document.getElementById(id);

export function say(id, text) {
  const element = typeof id === "string" ? byId(id) : id;
  if (element.textContent !== text) element.textContent = text;
  return element;
}

export function sayFigure(id, pair, prefix = "") {
  const element = byId(id);
  element.classList.toggle("unknown", !pair);
  if (!pair) return say(element, "unknown");
  const unit = document.createElement("span");
  unit.className = "unit";
  unit.textContent = pair[1];
  element.replaceChildren(`${prefix}${pair[0]}`, unit);
}

/** A term of a list: the value or the word unknown; some: whether it should catch the eye. */
export function sayTerm(id, value, some = false) {
  const element = say(id, known(value) ? value : "unknown");
  element.classList.toggle("unknown", !known(value));
  element.classList.toggle("some", some);
}

export function cell(content, className = "") {
  const td = document.createElement("td");
  td.className = className;
  if (content instanceof Node) td.append(content);
  else if (known(content)) td.textContent = content;
  else {
    td.textContent = "unknown";
    td.classList.add("unknown");
  }
  return td;
}

export function fill(id, rows, nothing) {
  const body = byId(id).tBodies[0];
  const focused = document.activeElement?.closest("tbody") === body ? document.activeElement.textContent : null;
  if (!rows.length) {
    const td = cell(nothing, "empty");
    td.colSpan = byId(id).tHead.rows[0].cells.length;
    rows = [row([td])];
  }
  body.replaceChildren(...rows);
  // Whoever went along the links with the keyboard stays where he is.
  if (focused) [...body.querySelectorAll("a")].find((link) => link.textContent === focused)?.focus();
}

export function row(cells, className = "") {
  const tr = document.createElement("tr");
  tr.className = className;
  tr.append(...cells);
  return tr;
}
