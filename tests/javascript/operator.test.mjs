// The operator panel in a real browser on real pods, with and without the token.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { browser } from "./browser.mjs";
import { lowContrast } from "./legibility.mjs";
import { openMongo } from "./mongo.mjs";
import { hasLeaderAndThreePods, getStatus, close, isStreaming, open, waitForStatus } from "./page.mjs";
import { startPods } from "./pods.mjs";

const TOKEN = randomBytes(16).toString("hex");

let chromium;
let cluster;
let screenshots;

// The last pod has no token.
before(async () => {
  screenshots = process.env.SCREENSHOTS ?? await mkdtemp(join(tmpdir(), "headwater-screenshots-"));
  [chromium, cluster] = await Promise.all([browser(), startPods(3, (n) => (n < 2 ? { HEADWATER__ADMIN__TOKEN: TOKEN } : {}))]);
  await waitForStatus(cluster.pods[0], "a leader and three pods", hasLeaderAndThreePods);
  await waitForStatus(cluster.pods[0], "a pipeline that follows the stream", isStreaming);
  const mongo = await openMongo(cluster.uri);
  // Adding a value that is not a number fails, so the events are parked.
  await mongo.insert(cluster.source, "events", [["odd", 1], ["odd", 2], ["even", 1]].map(([order, version]) =>
    ({ aggregateId: `order-${order}`, version, type: "OrderPlaced", payload: { customer: "customer-0", count: "many" } })));
  mongo.close();
  await waitForStatus(cluster.pods[0], "two orders that are parked", ({ parked }) => parked?.[0]?.events === 3);
});

after(async () => {
  await chromium?.close();
  await cluster?.stop();
});

async function unlocked(options) {
  const page = await open(chromium, cluster.pods[0], options);
  await page.fill("#token", TOKEN);
  await page.press("#token", "Enter");
  await page.waitForSelector("#actions:not([hidden])");
  return page;
}

const waitForNote = (page, text) => page.waitForFunction((text) => document.getElementById("action-note").textContent.includes(text), text);

test("without a token the page and the pod are read-only", async () => {
  const page = await open(chromium, cluster.pods[2]);
  await page.waitForFunction(() => document.getElementById("leader").textContent.startsWith("pod-"));
  assert.equal(await page.locator("#operator").isVisible(), false);
  assert.equal(await page.locator("button:visible, input:visible").count(), 0);
  const answer = await fetch(`${cluster.pods[2].url}api/step-down`, { method: "POST", headers: { authorization: `Bearer ${TOKEN}` } });
  assert.equal(answer.status, 403);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("a wrong token is refused", async () => {
  const page = await open(chromium, cluster.pods[0]);
  await page.fill("#token", "guess-guess-guess");
  await page.press("#token", "Enter");
  await waitForNote(page, "wrong operator token");
  assert.equal(await page.locator("#actions").isVisible(), false);
  assert.equal(await page.evaluate(() => document.activeElement.id), "token");
  await close(page);
});

test("the token is kept in memory only", async () => {
  const page = await unlocked();
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.documentElement.outerHTML]));
  assert.ok(!kept.includes(TOKEN));
  assert.equal(await page.inputValue("#token"), "");
  await page.reload();
  await page.waitForSelector("#unlock");
  assert.equal(await page.locator("#actions").isVisible(), false);
  await close(page);
});

test("pages of other sites cannot act", async () => {
  // Another port is another origin.
  const page = await open(chromium, cluster.pods[1]);
  const { leader } = await getStatus(cluster.pods[0]);
  const tried = await page.evaluate(async ([url, token]) => {
    const resultOf = (promise) => promise.then((answer) => `${answer.type} ${answer.status}`, (error) => error.name);
    return Promise.all([
      resultOf(fetch(`${url}api/step-down`, { method: "POST", headers: { authorization: `Bearer ${token}` } })),
      resultOf(fetch(`${url}api/step-down`, { method: "POST", mode: "no-cors" })),
      resultOf(fetch(`${url}api/status`)),
    ]);
  }, [cluster.pods[0].url, TOKEN]);
  // The content security policy of the dashboard blocks these requests; see below for a page without one.
  assert.deepEqual(tried, ["TypeError", "TypeError", "TypeError"]);
  await close(page);

  const context = await chromium.newContext();
  const elsewhere = await context.newPage();
  await elsewhere.route("http://elsewhere.example/", (route) => route.fulfill({ contentType: "text/html", body: "<title>elsewhere</title>" }));
  await elsewhere.goto("http://elsewhere.example/");
  const forged = await elsewhere.evaluate(async ([url, token]) => {
    const resultOf = (promise) => promise.then((answer) => `${answer.type} ${answer.status}`, (error) => error.name);
    return Promise.all([
      resultOf(fetch(`${url}api/step-down`, { method: "POST", headers: { authorization: `Bearer ${token}` } })),
      resultOf(fetch(`${url}api/status`)),
    ]);
  }, [cluster.pods[0].url, TOKEN]);
  assert.deepEqual(forged, ["TypeError", "TypeError"], "the browser blocks the request");
  await context.close();
  const now = await getStatus(cluster.pods[0]);
  assert.equal(now.leader?.term, leader.term, "the term is unchanged");
});

test("parked events are retried and discarded after confirmation", async () => {
  const page = await unlocked();
  await page.waitForFunction(() => document.querySelectorAll("#parked-list tbody tr").length === 2);
  const odd = page.locator("#parked-list tbody tr", { hasText: "order-odd" });
  assert.match(await odd.textContent(), /^order-oddcustomerspoison2/);

  // Cancelling changes nothing.
  await odd.getByRole("button", { name: "discard order-odd in customers" }).click();
  await page.keyboard.press("Escape");
  await odd.getByRole("button", { name: "retry order-odd in customers" }).click();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel", "the safe choice has the focus");
  await page.keyboard.press("Enter");
  assert.equal(await page.locator("#parked-list tbody tr").count(), 2);

  await odd.getByRole("button", { name: "retry order-odd in customers" }).click();
  assert.match(await page.textContent("#confirm-text"), /^2 events of order-odd will be applied to customers/);
  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await waitForNote(page, "order-odd stays parked in customers");

  await odd.getByRole("button", { name: "discard order-odd in customers" }).click();
  await page.getByRole("button", { name: "Discard all 2" }).click();
  await waitForNote(page, "2 events of order-odd were discarded from customers");
  await page.waitForFunction(() => document.querySelectorAll("#parked-list tbody tr").length === 1);
  await page.waitForFunction(() => document.getElementById("parked").textContent === "1 aggregate");
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("the operator panel is legible in both themes and on a phone", async () => {
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desktop", { width: 1280, height: 900 }], ["phone", { width: 390, height: 844 }]]) {
      const locked = await open(chromium, cluster.pods[0], { colorScheme, viewport });
      await locked.waitForSelector("#unlock");
      assert.deepEqual(await locked.evaluate(lowContrast), [], `locked, ${colorScheme}, ${device}`);
      await close(locked);
      const page = await unlocked({ colorScheme, viewport });
      await page.waitForSelector("#parked-list button");
      const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth);
      assert.ok(await fits(), `${colorScheme}, ${device}`);
      assert.deepEqual(await page.evaluate(lowContrast), [], `${colorScheme}, ${device}`);
      await page.screenshot({ path: join(screenshots, `dashboard-operator-${device}-${colorScheme}.png`), fullPage: true });
      await page.getByRole("button", { name: "discard order-even in customers" }).click();
      await page.waitForSelector("#confirm[open]");
      assert.deepEqual(await page.evaluate(lowContrast), [], `the dialog, ${colorScheme}, ${device}`);
      await page.screenshot({ path: join(screenshots, `dashboard-dialog-${device}-${colorScheme}.png`) });
      await page.keyboard.press("Escape");
      await close(page);
    }
  }
});

test("a step-down works with the keyboard alone", async () => {
  const page = await open(chromium, cluster.pods[0]);
  await page.waitForFunction(() => document.getElementById("leader").textContent.startsWith("pod-"));
  const [leader, term] = [await page.textContent("#leader"), Number(/^term (\d+)/.exec(await page.textContent("#leader-note"))[1])];
  const reach = async (id) => {
    for (let step = 0; step < 60; step += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate((id) => document.activeElement.id === id, id)) return;
    }
    assert.fail(`#${id} cannot be focused`);
  };
  await reach("token");
  await page.keyboard.type(TOKEN);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#actions:not([hidden])");
  assert.equal(await page.evaluate(() => document.activeElement.id), "step-down", "the first action has the focus");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#confirm[open]");
  assert.equal(await page.textContent("#confirm-title"), `Make ${leader} step down?`);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await waitForNote(page, `requested that ${leader} steps down from term ${term}`);
  await page.waitForFunction((was) => {
    const now = document.getElementById("leader").textContent;
    return now.startsWith("pod-") && now !== was;
  }, leader);
  assert.ok(Number(/^term (\d+)/.exec(await page.textContent("#leader-note"))[1]) > term);
  assert.deepEqual(page.errors, []);
  await close(page);
});
