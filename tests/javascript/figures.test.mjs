// Every figure on the page, compared with values that the test produced.
import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { browser } from "./browser.mjs";
import { openMongo } from "./mongo.mjs";
import { hasLeaderAndThreePods, close, isStreaming, open, waitForStatus } from "./page.mjs";
import { startPods } from "./pods.mjs";

let chromium;
let cluster;
let mongo;
let page;

const event = (type) => (order, version, payload) => ({ aggregateId: `order-${order}`, version, type, payload });
const placed = event("OrderPlaced");
const shipped = event("OrderShipped");
const write = (...events) => mongo.insert(cluster.source, "events", events);

before(async () => {
  [chromium, cluster] = await Promise.all([browser(), startPods(3)]);
  mongo = await openMongo(cluster.uri);
  await waitForStatus(cluster.pods[0], "a leader and three pods", hasLeaderAndThreePods);
  await waitForStatus(cluster.pods[0], "a pipeline that follows the stream", isStreaming);
  page = await open(chromium, cluster.pods[0]);
});

after(async () => {
  assert.deepEqual(page?.errors, []);
  await chromium?.close();
  mongo?.close();
  await cluster?.stop();
});

const text = (id) => page.textContent(`#${id}`);
/** Waits until the element has this text. */
const waitForText = (id, words) => page.waitForFunction(([id, words]) => document.getElementById(id).textContent === words, [id, words]);
/** The texts of a table's cells, by row. */
const rows = (id) => page.locator(`#${id} tbody tr`).evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));

/** Waits until the rows of a table satisfy `is`. */
async function waitForTable(id, is) {
  const until = Date.now() + 60_000;
  let last;
  do {
    last = await rows(id);
    if (is(last)) return last;
    await page.waitForTimeout(100);
  } while (Date.now() < until);
  throw new Error(`#${id}: ${JSON.stringify(last)}`);
}

test("each read model has its own count and its own age", async () => {
  await write(...Array.from({ length: 30 }, (_, n) => placed(n, 1, { customer: `customer-${n % 5}`, count: 1 })));
  await waitForTable("models", (models) => models.some(([name, documents]) => name === "order_summary" && documents === "30"));
  const before = Object.fromEntries((await rows("models")).map(([name, ...rest]) => [name, rest]));
  assert.deepEqual([before.order_summary[0], before.customers[0], before.shipments[0]], ["30", "5", "0"]);
  assert.equal(before.shipments[1], "unknown", "no event was applied to it");

  // The two others grow older.
  const old = (age) => /^(\d+) s ago$/.test(age) && Number(/\d+/.exec(age)[0]) >= 4;
  await waitForTable("models", (models) => models.filter(([name]) => name !== "shipments").every(([, , age]) => old(age)));
  await write(shipped(0, 2, { by: "sea" }), shipped(1, 2, { by: "air" }));
  const models = await waitForTable("models", (models) => models.some(([name, documents, age]) => name === "shipments" && documents === "2" && age !== "unknown"));
  for (const [name, , age] of models.filter(([name]) => name !== "shipments")) assert.ok(old(age), `${name}: ${age}`);
});

test("parked, rejected and dead-lettered are counted", async () => {
  for (const id of ["parked", "rejected", "dead-letters"]) assert.equal(await text(id), "none", id);
  await write(
    // Adding a value that is not a number fails.
    placed("odd", 1, { customer: "customer-0", count: "many" }), placed("even", 1, { customer: "customer-0", count: "two" }),
    placed("odd", 2, { customer: "customer-0", count: 1 }),
    // Without an aggregate id.
    { version: 1, type: "OrderPlaced", payload: {} },
  );
  const bus = new ServiceBusClient(cluster.broker.connectionString);
  const sender = bus.createSender("events");
  for (const stranger of [1, 2, 3]) await sender.sendMessages({ body: "hello", sessionId: `stranger-${stranger}` });
  await bus.close();

  await waitForText("parked", "2 aggregates");
  assert.equal(await text("parked-note"), "3 events in customers");
  const models = await waitForTable("models", (models) => models.some(([name, , , parked]) => name === "customers" && parked === "2"));
  assert.equal(models.find(([name]) => name === "order_summary")[3], "0");
  await waitForText("rejected", "1 event");
  assert.equal(await text("rejected-note"), "no_aggregate_id 1");
  await waitForText("dead-letters", "3");
  await waitForText("health", "3 problems");
  const problems = await page.locator("#problem-list li").allTextContents();
  assert.deepEqual(problems, ["warning2 aggregates are parked", "warning1 event was rejected", "warning3 dead letters are on Service Bus"]);
});

test("sessions per pod, and active messages", async () => {
  const held = ["order-held-1", "order-held-2", "order-held-3"];
  const release = await mongo.hold(`${cluster.source}_views`, "order_summary", held);
  const writer = await openMongo(cluster.uri);
  await writer.insert(cluster.source, "events", [1, 2, 3].map((n) => placed(`held-${n}`, 1, { customer: "customer-9", count: 1 })));
  writer.close();
  // Each is a session of its own, and a transaction holds its document.
  const pods = await waitForTable("pods", (pods) => pods.reduce((sum, pod) => sum + Number(pod[3]), 0) === 3);
  assert.equal(pods.length, 3);
  await waitForText("active-messages", "3 messages");
  await waitForText("lag-note", "3 events");
  await release();
  await waitForText("lag-note", "0 events");
  await waitForTable("pods", (pods) => pods.every((pod) => pod[3] === "0"));
});

test("lag and latency of a paused broker", async () => {
  // Earlier events leave the latency window after half a minute.
  await waitForStatus(cluster.pods[0], "a quiet half minute", ({ latency }) => latency === null);
  await waitForText("latency", "unknown");
  assert.equal(await text("latency-note"), "no recent event");
  cluster.broker.pause();
  try {
    await write(placed("late", 1, { customer: "customer-8", count: 1 }));
    await page.waitForFunction(() => /^\d+s$/.test(document.getElementById("lag").textContent) && parseInt(document.getElementById("lag").textContent, 10) >= 3);
    assert.match(await text("lag-note"), /^at least 1 event$/, "the paused broker reports no counts");
  } finally {
    cluster.broker.resume();
  }
  await page.waitForFunction(() => ["0s", "1s"].includes(document.getElementById("lag").textContent));
  // The event took as long as the pause.
  const { latency } = await waitForStatus(cluster.pods[0], "a latency", ({ latency }) => latency !== null);
  assert.equal(latency.events, 1);
  assert.ok(latency.p50_seconds >= 2, `${latency.p50_seconds} s`);
  const words = `${latency.p50_seconds < 10 ? latency.p50_seconds.toFixed(1) : Math.round(latency.p50_seconds)}s median`;
  await waitForText("latency", words);
  assert.match(await text("latency-note"), /^99 % within [\d.]+ s$/);
});

test("the plots show the last minutes", async () => {
  // A checkpoint without events can be two seconds old on a busy machine: wait for the next one.
  await page.waitForFunction(() => /^Lag: now [01] s;/.test(document.querySelector("svg.plot").getAttribute("aria-label")));
  const plots = await page.locator("svg.plot").evaluateAll((plots) => plots.map((plot) => {
    const floor = Number(plot.querySelector(".base").getAttribute("y1"));
    const lines = [...plot.querySelectorAll("path.line")].map((line) =>
      [...line.getAttribute("d").matchAll(/([\d.]+),([\d.]+)/g)].map(([, x, y]) => [Number(x), Number(y)]));
    return { floor, lines, box: [plot.clientWidth, plot.clientHeight], label: plot.getAttribute("aria-label") };
  }));
  for (const [n, title] of ["Lag", "Events / s", "Insert to read model"].entries()) {
    const { floor, lines, box: [width, height], label } = plots[n];
    const points = lines.flat();
    assert.ok(points.length >= 10, `${title}: ${points.length} points`);
    assert.ok(points.every(([x, y]) => x >= 0 && x <= width && y >= 0 && y <= height), `${title}: all within the plot`);
    assert.ok(points.some(([, y]) => y < floor - 5), `${title}: a value above 0`);
    assert.ok(lines.every((line) => line.every(([x], at) => at === 0 || x > line[at - 1][0])), `${title}: time increases`);
    const most = /; at most ([\d.,]+)/.exec(label);
    assert.ok(most && parseFloat(most[1].replaceAll(",", "")) > 0, label);
  }
  // The broker was paused for at least three seconds.
  assert.match(plots[0].label, /^Lag: now [01] s; at most ([3-9]|\d\d+) s in the last five minutes$/);
});

test("throughput is shown while events flow", async () => {
  let [writing, number] = [true, 0];
  const shop = (async () => {
    while (writing) {
      await write(...Array.from({ length: 20 }, () => placed(`flow-${number += 1}`, 1, { customer: `customer-${number % 5}`, count: 1 })));
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  })();
  try {
    await page.waitForFunction(() => parseFloat(document.getElementById("throughput").textContent) >= 5);
    await page.waitForFunction(() => parseFloat(document.getElementById("throughput-note").textContent) >= 5);
    assert.match(await text("throughput"), /^[\d.,]+\/s applied$/);
    assert.match(await text("throughput-note"), /^[\d.,]+ \/s published$/);
  } finally {
    writing = false;
    await shop;
  }
});

// The last test: it moves the cluster time two hours ahead.
test("oplog window and headroom", async () => {
  await mongo.advance(2 * 3_600);
  await write(placed("tomorrow", 1, { customer: "customer-7", count: 1 }));
  const { oplog } = await waitForStatus(cluster.pods[0], "an oplog of two hours, and a checkpoint at its end", ({ oplog }) =>
    oplog.window_seconds >= 7_200 && oplog.headroom_seconds > oplog.window_seconds);
  assert.ok(oplog.window_seconds < 7_800, `${oplog.window_seconds} s`);
  await waitForText("headroom-note", `the oplog spans ${(oplog.window_seconds / 3_600).toFixed(1)} h`);
  // The oplog is almost empty, so its headroom is far larger than its window.
  const shown = await text("headroom");
  assert.match(shown, /^[\d,.]+(h|days)$/);
  const seconds = parseFloat(shown.replaceAll(",", "")) * (shown.endsWith("days") ? 86_400 : 3_600);
  assert.ok(Math.abs(seconds - oplog.headroom_seconds) < 0.2 * oplog.headroom_seconds, `${shown}, and ${oplog.headroom_seconds} s was reported`);
  await close(page);
});
