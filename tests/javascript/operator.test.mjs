// What an operator does on the page, with the token and without: in a real browser, on real pods.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { browser } from "./browser.mjs";
import { illegible } from "./legibility.mjs";
import { openMongo } from "./mongo.mjs";
import { allThere, asked, close, following, open, told } from "./page.mjs";
import { startPods } from "./pods.mjs";

const TOKEN = randomBytes(16).toString("hex");

let chromium;
let house;
let screenshots;

// The last pod has none.
before(async () => {
  screenshots = process.env.SCREENSHOTS ?? await mkdtemp(join(tmpdir(), "headwater-screenshots-"));
  [chromium, house] = await Promise.all([browser(), startPods(3, (n) => (n < 2 ? { HEADWATER__ADMIN__TOKEN: TOKEN } : {}))]);
  await told(house.pods[0], "a leader and three pods", allThere);
  await told(house.pods[0], "a pipeline that follows the stream", following);
  const mongo = await openMongo(house.uri);
  // What is no number cannot be added.
  await mongo.insert(house.source, "events", [["odd", 1], ["odd", 2], ["even", 1]].map(([order, version]) =>
    ({ aggregateId: `order-${order}`, version, type: "OrderPlaced", payload: { customer: "customer-0", count: "many" } })));
  mongo.close();
  await told(house.pods[0], "two orders that are parked", ({ parked }) => parked?.[0]?.events === 3);
});

after(async () => {
  await chromium?.close();
  await house?.stop();
});

async function unlocked(options) {
  const page = await open(chromium, house.pods[0], options);
  await page.fill("#token", TOKEN);
  await page.press("#token", "Enter");
  await page.waitForSelector("#acts:not([hidden])");
  return page;
}

const note = (page, words) => page.waitForFunction((words) => document.getElementById("act-note").textContent.includes(words), words);

test("without a token the page has nothing to press, and the pod does nothing", async () => {
  const page = await open(chromium, house.pods[2]);
  await page.waitForFunction(() => document.getElementById("leader").textContent.startsWith("pod-"));
  assert.equal(await page.locator("#operator").isVisible(), false);
  assert.equal(await page.locator("button:visible, input:visible").count(), 0);
  const answer = await fetch(`${house.pods[2].url}api/step-down`, { method: "POST", headers: { authorization: `Bearer ${TOKEN}` } });
  assert.equal(answer.status, 403);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("a token that is not the pod's opens nothing", async () => {
  const page = await open(chromium, house.pods[0]);
  await page.fill("#token", "guess-guess-guess");
  await page.press("#token", "Enter");
  await note(page, "not this pod's token");
  assert.equal(await page.locator("#acts").isVisible(), false);
  assert.equal(await page.evaluate(() => document.activeElement.id), "token");
  await close(page);
});

test("the token is kept by this page alone", async () => {
  const page = await unlocked();
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.documentElement.outerHTML]));
  assert.ok(!kept.includes(TOKEN));
  assert.equal(await page.inputValue("#token"), "");
  await page.reload();
  await page.waitForSelector("#unlock");
  assert.equal(await page.locator("#acts").isVisible(), false);
  await close(page);
});

test("another site's page can do nothing, whatever it knows", async () => {
  // Another port is another origin.
  const page = await open(chromium, house.pods[1]);
  const { leader } = await asked(house.pods[0]);
  const tried = await page.evaluate(async ([url, token]) => {
    const outcome = (promise) => promise.then((answer) => `${answer.type} ${answer.status}`, (error) => error.name);
    return Promise.all([
      outcome(fetch(`${url}api/step-down`, { method: "POST", headers: { authorization: `Bearer ${token}` } })),
      outcome(fetch(`${url}api/step-down`, { method: "POST", mode: "no-cors" })),
      outcome(fetch(`${url}api/status`)),
    ]);
  }, [house.pods[0].url, TOKEN]);
  // The page's own policy stops them before they are sent; what a page without one sends is refused, see below.
  assert.deepEqual(tried, ["TypeError", "TypeError", "TypeError"]);
  await close(page);

  const context = await chromium.newContext();
  const elsewhere = await context.newPage();
  await elsewhere.route("http://elsewhere.example/", (route) => route.fulfill({ contentType: "text/html", body: "<title>elsewhere</title>" }));
  await elsewhere.goto("http://elsewhere.example/");
  const forged = await elsewhere.evaluate(async ([url, token]) => {
    const outcome = (promise) => promise.then((answer) => `${answer.type} ${answer.status}`, (error) => error.name);
    return Promise.all([
      outcome(fetch(`${url}api/step-down`, { method: "POST", headers: { authorization: `Bearer ${token}` } })),
      outcome(fetch(`${url}api/status`)),
    ]);
  }, [house.pods[0].url, TOKEN]);
  assert.deepEqual(forged, ["TypeError", "TypeError"], "a browser does not even ask");
  await context.close();
  const now = await asked(house.pods[0]);
  assert.equal(now.leader?.term, leader.term, "nobody stepped down");
});

test("what is parked is retried and discarded, each after a question", async () => {
  const page = await unlocked();
  await page.waitForFunction(() => document.querySelectorAll("#parked-list tbody tr").length === 2);
  const odd = page.locator("#parked-list tbody tr", { hasText: "order-odd" });
  assert.match(await odd.textContent(), /^order-oddcustomerspoison2/);

  // Whoever thinks better of it changes nothing.
  await odd.getByRole("button", { name: "discard order-odd in customers" }).click();
  await page.keyboard.press("Escape");
  await odd.getByRole("button", { name: "retry order-odd in customers" }).click();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel", "the harmless choice has the focus");
  await page.keyboard.press("Enter");
  assert.equal(await page.locator("#parked-list tbody tr").count(), 2);

  await odd.getByRole("button", { name: "retry order-odd in customers" }).click();
  assert.match(await page.textContent("#confirm-text"), /^2 events of order-odd will be applied to customers/);
  await page.getByRole("button", { name: "Retry", exact: true }).click();
  await note(page, "order-odd stays parked in customers");

  await odd.getByRole("button", { name: "discard order-odd in customers" }).click();
  await page.getByRole("button", { name: "Discard all 2" }).click();
  await note(page, "2 events of order-odd were left out of customers");
  await page.waitForFunction(() => document.querySelectorAll("#parked-list tbody tr").length === 1);
  await page.waitForFunction(() => document.getElementById("parked").textContent === "1 aggregate");
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("the lock, the acts and the question can be read in light and dark, and on a phone", async () => {
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desk", { width: 1280, height: 900 }], ["phone", { width: 390, height: 844 }]]) {
      const locked = await open(chromium, house.pods[0], { colorScheme, viewport });
      await locked.waitForSelector("#unlock");
      assert.deepEqual(await locked.evaluate(illegible), [], `locked, ${colorScheme}, ${device}`);
      await close(locked);
      const page = await unlocked({ colorScheme, viewport });
      await page.waitForSelector("#parked-list button");
      const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth);
      assert.ok(await fits(), `${colorScheme}, ${device}`);
      assert.deepEqual(await page.evaluate(illegible), [], `${colorScheme}, ${device}`);
      await page.screenshot({ path: join(screenshots, `dashboard-operator-${device}-${colorScheme}.png`), fullPage: true });
      await page.getByRole("button", { name: "discard order-even in customers" }).click();
      await page.waitForSelector("#confirm[open]");
      assert.deepEqual(await page.evaluate(illegible), [], `the question, ${colorScheme}, ${device}`);
      await page.screenshot({ path: join(screenshots, `dashboard-question-${device}-${colorScheme}.png`) });
      await page.keyboard.press("Escape");
      await close(page);
    }
  }
});

test("with the keyboard alone an operator moves leadership, and the page shows it", async () => {
  const page = await open(chromium, house.pods[0]);
  await page.waitForFunction(() => document.getElementById("leader").textContent.startsWith("pod-"));
  const [leader, term] = [await page.textContent("#leader"), Number(/^term (\d+)/.exec(await page.textContent("#leader-note"))[1])];
  const reach = async (id) => {
    for (let step = 0; step < 60; step += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate((id) => document.activeElement.id === id, id)) return;
    }
    assert.fail(`#${id} cannot be reached`);
  };
  await reach("token");
  await page.keyboard.type(TOKEN);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#acts:not([hidden])");
  assert.equal(await page.evaluate(() => document.activeElement.id), "step-down", "the focus goes where the work is");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#confirm[open]");
  assert.equal(await page.textContent("#confirm-title"), `Ask ${leader} to step down?`);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await note(page, `${leader} is asked to give term ${term} up`);
  await page.waitForFunction((was) => {
    const now = document.getElementById("leader").textContent;
    return now.startsWith("pod-") && now !== was;
  }, leader);
  assert.ok(Number(/^term (\d+)/.exec(await page.textContent("#leader-note"))[1]) > term);
  assert.deepEqual(page.errors, []);
  await close(page);
});
