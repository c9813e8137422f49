// What the other suites stand on: a browser that renders, and the official SDK.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { once } from "node:events";
import test from "node:test";
import { parseServiceBusConnectionString } from "@azure/service-bus";
import { browser } from "./browser.mjs";

test("a real browser runs a page served on loopback", async () => {
  const server = createServer((_, answer) => {
    answer.setHeader("content-type", "text/html");
    answer.end("<p id=now></p><script>now.textContent = 6 * 7</script>");
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const chromium = await browser();
  try {
    const page = await chromium.newPage();
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    assert.equal(await page.textContent("#now"), "42");
  } finally {
    await chromium.close();
    server.close();
  }
});

test("the SDK reads a connection string of the emulator", () => {
  const parsed = parseServiceBusConnectionString(
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=key;SharedAccessKey=secret;UseDevelopmentEmulator=true");
  assert.equal(parsed.endpoint, "sb://127.0.0.1:5672");
});
