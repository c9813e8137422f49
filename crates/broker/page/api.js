// Requests to the broker. The token or key is kept in memory only, so a reload asks for it again.

const SIGNATURE_LIFETIME = 3_600;

let access = null;
let token = null;
let signer = null;
let clockOffset = 0;

/** A request that the broker refused, with its reason. */
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** What the broker needs before it is read and changed. */
export async function loadAccess() {
  access = await request("access");
  clockOffset = access.now - Date.now();
  return access;
}

export const brokerNow = () => Date.now() + clockOffset;
export const needsKey = () => access?.access === "key";
export const canAct = () => token !== null || signer !== null;

/** Takes a token, a connection string or a signature. Returns why it is not one, or an empty string. */
export async function setCredential(text) {
  token = null;
  signer = null;
  if (!needsKey()) {
    token = `Bearer ${text}`;
    return "";
  }
  if (text.startsWith("SharedAccessSignature ")) {
    token = text;
    return "";
  }
  const fields = new Map(text.split(";").map((field) => [field.slice(0, field.indexOf("=")).trim().toLowerCase(), field.slice(field.indexOf("=") + 1)]));
  const [name, key] = [fields.get("sharedaccesskeyname"), fields.get("sharedaccesskey")];
  if (!name || !key) return "this is neither a connection string nor a SharedAccessSignature";
  // Browsers sign only on pages that nobody can change on their way.
  if (!globalThis.crypto?.subtle) return "open this page with https or on localhost: only then can it sign in with a key";
  const imported = await crypto.subtle.importKey("raw", new TextEncoder().encode(key), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  signer = { name, key: imported, signature: "", until: 0 };
  return "";
}

export function forgetCredential() {
  token = null;
  signer = null;
}

/** A signature of the key, made again some time before it expires. The key itself is never sent. */
async function authorization() {
  if (!signer) return token;
  const now = Math.floor(brokerNow() / 1_000);
  if (signer.until - now < SIGNATURE_LIFETIME / 10) {
    const [resource, expiry] = [encodeURIComponent(`${location.origin}/`), now + SIGNATURE_LIFETIME];
    const signed = await crypto.subtle.sign("HMAC", signer.key, new TextEncoder().encode(`${resource}\n${expiry}`));
    const text = encodeURIComponent(btoa(String.fromCharCode(...new Uint8Array(signed))));
    signer.signature = `SharedAccessSignature sr=${resource}&sig=${text}&se=${expiry}&skn=${encodeURIComponent(signer.name)}`;
    signer.until = expiry;
  }
  return signer.signature;
}

async function request(name, parameters, body) {
  const query = new URLSearchParams(Object.entries(parameters ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  const headers = {};
  const proof = access ? await authorization() : null;
  if (proof) headers.authorization = proof;
  if (body) headers["content-type"] = "application/json";
  const init = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), cache: "no-store", signal: AbortSignal.timeout(30_000) };
  const response = await fetch(`/$page/api/${name}${query.size ? `?${query}` : ""}`, init);
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  const value = isJson ? await response.json() : { refused: `${response.status}: ${await response.text()}` };
  if (!response.ok) throw new Refusal(response.status, value.refused);
  return value;
}

export const get = (name, parameters) => request(name, parameters);
export const post = (name, body) => request(name, null, body);
