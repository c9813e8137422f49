// The broker's page in a real browser, on a real broker, with messages of the official SDK.
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { browser } from "./browser.mjs";
import { startBroker } from "./broker.mjs";
import { bodies, receive, startClient } from "./client.mjs";
import { lowContrast } from "./legibility.mjs";
import { close, open } from "./page.mjs";

const SESSIONS = "<RequiresSession>true</RequiresSession>";

let chromium;
let bus;
let screenshots;

before(async () => {
  screenshots = process.env.SCREENSHOTS ?? await mkdtemp(join(tmpdir(), "headwater-screenshots-"));
  [chromium, bus] = await Promise.all([browser(), startClient()]);
});

after(async () => {
  await chromium?.close();
  await bus?.stop();
});

const url = () => `http://${bus.broker.address}/`;
const token = () => bus.broker.page.split("#token=")[1];

/** Opens the page with the printed address, at an entity. */
async function openAt(path, tab = "messages", options = {}) {
  const page = await open(chromium, { url: bus.broker.page }, options);
  await page.waitForSelector("#workspace:not([hidden])");
  await page.waitForSelector("#sign-in", { state: "hidden" });
  await page.evaluate((hash) => { location.hash = hash; }, `#/${encodeURIComponent(path)}/${tab}`);
  await page.waitForFunction((path) => document.getElementById("entity-title").textContent.endsWith(path), path.split("/").at(-1));
  return page;
}

const rowCount = (page, count) => page.waitForFunction((count) => document.querySelectorAll("#messages tbody tr[data-sequence]").length === count, count);
const waitForNote = (page, text) => page.waitForFunction((text) => document.getElementById("action-note").textContent.includes(text), text);
const api = (path, init = {}) => fetch(`${url()}$page/api/${path}`, init);
const act = (name, body, headers = {}) => api(name, { method: "POST", body: JSON.stringify(body), headers });

test("programs still get ATOM at the root, and browsers the page", async () => {
  const atom = await fetch(`${url()}?api-version=2021-05`, { headers: { accept: "text/html" } });
  assert.match(atom.headers.get("content-type"), /^application\/atom\+xml/);
  assert.match((await fetch(url())).headers.get("content-type"), /^application\/atom\+xml/);
  const page = await fetch(url(), { headers: { accept: "text/html,application/xhtml+xml" } });
  assert.match(page.headers.get("content-type"), /^text\/html/);
  assert.match(page.headers.get("content-security-policy"), /^default-src 'none'/);
  assert.equal(page.headers.get("x-frame-options"), "DENY");
  const files = [...(await page.text()).matchAll(/(?:href|src)="(\/\$page\/[^"]+)"/g)].map(([, file]) => file);
  assert.ok(files.length >= 4);
  for (const file of files) assert.equal((await fetch(new URL(file, url()))).status, 200, file);
});

test("without the token the page shows everything and changes nothing", async () => {
  const queue = await bus.broker.makeQueue();
  await bus.send(queue, { body: "kept" });
  const page = await open(chromium, { url: url() });
  await page.waitForSelector(`#entities a[title], #entities a:has-text("${queue}")`);
  await page.click(`#entities a:has-text("${queue}")`);
  await rowCount(page, 1);
  for (const id of ["send", "purge", "delete", "dead-letter", "resubmit"]) assert.equal(await page.locator(`#${id}`).isVisible(), false, id);
  await page.fill("#token", "0123");
  await page.press("#token", "Enter");
  await waitForNote(page, "wrong token");
  for (const [name, body] of [["purge", { path: queue }], ["send", { path: queue, message: {} }], ["delete", { path: queue, messages: [] }]]) {
    assert.equal((await act(name, body)).status, 401, name);
    assert.equal((await act(name, body, { authorization: "Bearer 0123" })).status, 401, name);
  }
  await page.fill("#token", token());
  await page.press("#token", "Enter");
  await page.waitForSelector("#send:not([hidden])");
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.documentElement.outerHTML]));
  assert.ok(!kept.includes(token()), "the token is in memory only");
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("pages of other sites and other host names are refused", async () => {
  const allowed = { authorization: `Bearer ${token()}` };
  const queue = await bus.broker.makeQueue();
  for (const headers of [{ origin: "https://evil.example" }, { origin: "http://localhost:1" }, { "sec-fetch-site": "cross-site" }]) {
    assert.equal((await act("purge", { path: queue }, { ...allowed, ...headers })).status, 403, JSON.stringify(headers));
  }
  // DNS rebinding: the browser sends the name of the other site as the host. `fetch` does not allow that.
  const status = await new Promise((resolve, reject) => {
    const sent = request(`${url()}$page/api/entities`, { headers: { host: "evil.example" } }, (answer) => { answer.resume(); resolve(answer.statusCode); });
    sent.on("error", reject).end();
  });
  assert.equal(status, 403);
  const context = await chromium.newContext();
  const elsewhere = await context.newPage();
  await elsewhere.route("http://elsewhere.example/", (route) => route.fulfill({ contentType: "text/html", body: "<title>elsewhere</title>" }));
  await elsewhere.goto("http://elsewhere.example/");
  const forged = await elsewhere.evaluate(([url, token]) => Promise.all([
    fetch(`${url}$page/api/purge`, { method: "POST", headers: { authorization: `Bearer ${token}` }, body: "{}" }),
    fetch(`${url}$page/api/entities`),
  ].map((promise) => promise.then((answer) => answer.status, (error) => error.name))), [url(), token()]);
  assert.deepEqual(forged, ["TypeError", "TypeError"], "the browser blocks the requests");
  await context.close();
});

test("messages are filtered by state and shown with their properties", async () => {
  const queue = await bus.broker.makeQueue();
  await bus.send(queue, { body: { order: 7, note: "<b>&" }, contentType: "application/json", subject: "OrderPlaced", messageId: "m-1", correlationId: "c-1", applicationProperties: { region: "north", weight: 12 } },
    { body: "to be deferred", messageId: "m-2" }, { body: Buffer.from([0, 1, 2, 255]), messageId: "m-3" });
  const receiver = bus.client.createReceiver(queue);
  const [, second] = await receive(receiver, 2);
  await receiver.deferMessage(second);
  await receiver.close();
  const sender = bus.client.createSender(queue);
  await sender.scheduleMessages({ body: "later", messageId: "m-4" }, new Date(Date.now() + 3_600_000));
  await sender.close();

  const page = await openAt(queue);
  await rowCount(page, 4);
  for (const [state, id] of [["deferred", "m-2"], ["scheduled", "m-4"]]) {
    await page.selectOption("#state", state);
    await rowCount(page, 1);
    assert.match(await page.textContent("#messages tbody"), new RegExp(id));
  }
  await page.selectOption("#state", "active");
  await rowCount(page, 2);
  await page.getByRole("button", { name: "show message 1", exact: true }).click();
  await page.waitForSelector("#message:not([hidden])");
  const shown = await page.textContent("#message");
  for (const text of ["m-1", "OrderPlaced", "c-1", "application/json", "region", "north", "weight", "12"]) assert.ok(shown.includes(text), text);
  assert.equal(await page.textContent("#message pre"), '{\n  "order": 7,\n  "note": "<b>&"\n}');
  await page.getByRole("button", { name: "Hex" }).click();
  assert.match(await page.textContent("#message pre"), /^000000 {2}7b 22 6f/);
  await page.getByRole("button", { name: "show message 3", exact: true }).click();
  await page.waitForFunction(() => document.querySelector("#message h3").textContent === "Message 3");
  assert.match(await page.textContent("#message pre"), /^000000 {2}00 01 02 ff/, "bytes that are not text are shown in hex");
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("long lists and long bodies are shown in parts", async () => {
  const queue = await bus.broker.makeQueue();
  const answer = await (await act("send", { path: queue, message: { body: "x".repeat(80_000) }, copies: 60 }, { authorization: `Bearer ${token()}` })).json();
  assert.equal(answer.sent, 60);
  const page = await openAt(queue);
  await rowCount(page, 50);
  await page.click("#next");
  await rowCount(page, 10);
  assert.match(await page.textContent("#messages tbody tr:first-child"), /^51/);
  await page.click("#first");
  await rowCount(page, 50);
  await page.getByRole("button", { name: "show message 1", exact: true }).click();
  await page.waitForSelector("#message:not([hidden])");
  assert.match(await page.textContent("#message .forms"), /80,000 bytes, the first 65,536 are shown/);
  await close(page);
});

test("a message is sent with properties, a session and a due time", async () => {
  const queue = await bus.broker.makeQueue(SESSIONS);
  const page = await openAt(queue);
  await page.click("#send");
  await page.fill("#draft-body", '{"by": "hand"}');
  await page.click("#draft-submit");
  assert.equal(await page.locator("#draft").isVisible(), true, "the session id is required");
  for (const [name, value] of [["session_id", "s-1"], ["subject", "Greeting"], ["message_id", "by-hand"], ["time_to_live", "600"]]) await page.fill(`[name=${name}]`, value);
  await page.click("#add-property");
  await page.fill("[aria-label='property name']", "priority");
  await page.selectOption("[aria-label='property type']", "int");
  await page.fill("[aria-label='property value']", "high");
  await page.click("#draft-submit");
  await page.waitForFunction(() => document.getElementById("draft-problem").textContent.includes("`priority` is not a int"));
  await page.fill("[aria-label='property value']", "5");
  await page.click("#draft-submit");
  await waitForNote(page, "1 message sent");
  await rowCount(page, 1);

  await page.click("#send");
  const inAnHour = new Date(Date.now() + 3_600_000 - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  await page.fill("[name=scheduled_for]", inAnHour);
  await page.fill("[name=message_id]", "later");
  await page.click("#draft-submit");
  await rowCount(page, 2);
  await page.selectOption("#state", "scheduled");
  await rowCount(page, 1);

  const receiver = await bus.client.acceptSession(queue, "s-1");
  const [message] = await receive(receiver, 1);
  assert.equal(message.messageId, "by-hand");
  assert.deepEqual(message.body, { by: "hand" });
  assert.deepEqual([message.subject, message.sessionId, message.timeToLive, message.applicationProperties], ["Greeting", "s-1", 600_000, { priority: 5 }]);
  await receiver.close();
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("messages are dead-lettered, edited, resubmitted and purged", async () => {
  const queue = await bus.broker.makeQueue();
  await bus.send(queue, ...["a", "b", "c"].map((body) => ({ body, applicationProperties: { n: 1 } })));
  const page = await openAt(queue);
  await rowCount(page, 3);
  await page.check("[aria-label='select message 1']");
  await page.check("[aria-label='select message 2']");
  await page.click("#dead-letter");
  assert.equal(await page.textContent("#confirm-title"), "Dead-letter 2 messages?");
  await page.keyboard.press("Escape");
  await page.click("#dead-letter");
  await page.fill("#reason", "broken");
  await page.getByRole("button", { name: "Dead-letter", exact: true }).click();
  await waitForNote(page, "2 messages dead-lettered");
  await rowCount(page, 1);

  await page.click("#tab-dead-letters");
  await rowCount(page, 2);
  assert.match(await page.textContent("#messages tbody"), /broken/);
  await page.getByRole("button", { name: "show message 1", exact: true }).click();
  await page.getByRole("button", { name: "edit and resubmit message 1" }).click();
  assert.equal(await page.locator(".property").count(), 1, "without the properties of the dead letter");
  assert.equal(await page.locator("[aria-label='property type']").inputValue(), "uint", "in its own type");
  await page.fill("#draft-body", '"repaired"');
  await page.click("#draft-submit");
  await waitForNote(page, "1 message resubmitted");
  await rowCount(page, 1);
  await page.click("#resubmit-all");
  await page.getByRole("button", { name: "Resubmit all", exact: true }).click();
  await waitForNote(page, "1 message resubmitted");
  await rowCount(page, 0);

  const receiver = bus.client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  const [kept, repaired, unchanged] = await receive(receiver, 3);
  await receiver.close();
  assert.deepEqual(bodies([kept, repaired, unchanged]), ["c", "repaired", "b"]);
  assert.deepEqual([repaired.applicationProperties, unchanged.applicationProperties], [{ n: 1 }, { n: 1 }]);

  await bus.send(queue, { body: "d" }, { body: "e" });
  await page.click("#tab-messages");
  await rowCount(page, 2);
  await page.click("#purge");
  assert.match(await page.textContent("#confirm-title"), /^Purge all messages of queue-/);
  await page.getByRole("button", { name: "Purge", exact: true }).click();
  await waitForNote(page, "2 messages deleted");
  await rowCount(page, 0);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("sessions are listed with their state, and rules with their filters", async () => {
  const queue = await bus.broker.makeQueue(SESSIONS);
  await bus.send(queue, { body: "1", sessionId: "alpha" }, { body: "2", sessionId: "alpha" });
  await bus.send(queue, { body: "3", sessionId: "beta" });
  const receiver = await bus.client.acceptSession(queue, "alpha");
  await receiver.setSessionState(Buffer.from('{"step":4}'));
  const page = await openAt(queue, "sessions");
  await page.waitForFunction(() => document.querySelectorAll("#sessions tbody tr").length === 2);
  assert.match(await page.textContent("#sessions tbody"), /alpha2until/);
  await page.getByRole("button", { name: "state of session alpha" }).click();
  await page.waitForSelector("#session-state:not([hidden])");
  assert.match(await page.textContent("#session-state pre"), /"step": 4/);
  await page.getByRole("button", { name: "messages of session beta" }).click();
  await rowCount(page, 1);
  assert.equal(await page.inputValue("#session"), "beta");
  await receiver.close();
  await page.evaluate((path) => { location.hash = `#/${encodeURIComponent(path)}/rules`; }, "events/Subscriptions/audit");
  await page.waitForFunction(() => document.querySelectorAll("#rules tbody tr").length > 0);
  assert.match(await page.textContent("#rules tbody"), /\$Default.*every message/);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("with keys the page needs a key that may manage", async () => {
  const folder = await mkdtemp(join(tmpdir(), "headwater-keys-"));
  const file = join(folder, "keys.json");
  await writeFile(file, JSON.stringify({ keys: [{ name: "root", key: "c2VjcmV0", rights: ["Manage"] }, { name: "reader", key: "bGlzdGVu", rights: ["Listen"] }] }));
  const broker = await startBroker("--keys", file);
  const page = await open(chromium, { url: broker.page });
  const string = (name, key) => `Endpoint=sb://${broker.address};SharedAccessKeyName=${name};SharedAccessKey=${key};`;
  assert.ok(!broker.page.includes("token"));
  assert.equal((await fetch(`http://${broker.address}/$page/api/entities`)).status, 401, "reading needs a token, too");
  await page.waitForSelector("#sign-in:not([hidden])");
  assert.equal(await page.locator("#workspace").isVisible(), false);
  for (const [given, answer] of [["nonsense", "neither a connection string"], [string("root", "d3Jvbmc="), "InvalidSignature"], [string("reader", "bGlzdGVu"), "no right to manage"]]) {
    await page.fill("#token", given);
    await page.press("#token", "Enter");
    await waitForNote(page, answer);
  }
  const sent = [];
  page.on("request", (request) => sent.push(JSON.stringify([request.url(), request.headers(), request.postData()])));
  await page.fill("#token", string("root", "c2VjcmV0"));
  await page.press("#token", "Enter");
  await page.waitForSelector("#entities a");
  await page.click("#entities a >> nth=0");
  await page.waitForSelector("#chosen:not([hidden])");
  assert.ok(sent.length > 0 && !sent.some((text) => text.includes("c2VjcmV0")), "the key stays in the browser");
  assert.deepEqual(page.errors, []);
  await close(page);
  await broker.stop();
  await rm(folder, { recursive: true });
});

test("the page works with the keyboard alone", async () => {
  const queue = await bus.broker.makeQueue();
  await bus.send(queue, { body: "by keyboard" });
  const page = await openAt(queue);
  await rowCount(page, 1);
  const reach = async (what) => {
    for (let step = 0; step < 200; step += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate((what) => document.activeElement.matches(what), what)) return;
    }
    assert.fail(`${what} cannot be focused`);
  };
  await page.focus("#filter");
  await reach("[role=tab][aria-selected=true]");
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => document.activeElement.id === "tab-dead-letters");
  await page.waitForSelector("#messages.dead-letter td.empty");
  await page.keyboard.press("ArrowLeft");
  await page.waitForSelector("#messages.main tr[data-sequence]");
  await reach("[aria-label='select message 1']");
  await page.keyboard.press("Space");
  await page.focus("#delete");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel", "the safe choice has the focus");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await waitForNote(page, "1 message deleted");
  await rowCount(page, 0);
  const unnamed = await page.evaluate(() => [...document.querySelectorAll("button, input, select, textarea")].filter((control) =>
    !control.getAttribute("aria-label") && !control.labels?.length && !control.textContent.trim()).map((control) => control.outerHTML));
  assert.deepEqual(unnamed, [], "every control has a name");
  await close(page);
});

test("the page is legible in both themes and on a phone", async () => {
  const queue = await bus.broker.makeQueue(SESSIONS);
  const message = (n) => ({ body: { order: n, customer: "Ada", lines: [{ sku: "tea", qty: 2 }] }, contentType: "application/json", subject: ["OrderPlaced", "ItemAdded", "PaymentTaken"][n % 3], messageId: `order-${n}`, sessionId: `customer-${n % 4}`, applicationProperties: { region: "north", weight: n } });
  for (let n = 0; n < 8; n += 1) await bus.send(queue, message(n));
  await act("dead-letter", { path: queue, messages: [{ sequence: "2", session: "customer-1" }, { sequence: "3", session: "customer-2" }], reason: "PaymentFailed", description: "the card was refused" }, { authorization: `Bearer ${token()}` });
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desktop", { width: 1360, height: 900 }], ["phone", { width: 390, height: 844 }]]) {
      const page = await openAt(queue, "messages", { colorScheme, viewport });
      const check = async (name) => {
        assert.deepEqual(await page.evaluate(lowContrast), [], `${name}, ${colorScheme}, ${device}`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), `${name} fits, ${colorScheme}, ${device}`);
        await page.screenshot({ path: join(screenshots, `broker-${name}-${device}-${colorScheme}.png`), fullPage: name === "message" });
      };
      await rowCount(page, 6);
      await page.getByRole("button", { name: "show message 1", exact: true }).click();
      await page.waitForSelector("#message:not([hidden])");
      await check("message");
      await page.click("#tab-dead-letters");
      await rowCount(page, 2);
      await page.check("#all");
      await check("dead-letters");
      await page.click("#send");
      await page.click("#add-property");
      await check("send");
      await page.keyboard.press("Escape");
      await page.click("#tab-sessions");
      await page.waitForFunction(() => document.querySelectorAll("#sessions tbody tr").length === 4);
      await check("sessions");
      await page.click("#tab-settings");
      await page.waitForSelector("#settings div");
      await check("settings");
      assert.deepEqual(page.errors, []);
      await close(page);
    }
  }
});
