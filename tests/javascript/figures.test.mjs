// Every figure of the page, with values that the test has made: what is put in at one end is read off the page at the other.
import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { browser } from "./browser.mjs";
import { openMongo } from "./mongo.mjs";
import { allThere, close, following, open, told } from "./page.mjs";
import { startPods } from "./pods.mjs";

let chromium;
let house;
let mongo;
let page;

const event = (type) => (order, version, payload) => ({ aggregateId: `order-${order}`, version, type, payload });
const placed = event("OrderPlaced");
const shipped = event("OrderShipped");
const write = (...events) => mongo.insert(house.source, "events", events);

before(async () => {
  [chromium, house] = await Promise.all([browser(), startPods(3)]);
  mongo = await openMongo(house.uri);
  await told(house.pods[0], "a leader and three pods", allThere);
  await told(house.pods[0], "a pipeline that follows the stream", following);
  page = await open(chromium, house.pods[0]);
});

after(async () => {
  assert.deepEqual(page?.errors, []);
  await chromium?.close();
  mongo?.close();
  await house?.stop();
});

const text = (id) => page.textContent(`#${id}`);
/** Waits until the page shows this. */
const shows = (id, words) => page.waitForFunction(([id, words]) => document.getElementById(id).textContent === words, [id, words]);
/** Cells of a table, row by row, as they are shown. */
const rows = (id) => page.locator(`#${id} tbody tr`).evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));

/** Waits until the rows of a table are as they should be. */
async function table(id, is) {
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
  await table("models", (models) => models.some(([name, documents]) => name === "order_summary" && documents === "30"));
  const before = Object.fromEntries((await rows("models")).map(([name, ...rest]) => [name, rest]));
  assert.deepEqual([before.order_summary[0], before.customers[0], before.shipments[0]], ["30", "5", "0"]);
  assert.equal(before.shipments[1], "unknown", "nothing was applied to it");

  // The two others grow older, and are seen to.
  const old = (age) => /^(\d+) s ago$/.test(age) && Number(/\d+/.exec(age)[0]) >= 4;
  await table("models", (models) => models.filter(([name]) => name !== "shipments").every(([, , age]) => old(age)));
  await write(shipped(0, 2, { by: "sea" }), shipped(1, 2, { by: "air" }));
  const models = await table("models", (models) => models.some(([name, documents, age]) => name === "shipments" && documents === "2" && age !== "unknown"));
  for (const [name, , age] of models.filter(([name]) => name !== "shipments")) assert.ok(old(age), `${name}: ${age}`);
});

test("what waits for a person is counted: parked, rejected, dead letters", async () => {
  for (const id of ["parked", "rejected", "dead-letters"]) assert.equal(await text(id), "none", id);
  await write(
    // What is no number cannot be added.
    placed("odd", 1, { customer: "customer-0", count: "many" }), placed("even", 1, { customer: "customer-0", count: "two" }),
    placed("odd", 2, { customer: "customer-0", count: 1 }),
    // Nobody's.
    { version: 1, type: "OrderPlaced", payload: {} },
  );
  const bus = new ServiceBusClient(house.broker.connectionString);
  const sender = bus.createSender("events");
  for (const stranger of [1, 2, 3]) await sender.sendMessages({ body: "hello", sessionId: `stranger-${stranger}` });
  await bus.close();

  await shows("parked", "2 aggregates");
  assert.equal(await text("parked-note"), "3 events in customers");
  const models = await table("models", (models) => models.some(([name, , , parked]) => name === "customers" && parked === "2"));
  assert.equal(models.find(([name]) => name === "order_summary")[3], "0");
  await shows("rejected", "1 event");
  assert.equal(await text("rejected-note"), "no_aggregate_id 1");
  await shows("dead-letters", "3");
  await shows("health", "3 problems");
  const problems = await page.locator("#problem-list li").allTextContents();
  assert.deepEqual(problems, ["warning2 aggregates are parked", "warning1 event was rejected", "warning3 dead letters are on the bus"]);
});

test("sessions per pod, and events that wait on the bus", async () => {
  const held = ["order-held-1", "order-held-2", "order-held-3"];
  const release = await mongo.hold(`${house.source}_views`, "order_summary", held);
  const writer = await openMongo(house.uri);
  await writer.insert(house.source, "events", [1, 2, 3].map((n) => placed(`held-${n}`, 1, { customer: "customer-9", count: 1 })));
  writer.close();
  // Each is a session of its own, and none can be applied.
  const pods = await table("pods", (pods) => pods.reduce((sum, pod) => sum + Number(pod[3]), 0) === 3);
  assert.equal(pods.length, 3);
  await shows("bus", "3 messages");
  await shows("lag-note", "3 events");
  await release();
  await shows("lag-note", "0 events");
  await table("pods", (pods) => pods.every((pod) => pod[3] === "0"));
});

test("lag and latency, of a bus that stood still", async () => {
  // What was applied before is out of the picture after half a minute.
  await told(house.pods[0], "a quiet half minute", ({ latency }) => latency === null);
  await shows("latency", "unknown");
  assert.equal(await text("latency-note"), "no event lately");
  house.broker.pause();
  try {
    await write(placed("late", 1, { customer: "customer-8", count: 1 }));
    await page.waitForFunction(() => /^\d+s$/.test(document.getElementById("lag").textContent) && parseInt(document.getElementById("lag").textContent, 10) >= 3);
    assert.match(await text("lag-note"), /^at least 1 event$/, "what waits on the bus cannot be asked");
  } finally {
    house.broker.resume();
  }
  await page.waitForFunction(() => ["0s", "1s"].includes(document.getElementById("lag").textContent));
  // It took as long as the bus stood still.
  const { latency } = await told(house.pods[0], "a latency", ({ latency }) => latency !== null);
  assert.equal(latency.events, 1);
  assert.ok(latency.p50_seconds >= 2, `${latency.p50_seconds} s`);
  const words = `${latency.p50_seconds < 10 ? latency.p50_seconds.toFixed(1) : Math.round(latency.p50_seconds)}s median`;
  await shows("latency", words);
  assert.match(await text("latency-note"), /^99 % within [\d.]+ s$/);
});

test("the plots hold what has happened", async () => {
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
    assert.ok(points.some(([, y]) => y < floor - 5), `${title}: something rises above the floor`);
    assert.ok(lines.every((line) => line.every(([x], at) => at === 0 || x > line[at - 1][0])), `${title}: time goes on`);
    const most = /; at most ([\d.,]+)/.exec(label);
    assert.ok(most && parseFloat(most[1].replaceAll(",", "")) > 0, label);
  }
  // The bus stood still for three seconds and more.
  assert.match(plots[0].label, /^Lag: now [01] s; at most ([3-9]|\d\d+) s in the last five minutes$/);
});

test("throughput is told while events flow", async () => {
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

// Last: from here on the server's clock stands still for two hours.
test("how much history the oplog holds, and how long the checkpoint could stand still", async () => {
  await mongo.advance(2 * 3_600);
  await write(placed("tomorrow", 1, { customer: "customer-7", count: 1 }));
  const { oplog } = await told(house.pods[0], "an oplog of two hours, and a checkpoint at its end", ({ oplog }) =>
    oplog.window_seconds >= 7_200 && oplog.headroom_seconds > oplog.window_seconds);
  assert.ok(oplog.window_seconds < 7_800, `${oplog.window_seconds} s`);
  await shows("headroom-note", `the oplog spans ${(oplog.window_seconds / 3_600).toFixed(1)} h`);
  // It is all but empty, so that there is far more room than it has used.
  const shown = await text("headroom");
  assert.match(shown, /^[\d,.]+(h|days)$/);
  const seconds = parseFloat(shown.replaceAll(",", "")) * (shown.endsWith("days") ? 86_400 : 3_600);
  assert.ok(Math.abs(seconds - oplog.headroom_seconds) < 0.2 * oplog.headroom_seconds, `${shown}, and ${oplog.headroom_seconds} s was told`);
  await close(page);
});
