// Writes values into the page. Data is always set as text, never as markup.
import { isKnown } from "./format.js";

export const byId = (id) => document.getElementById(id);

export function setText(id, text) {
  const element = typeof id === "string" ? byId(id) : id;
  if (element.textContent !== text) element.textContent = text;
  return element;
}

export function setFigure(id, pair, prefix = "") {
  const element = byId(id);
  element.classList.toggle("unknown", !pair);
  if (!pair) return setText(element, "unknown");
  const unit = document.createElement("span");
  unit.className = "unit";
  unit.textContent = pair[1];
  element.replaceChildren(`${prefix}${pair[0]}`, unit);
}

/** Sets a value of a description list, or `unknown`. `highlight`: the value needs attention. */
export function setDescription(id, value, highlight = false) {
  const element = setText(id, isKnown(value) ? value : "unknown");
  element.classList.toggle("unknown", !isKnown(value));
  element.classList.toggle("highlight", highlight);
}

export function cell(content, className = "") {
  const td = document.createElement("td");
  td.className = className;
  if (content instanceof Node) td.append(content);
  else if (isKnown(content)) td.textContent = content;
  else {
    td.textContent = "unknown";
    td.classList.add("unknown");
  }
  return td;
}

export function fillTable(id, rows, emptyText) {
  const body = byId(id).tBodies[0];
  const focused = document.activeElement?.closest("tbody") === body ? document.activeElement.textContent : null;
  if (!rows.length) {
    const td = cell(emptyText, "empty");
    td.colSpan = byId(id).tHead.rows[0].cells.length;
    rows = [row([td])];
  }
  body.replaceChildren(...rows);
  // Keep the keyboard focus on the same link.
  if (focused) [...body.querySelectorAll("a")].find((link) => link.textContent === focused)?.focus();
}

export function row(cells, className = "") {
  const tr = document.createElement("tr");
  tr.className = className;
  tr.append(...cells);
  return tr;
}
