// The dashboard in a real browser, served by real pods: it shows a takeover, and everybody can read it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { browser } from "./browser.mjs";
import { illegible } from "./legibility.mjs";
import { openMongo } from "./mongo.mjs";
import { SOON, allThere, asked, close, following, open as openIn, told } from "./page.mjs";
import { startPods } from "./pods.mjs";

let chromium;
let house;
let screenshots;

before(async () => {
  screenshots = process.env.SCREENSHOTS ?? await mkdtemp(join(tmpdir(), "headwater-screenshots-"));
  [chromium, house] = await Promise.all([browser(), startPods(3)]);
});

after(async () => {
  await chromium?.close();
  await house?.stop();
});

const open = (pod, options) => openIn(chromium, pod, options);
const settled = (page) => page.waitForFunction(() => document.getElementById("leader").textContent.startsWith("pod-"));

/** `headwater status`: how it ended, and what it said. */
const command = (...words) => new Promise((resolve) => {
  execFile(process.env.HEADWATER_BIN, ["status", "--config", house.file, ...words], (error, stdout, stderr) =>
    resolve({ code: error ? error.code : 0, stdout, stderr }));
});

test("every pod's page tells the same leader, pods and read models", async () => {
  for (const pod of house.pods) {
    const { leader } = await told(pod, "a leader and three pods", allThere);
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

test("the command line tells what the page shows, and every pod says that it is well", async () => {
  const { leader } = await told(house.pods[0], "a leader and three pods", allThere);
  const json = await command("--json");
  assert.equal(json.code, 0, json.stderr);
  const status = JSON.parse(json.stdout);
  assert.deepEqual([status.leader.pod, status.leader.term], [leader.pod, leader.term]);
  const table = await command();
  assert.equal(table.code, 0, table.stderr);
  assert.match(table.stdout, new RegExp(`^leader +${leader.pod}, term ${leader.term}, for `, "m"));
  assert.match(table.stdout, /^dead letters +0$/m, "the broker was asked");
  for (const pod of house.pods) {
    await told(pod, "the same leader", (status) => status.leader?.term === leader.term);
    for (const path of ["healthz", "readyz"]) {
      const answer = await fetch(`${pod.url}${path}`);
      assert.equal(answer.status, 200, await answer.text());
    }
    const metrics = await (await fetch(`${pod.url}metrics`)).text();
    assert.ok(metrics.includes(`headwater_build_info{pod="${pod.id}",`));
    assert.match(metrics, new RegExp(`^headwater_leads ${pod.id === leader.pod ? 1 : 0}$`, "m"));
    assert.match(metrics, /^headwater_leader_present 1$/m);
  }
});

test("events that are written are seen on the page: what was applied, and what is parked", async () => {
  await told(house.pods[0], "a pipeline that follows the stream", following);
  const mongo = await openMongo(house.uri);
  const placed = (order, payload) => ({ aggregateId: `order-${order}`, version: 1, type: "OrderPlaced", payload });
  await mongo.insert(house.source, "events",
    Array.from({ length: 300 }, (_, n) => placed(n, { customer: `customer-${n % 20}`, count: 1 })));
  // What is no number cannot be added: this order is parked in one of the two read models.
  await mongo.insert(house.source, "events", [placed("odd", { customer: "customer-0", count: "many" })]);
  mongo.close();

  const page = await open(house.pods[0]);
  await page.waitForFunction(() => {
    const documents = Object.fromEntries([...document.querySelectorAll("#models tbody tr")].map((row) => [row.cells[0].textContent, row.cells[1].textContent]));
    return documents.order_summary === "301" && documents.customers === "20";
  });
  await page.waitForFunction(() => document.getElementById("parked").textContent === "1 aggregate");
  assert.equal(await page.textContent("#parked-note"), "1 event in customers");
  assert.equal(await page.textContent("#problem-list"), "warning1 aggregate is parked");
  const status = await told(house.pods[0], "an idle bus", ({ subscription, lag }) => subscription.active_messages === 0 && lag.events === 0);
  assert.deepEqual([status.healthy, status.lag.is_lower_bound, status.subscription.dead_letters], [true, false, 0]);
  const applied = await Promise.all(house.pods.map(async (pod) =>
    Number(/^headwater_events_applied_total (\d+)$/m.exec(await (await fetch(`${pod.url}metrics`)).text())[1])));
  assert.equal(applied.reduce((sum, count) => sum + count), 300, "and one is parked");
  await close(page);
});

test("it can be read in light and in dark, on a desk and on a phone", async () => {
  const grounds = [];
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desk", { width: 1280, height: 900 }], ["tablet", { width: 820, height: 1100 }],
      ["phone", { width: 390, height: 844 }], ["small", { width: 320, height: 640 }]]) {
      const page = await open(house.pods[0], { colorScheme, viewport });
      await settled(page);
      assert.deepEqual(await page.evaluate(illegible), [], `${colorScheme}, ${device}`);
      const [content, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      assert.ok(content <= room, `${colorScheme}, ${device}: ${content} px wide in ${room}`);
      await page.screenshot({ path: join(screenshots, `dashboard-${device}-${colorScheme}.png`), fullPage: true });
      if (device === "desk") grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
      assert.deepEqual(page.errors, []);
      await close(page);
    }
  }
  assert.notEqual(grounds[0], grounds[1], "light and dark differ");
});

test("a text that is too pale would be found", async () => {
  const page = await open(house.pods[0]);
  await settled(page);
  await page.evaluate(() => document.documentElement.style.setProperty("--quiet", "#a0a8a6"));
  assert.ok((await page.evaluate(illegible)).some((found) => found.startsWith("P leader-note")));
  await close(page);
});

test("problems, and what nobody knows, can be read as well", async () => {
  const status = await asked(house.pods[0]);
  const hostile = `<img src=x onerror="document.title='owned'">`;
  Object.assign(status, {
    healthy: false, leader: null, latency: null, checkpoint: null, parked: null, rejected: [{ reason: "too_large", events: 2 }],
    problems: [{ code: "no_leader", severity: "critical", text: "no pod leads: nothing is published" },
      { code: "oplog_headroom", severity: "warning", text: "the checkpoint falls off", page: "E0001" }],
    lag: { seconds: null, events: null, is_lower_bound: true }, oplog: { headroom_seconds: null, window_seconds: null },
  });
  Object.assign(status.pods[1], { id: hostile, silent: true, last_seen_seconds_ago: 12, address: "javascript:alert(1)" });
  status.pods[2].problems = [{ service: "consumer", text: "the bus cannot be reached" }];
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(house.pods[0], { colorScheme });
    await page.route("**/api/status", (route) => route.fulfill({ json: status }));
    await page.waitForFunction(() => document.getElementById("leader").textContent === "nobody");
    assert.deepEqual(await page.evaluate(illegible), [], colorScheme);
    for (const id of ["lag", "headroom", "latency", "parked", "phase"]) assert.equal(await page.textContent(`#${id}`), "unknown", id);
    assert.equal(await page.textContent("#rejected"), "2 events");
    assert.deepEqual(await page.locator("#problem-list .word").allTextContents(), ["critical", "warning"]);
    assert.match(await page.textContent("#problem-list"), /docs\/errors\/E0001\.md/);
    assert.ok((await page.locator("#pods tbody").textContent()).includes(hostile), "a name is shown as it is");
    assert.equal(await page.locator("#pods tbody img").count(), 0);
    assert.equal(await page.locator('a[href^="javascript"]').count(), 0);
    await page.screenshot({ path: join(screenshots, `dashboard-problems-${colorScheme}.png`), fullPage: true });
    await close(page);
  }
});

test("it can be walked through with the keyboard alone", async () => {
  const page = await open(house.pods[0]);
  await settled(page);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  assert.ok(await page.evaluate(() => document.activeElement.getBoundingClientRect().left >= 0), "the way past the head is seen");
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
    assert.ok(focus.ring, `${focus.text} shows that it has the focus`);
    passed.push(focus.text);
  }
  assert.deepEqual(passed, links);

  // The table is drawn anew every second; whoever stands on a link stays there.
  await page.locator("#pods a").first().focus();
  const drawn = await page.evaluateHandle(() => document.querySelector("#pods tbody tr"));
  await page.waitForFunction((row) => !row.isConnected, drawn);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), await page.locator("#pods a").first().textContent());
  await close(page);
});

test("a screen reader hears what the plots show", async () => {
  const page = await open(house.pods[0]);
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

/** What the head of the page says of the pipeline, and of itself. */
const head = (page) => page.evaluate(() => ({
  health: document.getElementById("health").textContent, tag: document.getElementById("health").className,
  freshness: document.getElementById("freshness").textContent, body: document.body.className,
}));
const lives = (page) => page.waitForFunction(() => document.body.className === "fresh" && /good|warn|bad/.test(document.getElementById("health").className));
/** Within less than it takes until figures are too old to show: it is the answer that is missing. */
const isAtALoss = (page) => page.waitForFunction(() =>
  document.body.className === "stale" && document.getElementById("health").className === "tag", null, { timeout: 8_000 });

test("a pod that stands still does not look well on its page, and is there again when it goes on", async () => {
  const { leader } = await told(house.pods[0], "a leader and three pods", allThere);
  const pod = house.pods.find((pod) => pod.id !== leader.pod);
  const page = await open(pod);
  await lives(page);
  pod.pause();
  try {
    await isAtALoss(page);
    const { health, freshness } = await head(page);
    assert.equal(health, "unknown");
    assert.match(freshness, /^no answer for \d/);
    assert.match(await page.title(), /^no answer · shop/);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await page.evaluate(illegible), [], colorScheme);
    }
  } finally {
    pod.resume();
  }
  await lives(page);
  assert.equal((await head(page)).freshness, "live");
  assert.deepEqual(page.errors, []);
  await close(page);
});

// Last: they take pods away.
test("when the leader is killed, the page shows the next pod and its term", async () => {
  const before = await told(house.pods[0], "a leader and three pods", allThere);
  const leading = house.pods.find((pod) => pod.id === before.leader.pod);
  const page = await open(house.pods.find((pod) => pod !== leading));
  await page.waitForFunction((id) => document.getElementById("leader").textContent === id, leading.id);
  const its = await open(leading);
  await lives(its);

  await leading.kill();
  await isAtALoss(its);
  assert.match((await head(its)).freshness, /^no answer for \d/);
  await close(its);
  await page.waitForFunction((id) => {
    const shown = document.getElementById("leader").textContent;
    return shown.startsWith("pod-") && shown !== id;
  }, leading.id);

  const shown = await page.textContent("#leader");
  const term = Number(/^term (\d+)/.exec(await page.textContent("#leader-note"))[1]);
  assert.ok(term > before.leader.term, `term ${term} follows ${before.leader.term}`);
  await page.waitForFunction(([term, pod]) => {
    const [first] = document.querySelectorAll("#terms tbody tr");
    return first?.cells[0].textContent === `${term}` && first.cells[1].textContent === pod;
  }, [term, shown]);
  await page.waitForFunction((id) => [...document.querySelectorAll("#pods tr.silent")].some((row) => row.textContent.startsWith(id)), leading.id);
  await page.waitForFunction(() => document.getElementById("problem-list").textContent.includes("not heard of any more"));
  assert.equal(await page.textContent("#health"), "2 problems", "the silent pod, and the parked order");
  assert.deepEqual(page.errors, []);
  await page.screenshot({ path: join(screenshots, "dashboard-takeover.png"), fullPage: true });
  await close(page);
});

test("a pod that is told to stop is not silent but gone, and without pods nobody leads", async () => {
  const running = [];
  for (const pod of house.pods) {
    if (await asked(pod).then(() => true, () => false)) running.push(pod);
  }
  await running[1].kill("SIGTERM");
  await told(running[0], "one pod fewer", ({ pods }) => !pods.some((pod) => pod.id === running[1].id));
  await running[0].kill();
  const until = Date.now() + SOON;
  let said;
  do said = await command("--json"); while (said.code === 0 && Date.now() < until);
  assert.equal(said.code, 4, said.stdout);
  assert.equal(JSON.parse(said.stdout).problems[0].code, "no_leader");
  assert.match(said.stderr, /`shop` is not healthy: 1 critical/);
});
