// Shows bytes as JSON, text or hex, up to the part that the broker sent.
import { grouped } from "./format.js";

const HEX_LIMIT = 4_096;

const decode = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

/** The bytes as text, or null. A character that was cut at the end is left out. */
function asText(bytes, truncated) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: truncated });
    // Control characters other than white space: not meant to be read.
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

function asJson(text) {
  if (!/^\s*[[{"]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function asHex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_LIMIT); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const text = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.slice(0, 8).join(" ").padEnd(23)}  ${hex.slice(8).join(" ").padEnd(23)}  ${text}`);
  }
  return lines.join("\n");
}

/** The text of a body, if all of it is text. */
export function bodyText({ base64, truncated }) {
  return truncated ? null : asText(decode(base64), false);
}

/** An element that shows a body, with a choice of the forms that are possible. */
export function bodyView(shown, label) {
  const bytes = decode(shown.base64);
  const text = asText(bytes, shown.truncated);
  const json = text === null || shown.truncated ? null : asJson(text);
  const forms = [["JSON", json], ["Text", text], ["Hex", asHex(bytes)]].filter(([, content]) => content !== null);
  const box = Object.assign(document.createElement("div"), { className: "body" });
  const bar = Object.assign(document.createElement("div"), { className: "forms" });
  const output = Object.assign(document.createElement("pre"), { tabIndex: 0 });
  output.setAttribute("aria-label", label);
  output.setAttribute("role", "region");
  const show = (index) => {
    output.textContent = forms[index][1];
    [...bar.querySelectorAll("button")].forEach((made, at) => made.setAttribute("aria-pressed", String(at === index)));
  };
  forms.forEach(([name], index) => {
    const made = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    made.addEventListener("click", () => show(index));
    bar.append(made);
  });
  const cut = shown.truncated ? `, the first ${grouped(bytes.length)} are shown` : "";
  const hexCut = bytes.length > HEX_LIMIT ? `; hex up to ${grouped(HEX_LIMIT)}` : "";
  bar.append(Object.assign(document.createElement("span"), { className: "note", textContent: `${grouped(shown.size)} bytes${cut}${hexCut}` }));
  box.append(bar, output);
  show(0);
  return box;
}
