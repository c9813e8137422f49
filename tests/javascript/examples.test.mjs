// The fixture and the example of docs/broker.md, as they stand there.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { after, afterEach, before, test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";

/** The first JavaScript code of a section. */
async function code(heading) {
  const page = await readFile(new URL("../../docs/broker.md", import.meta.url), "utf8");
  return page.split(`### ${heading}\n`)[1].match(/```js\n([\s\S]*?)```/)[1];
}

let broker;

before(async () => {
  const source = (await code("Fixtures")).replace("export async function startBroker()", "return async function startBroker()")
    .replace('"headwater"', JSON.stringify(process.env.HEADWATER_BIN));
  const startBroker = new Function("spawn", "createInterface", source)(spawn, createInterface);
  broker = await startBroker();
});

afterEach(() => broker.reset());
after(() => broker.stop());

for (const turn of [1, 2]) {
  test(`the fixture gives every test an empty broker (${turn})`, async () => {
    const client = new ServiceBusClient(broker.connectionString);
    assert.deepEqual(await client.createReceiver("orders").peekMessages(1), []);
    await client.createSender("orders").sendMessages({ body: "left over" });
    await client.close();
  });
}

test("the example sends and receives", async () => {
  const source = (await code("Examples")).replace(/"Endpoint=[^"]*"/, JSON.stringify(broker.connectionString));
  const AsyncFunction = (async () => {}).constructor;
  const received = await new AsyncFunction("ServiceBusClient", `${source}; return message;`)(ServiceBusClient);
  assert.equal(received.body, "hello");
});
