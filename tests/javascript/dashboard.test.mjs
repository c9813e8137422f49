// The dashboard of real pods in a real browser: takeover, accessibility, and missing data.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { browser } from "./browser.mjs";
import { lowContrast } from "./legibility.mjs";
import { openMongo } from "./mongo.mjs";
import { SOON, hasLeaderAndThreePods, getStatus, close, isStreaming, open as openIn, waitForStatus } from "./page.mjs";
import { startPods } from "./pods.mjs";

let chromium;
let cluster;
let screenshots;

before(async () => {
  screenshots = process.env.SCREENSHOTS ?? await mkdtemp(join(tmpdir(), "headwater-screenshots-"));
  [chromium, cluster] = await Promise.all([browser(), startPods(3)]);
});

after(async () => {
  await chromium?.close();
  await cluster?.stop();
});

const open = (pod, options) => openIn(chromium, pod, options);
const waitForLeader = (page) => page.waitForFunction(() => document.getElementById("leader").textContent.startsWith("pod-"));

/** Runs `headwater status`; resolves to its exit code and output. */
const runStatus = (...words) => new Promise((resolve) => {
  execFile(process.env.HEADWATER_BIN, ["status", "--config", cluster.file, ...words], (error, stdout, stderr) =>
    resolve({ code: error ? error.code : 0, stdout, stderr }));
});

test("every pod shows the same leader, pods and read models", async () => {
  for (const pod of cluster.pods) {
    const { leader } = await waitForStatus(pod, "a leader and three pods", hasLeaderAndThreePods);
    const page = await open(pod);
    await page.waitForFunction((id) => document.getElementById("leader").textContent === id, leader.pod);
    assert.match(await page.textContent("#leader-note"), new RegExp(`^term ${leader.term} · for \\d`));
    const rows = await page.locator("#pods tbody tr").allTextContents();
    assert.deepEqual(rows.map((row) => row.slice(0, 5)), ["pod-0", "pod-1", "pod-2"]);
    assert.equal(await page.locator("#pods .tag.lead").count(), 1);
    assert.deepEqual((await page.locator("#models .id").allTextContents()).sort(), ["customers", "order_summary", "shipments"]);
    assert.equal(await page.textContent("#parked"), "none");
    assert.equal(await page.textContent("#rejected"), "none");
    assert.equal(await page.locator("svg.plot").count(), 3);
    assert.equal(await page.title(), `${leader.pod} leads · shop · Headwater`);
    assert.deepEqual(page.errors, []);
    await close(page);
  }
});

test("the command line agrees with the page: every pod is healthy", async () => {
  const { leader } = await waitForStatus(cluster.pods[0], "a leader and three pods", hasLeaderAndThreePods);
  const json = await runStatus("--json");
  assert.equal(json.code, 0, json.stderr);
  const status = JSON.parse(json.stdout);
  assert.deepEqual([status.leader.pod, status.leader.term], [leader.pod, leader.term]);
  const table = await runStatus();
  assert.equal(table.code, 0, table.stderr);
  assert.match(table.stdout, new RegExp(`^leader +${leader.pod}, term ${leader.term}, for `, "m"));
  assert.match(table.stdout, /^dead letters +0$/m, "the broker reports counts");
  for (const pod of cluster.pods) {
    await waitForStatus(pod, "the same leader", (status) => status.leader?.term === leader.term);
    for (const path of ["healthz", "readyz"]) {
      const answer = await fetch(`${pod.url}${path}`);
      assert.equal(answer.status, 200, await answer.text());
    }
    const metrics = await (await fetch(`${pod.url}metrics`)).text();
    assert.ok(metrics.includes(`headwater_build_info{pod="${pod.id}",`));
    assert.match(metrics, new RegExp(`^headwater_is_leader ${pod.id === leader.pod ? 1 : 0}$`, "m"));
    assert.match(metrics, /^headwater_leader_present 1$/m);
  }
});

test("applied and parked events are shown on the page", async () => {
  await waitForStatus(cluster.pods[0], "a pipeline that follows the stream", isStreaming);
  const mongo = await openMongo(cluster.uri);
  const placed = (order, payload) => ({ aggregateId: `order-${order}`, version: 1, type: "OrderPlaced", payload });
  await mongo.insert(cluster.source, "events",
    Array.from({ length: 300 }, (_, n) => placed(n, { customer: `customer-${n % 20}`, count: 1 })));
  // Adding a value that is not a number fails: this order is parked in one of the two read models.
  await mongo.insert(cluster.source, "events", [placed("odd", { customer: "customer-0", count: "many" })]);
  mongo.close();

  const page = await open(cluster.pods[0]);
  await page.waitForFunction(() => {
    const documents = Object.fromEntries([...document.querySelectorAll("#models tbody tr")].map((row) => [row.cells[0].textContent, row.cells[1].textContent]));
    return documents.order_summary === "301" && documents.customers === "20";
  });
  await page.waitForFunction(() => document.getElementById("parked").textContent === "1 aggregate");
  assert.equal(await page.textContent("#parked-note"), "1 event in customers");
  assert.equal(await page.textContent("#problem-list"), "warning1 aggregate is parked");
  const status = await waitForStatus(cluster.pods[0], "an empty subscription", ({ subscription, lag }) => subscription.active_messages === 0 && lag.events === 0);
  assert.deepEqual([status.healthy, status.lag.is_lower_bound, status.subscription.dead_letters], [true, false, 0]);
  const applied = await Promise.all(cluster.pods.map(async (pod) =>
    Number(/^headwater_events_applied_total (\d+)$/m.exec(await (await fetch(`${pod.url}metrics`)).text())[1])));
  assert.equal(applied.reduce((sum, count) => sum + count), 300, "the other one is parked");
  await close(page);
});

test("it is legible in both themes and at every width", async () => {
  const grounds = [];
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desktop", { width: 1280, height: 900 }], ["tablet", { width: 820, height: 1100 }],
      ["phone", { width: 390, height: 844 }], ["small", { width: 320, height: 640 }]]) {
      const page = await open(cluster.pods[0], { colorScheme, viewport });
      await waitForLeader(page);
      assert.deepEqual(await page.evaluate(lowContrast), [], `${colorScheme}, ${device}`);
      const [content, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      assert.ok(content <= room, `${colorScheme}, ${device}: ${content} px wide in ${room}`);
      await page.screenshot({ path: join(screenshots, `dashboard-${device}-${colorScheme}.png`), fullPage: true });
      if (device === "desktop") grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
      assert.deepEqual(page.errors, []);
      await close(page);
    }
  }
  assert.notEqual(grounds[0], grounds[1], "light and dark differ");
});

test("low contrast is detected", async () => {
  const page = await open(cluster.pods[0]);
  await waitForLeader(page);
  await page.evaluate(() => document.documentElement.style.setProperty("--quiet", "#a0a8a6"));
  assert.ok((await page.evaluate(lowContrast)).some((found) => found.startsWith("P leader-note")));
  await close(page);
});

test("problems and unknown values are legible", async () => {
  const status = await getStatus(cluster.pods[0]);
  const hostile = `<img src=x onerror="document.title='owned'">`;
  Object.assign(status, {
    healthy: false, leader: null, latency: null, checkpoint: null, parked: null, rejected: [{ reason: "too_large", events: 2 }],
    problems: [{ code: "no_leader", severity: "critical", text: "no pod is the leader: nothing is published" },
      { code: "oplog_headroom", severity: "warning", text: "the checkpoint falls off", page: "E0001" }],
    lag: { seconds: null, events: null, is_lower_bound: true }, oplog: { headroom_seconds: null, window_seconds: null },
  });
  Object.assign(status.pods[1], { id: hostile, silent: true, last_seen_seconds_ago: 12, address: "javascript:alert(1)" });
  status.pods[2].problems = [{ service: "consumer", text: "Service Bus cannot be reached" }];
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(cluster.pods[0], { colorScheme });
    await page.route("**/api/status", (route) => route.fulfill({ json: status }));
    await page.waitForFunction(() => document.getElementById("leader").textContent === "none");
    assert.deepEqual(await page.evaluate(lowContrast), [], colorScheme);
    for (const id of ["lag", "headroom", "latency", "parked", "phase"]) assert.equal(await page.textContent(`#${id}`), "unknown", id);
    assert.equal(await page.textContent("#rejected"), "2 events");
    assert.deepEqual(await page.locator("#problem-list .severity").allTextContents(), ["critical", "warning"]);
    assert.match(await page.textContent("#problem-list"), /docs\/errors\/E0001\.md/);
    assert.ok((await page.locator("#pods tbody").textContent()).includes(hostile), "a name is shown as it is");
    assert.equal(await page.locator("#pods tbody img").count(), 0);
    assert.equal(await page.locator('a[href^="javascript"]').count(), 0);
    await page.screenshot({ path: join(screenshots, `dashboard-problems-${colorScheme}.png`), fullPage: true });
    await close(page);
  }
});

test("it can be used with the keyboard alone", async () => {
  const page = await open(cluster.pods[0]);
  await waitForLeader(page);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  assert.ok(await page.evaluate(() => document.activeElement.getBoundingClientRect().left >= 0), "the skip link is visible");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");

  const links = await page.locator("main a, footer a").allTextContents();
  const passed = [];
  for (let step = 0; step < links.length; step += 1) {
    await page.keyboard.press("Tab");
    const focus = await page.evaluate(() => {
      const style = getComputedStyle(document.activeElement);
      return { text: document.activeElement.textContent, ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
    });
    assert.ok(focus.ring, `${focus.text} has a visible focus ring`);
    passed.push(focus.text);
  }
  assert.deepEqual(passed, links);

  // The table is redrawn every second, and the focus stays on its link.
  await page.locator("#pods a").first().focus();
  const drawn = await page.evaluateHandle(() => document.querySelector("#pods tbody tr"));
  await page.waitForFunction((row) => !row.isConnected, drawn);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), await page.locator("#pods a").first().textContent());
  await close(page);
});

test("plots have labels for screen readers", async () => {
  const page = await open(cluster.pods[0]);
  await page.waitForFunction(() => document.querySelector("svg.plot")?.getAttribute("aria-label"));
  const labels = await page.locator("svg.plot").evaluateAll((plots) => plots.map((plot) => plot.getAttribute("aria-label")));
  for (const [n, title] of ["Lag", "Events / s", "Insert to read model"].entries()) {
    assert.match(labels[n], new RegExp(`^${title}: now .*; at most .* in the last five minutes$`));
  }
  const unnamed = await page.evaluate(() => [...document.querySelectorAll("main section")]
    .filter((section) => !section.ariaLabel && !document.getElementById(section.getAttribute("aria-labelledby"))).length);
  assert.equal(unnamed, 0, "every section has a name");
  await close(page);
});

/** The health and the freshness shown in the page header. */
const header = (page) => page.evaluate(() => ({
  health: document.getElementById("health").textContent, tag: document.getElementById("health").className,
  freshness: document.getElementById("freshness").textContent, body: document.body.className,
}));
const waitForFresh = (page) => page.waitForFunction(() => document.body.className === "fresh" && /good|warn|bad/.test(document.getElementById("health").className));
/** Times out before the figures are too old to show, so that only a missing response passes. */
const waitForStale = (page) => page.waitForFunction(() =>
  document.body.className === "stale" && document.getElementById("health").className === "tag", null, { timeout: 8_000 });

test("a paused pod is shown as unknown, and recovers", async () => {
  const { leader } = await waitForStatus(cluster.pods[0], "a leader and three pods", hasLeaderAndThreePods);
  const pod = cluster.pods.find((pod) => pod.id !== leader.pod);
  const page = await open(pod);
  await waitForFresh(page);
  pod.pause();
  try {
    await waitForStale(page);
    const { health, freshness } = await header(page);
    assert.equal(health, "unknown");
    assert.match(freshness, /^no response for \d/);
    assert.match(await page.title(), /^no response · shop/);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await page.evaluate(lowContrast), [], colorScheme);
    }
  } finally {
    pod.resume();
  }
  await waitForFresh(page);
  assert.equal((await header(page)).freshness, "live");
  assert.deepEqual(page.errors, []);
  await close(page);
});

// The last tests: they stop pods.
test("after a crash the page shows new leader and lost term", async () => {
  const before = await waitForStatus(cluster.pods[0], "a leader and three pods", hasLeaderAndThreePods);
  const leading = cluster.pods.find((pod) => pod.id === before.leader.pod);
  const page = await open(cluster.pods.find((pod) => pod !== leading));
  await page.waitForFunction((id) => document.getElementById("leader").textContent === id, leading.id);
  const oldPage = await open(leading);
  await waitForFresh(oldPage);

  await leading.kill();
  await waitForStale(oldPage);
  assert.match((await header(oldPage)).freshness, /^no response for \d/);
  await close(oldPage);
  await page.waitForFunction((id) => {
    const shown = document.getElementById("leader").textContent;
    return shown.startsWith("pod-") && shown !== id;
  }, leading.id);

  const shown = await page.textContent("#leader");
  const term = Number(/^term (\d+)/.exec(await page.textContent("#leader-note"))[1]);
  assert.ok(term > before.leader.term, `term ${term} follows ${before.leader.term}`);
  await page.waitForFunction(([term, pod]) => {
    const [first] = document.querySelectorAll("#terms tbody tr");
    return first?.cells[0].textContent === `${term}` && first.cells[1].textContent === pod && first.cells[4].textContent === "leads";
  }, [term, shown]);
  // The crashed leader could not record the end of its term.
  await page.waitForFunction((term) => {
    const lost = [...document.querySelectorAll("#terms tbody tr")].find((row) => row.cells[0].textContent === `${term}`);
    return /^crashed or lost contact, before \d/.test(lost?.cells[4].textContent) && /^at most /.test(lost.cells[3].textContent);
  }, before.leader.term);
  await page.waitForFunction((id) => [...document.querySelectorAll("#pods tr.silent")].some((row) => row.textContent.startsWith(id)), leading.id);
  await page.waitForFunction(() => document.getElementById("problem-list").textContent.includes("no heartbeat from"));
  assert.equal(await page.textContent("#health"), "2 problems", "the silent pod, and the parked order");
  assert.deepEqual(page.errors, []);
  await page.screenshot({ path: join(screenshots, "dashboard-takeover.png"), fullPage: true });
  await close(page);
});

test("a stopped pod is removed; without pods there is no leader", async () => {
  const running = [];
  for (const pod of cluster.pods) {
    if (await getStatus(pod).then(() => true, () => false)) running.push(pod);
  }
  await running[1].kill("SIGTERM");
  await waitForStatus(running[0], "one pod fewer", ({ pods }) => !pods.some((pod) => pod.id === running[1].id));
  await running[0].kill();
  const until = Date.now() + SOON;
  let result;
  do result = await runStatus("--json"); while (result.code === 0 && Date.now() < until);
  assert.equal(result.code, 4, result.stdout);
  assert.equal(JSON.parse(result.stdout).problems[0].code, "no_leader");
  assert.match(result.stderr, /`shop` is unhealthy: 1 critical/);
});
