// The read models on the dashboard of real pods: state, generation, comparison with the source, rebuild and rollback by an operator.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { promisify } from "node:util";
import { browser } from "./browser.mjs";
import { lowContrast } from "./legibility.mjs";
import { openMongo } from "./mongo.mjs";
import { close, getStatus, isStreaming, open, waitForStatus } from "./page.mjs";
import { startPods } from "./pods.mjs";

const TOKEN = randomBytes(16).toString("hex");
const ORDERS = 30;

let chromium;
let cluster;
let mongo;
let screenshots;

before(async () => {
  screenshots = process.env.SCREENSHOTS ?? await mkdtemp(join(tmpdir(), "headwater-screenshots-"));
  [chromium, cluster] = await Promise.all([browser(), startPods(2, () => ({ HEADWATER__ADMIN__TOKEN: TOKEN }))]);
  mongo = await openMongo(cluster.uri);
  await waitForStatus(cluster.pods[0], "a pipeline that follows the stream", (status) => status.leader && isStreaming(status));
  await mongo.insert(cluster.source, "events", Array.from({ length: ORDERS }, (_, n) =>
    ({ aggregateId: `order-${n}`, version: 1, type: "OrderPlaced", payload: { customer: `customer-${n % 3}`, count: 1 } })));
  await waitForStatus(cluster.pods[0], "all orders applied", (status) => model(status, "order_summary")?.documents === ORDERS);
});

after(async () => {
  mongo?.close();
  await chromium?.close();
  await cluster?.stop();
});

const model = (status, name) => status.read_models.find((model) => model.name === name);
const run = promisify(execFile);
const headwater = async (...words) => (await run(process.env.HEADWATER_BIN, [...words, "--config", cluster.file])).stdout;
const post = (path, body, token = TOKEN) => fetch(`${cluster.pods[0].url}api/read-models/${path}`, { method: "POST", body: JSON.stringify(body), headers: { authorization: `Bearer ${token}` } });
const waitForNote = (page, text) => page.waitForFunction((text) => document.getElementById("action-note").textContent.includes(text), text);

async function unlocked(options) {
  const page = await open(chromium, cluster.pods[0], options);
  await page.fill("#token", TOKEN);
  await page.press("#token", "Enter");
  await page.waitForSelector("#actions:not([hidden])");
  await page.waitForSelector("#models .actions button");
  return page;
}

/** Waits until a later generation is active, and returns its number. */
async function changed(page, earlier) {
  await page.waitForFunction((earlier) => Number(document.getElementById("generation").textContent.split(" ")[1]) > earlier && document.getElementById("generation-stage").textContent === "active", earlier);
  return Number((await page.textContent("#generation")).split(" ")[1]);
}

/** Presses a button of a read model and confirms. */
async function act(page, label, confirmation) {
  await page.getByRole("button", { name: label, exact: true }).click();
  await page.locator("#confirm").getByRole("button", { name: confirmation, exact: true }).click();
}

test("every read model has a state, and nobody can act without the token", async () => {
  const page = await open(chromium, cluster.pods[1]);
  await page.waitForFunction(() => document.querySelectorAll("#models .tag.good").length === 3);
  assert.match(await page.textContent("#generation"), /^generation \d+$/);
  assert.equal(await page.textContent("#generation-stage"), "active");
  assert.equal(await page.locator("#models button:visible, #cancel-change:visible").count(), 0);
  for (const path of ["rebuild", "rollback", "verify", "cancel", "build/pause", "build/resume"]) assert.equal((await post(path, { read_model: "shipments" }, "wrong")).status, 401, path);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("a sample is verified, and the result is stored without contents", async () => {
  const page = await unlocked();
  await act(page, "verify order_summary", "Verify");
  await waitForNote(page, `order_summary: ${ORDERS} compared, 0 skipped, all equal`);
  await page.waitForFunction((text) => document.querySelector("#models tbody").textContent.includes(text), `${ORDERS} equal`);

  await mongo.set(`${cluster.source}_views`, "order_summary", "order-7", { status: "a secret" });
  await act(page, "verify order_summary", "Verify");
  await waitForNote(page, `order_summary: 1 of ${ORDERS} differ`);
  const { verification } = model(await waitForStatus(cluster.pods[1], "the difference", (status) => model(status, "order_summary").verification?.different === 1), "order_summary");
  assert.deepEqual([verification.compared, verification.repaired, verification.kinds], [ORDERS, 0, { "different value": 1 }]);
  assert.equal(verification.by, "dashboard of pod-0");
  assert.ok(!JSON.stringify(verification).includes("order-7") && !JSON.stringify(verification).includes("secret"));
  await page.waitForFunction(() => document.querySelector("#models .verified .problem")?.textContent.startsWith("1 document differed"));

  await headwater("read-model", "verify", "order_summary", "--all", "--repair");
  await waitForStatus(cluster.pods[0], "the repair", (status) => model(status, "order_summary").verification?.repaired === 1);
  assert.match(await headwater("status"), /1 of 30 differed/);
  await act(page, "verify customers", "Verify");
  await waitForNote(page, "can only be compared as a whole");
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("a read model is rebuilt and rolled back after confirmation", async () => {
  const page = await unlocked();
  const { number } = (await getStatus(cluster.pods[0])).generation;
  assert.equal(await page.getByRole("button", { name: "roll back order_summary" }).isDisabled(), true, "there is no earlier definition");
  await page.getByRole("button", { name: "rebuild order_summary" }).click();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel", "the safe choice has the focus");
  await page.keyboard.press("Enter");
  assert.equal((await getStatus(cluster.pods[0])).generation.number, number, "cancelling changes nothing");

  await act(page, "rebuild order_summary", "Rebuild");
  await waitForNote(page, "requested: the leader builds order_summary from the source");
  const rebuilt = await changed(page, number);
  await waitForStatus(cluster.pods[0], "a complete read model", (status) => model(status, "order_summary").state === "complete" && model(status, "order_summary").documents === ORDERS);

  await page.waitForFunction(() => !document.querySelector("[aria-label='roll back order_summary']").disabled);
  await act(page, "roll back order_summary", "Roll back");
  await changed(page, rebuilt);
  const refused = await post("cancel", {});
  assert.equal(refused.status, 409);
  assert.match((await refused.json()).refused, /no change is in progress/);
  const history = JSON.parse(await headwater("history", "--json"));
  const actions = history.map(({ action, by }) => `${action} by ${by}`);
  for (const action of ["verify", "rebuild", "rollback"]) assert.ok(actions.includes(`read-model ${action} by dashboard of pod-0`), `${action} in ${actions}`);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("a build is paused and resumed", async () => {
  const page = await unlocked();
  const { number } = (await getStatus(cluster.pods[0])).generation;
  assert.equal((await post("build/pause", {})).status, 200);
  assert.equal((await post("build/pause", {})).status, 409, "it is paused already");
  await act(page, "rebuild order_summary", "Rebuild");
  await waitForStatus(cluster.pods[0], "the build to wait", (status) => status.generation.stage === "building" && status.generation.build_paused);
  await page.waitForFunction(() => document.querySelector("#build-note").textContent.endsWith("; paused"));
  await page.getByRole("button", { name: "Resume the build", exact: true }).click();
  await waitForNote(page, "resumed the build of read models");
  await changed(page, number);
  await page.waitForFunction(() => document.querySelector("#pause-build").hidden);
  const history = JSON.parse(await headwater("history", "--json"));
  for (const action of ["pause", "resume"]) assert.ok(history.some((entry) => entry.action === action && entry.detail === "build" && entry.by === "dashboard of pod-0"), action);
  assert.deepEqual(page.errors, []);
  await close(page);
});

test("the read models are legible in both themes, while a build runs", async () => {
  const status = await getStatus(cluster.pods[0]);
  // A build of this size is over in a moment: the page gets the status of a longer one.
  const building = { ...status, generation: { ...status.generation, number: 7, stage: "building", built_aggregates: 41_200, total_aggregates: 128_000, built_events: 918_400, seconds_left: 94, request: "rebuild of order_summary, requested by ada@desk" } };
  building.read_models = status.read_models.map((model) => (model.name === "order_summary" ? { ...model, state: "building" } : model.name === "shipments" ? { ...model, state: "incomplete", incomplete: { reason: "added after events had been applied", since: status.collected.at } } : model));
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desktop", { width: 1280, height: 900 }], ["phone", { width: 390, height: 844 }]]) {
      const page = await unlocked({ colorScheme, viewport });
      await page.route("**/api/status", (route) => route.fulfill({ json: building }));
      await page.waitForSelector("#build:not([hidden])");
      assert.equal(await page.textContent("#build-note"), "41,200 of about 128,000 aggregates, 918,400 events, about 1 min 34 s left");
      assert.equal(await page.locator("#build-bar").getAttribute("value"), "41200");
      assert.equal(await page.locator("#cancel-change").isVisible(), true);
      assert.equal(await page.locator("#pause-build").textContent(), "Pause the build");
      assert.equal(await page.getByRole("button", { name: "rebuild customers" }).isDisabled(), true, "one change at a time");
      assert.deepEqual(await page.evaluate(lowContrast), [], `${colorScheme}, ${device}`);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), `${colorScheme}, ${device}`);
      await page.screenshot({ path: join(screenshots, `dashboard-read-models-${device}-${colorScheme}.png`), fullPage: true });
      await close(page);
    }
  }
});
