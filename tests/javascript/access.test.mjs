// Keys and rights with the official JavaScript SDK.
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { startBroker } from "./broker.mjs";
import { bodies, receive } from "./client.mjs";

const KEYS = { keys: [
  { name: "sender", key: "sender-key", rights: ["Send"] },
  { name: "reader", key: "reader-key", rights: ["Listen"] },
  { name: "plain", key: "plain-key", rights: ["Send", "Listen"], entity: "plain" },
] };

let broker;
let folder;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "keys-"));
  await writeFile(join(folder, "keys.json"), JSON.stringify(KEYS));
  broker = await startBroker("--keys", join(folder, "keys.json"));
});

after(async () => {
  await broker.stop();
  await rm(folder, { recursive: true });
});

/** Runs with a client of one key. */
async function as(name, key, run) {
  const string = `Endpoint=sb://${broker.address};SharedAccessKeyName=${name};SharedAccessKey=${key};UseDevelopmentEmulator=true;`;
  const client = new ServiceBusClient(string, { retryOptions: { maxRetries: 0, timeoutInMs: 20_000 } });
  try {
    return await run(client);
  } finally {
    await client.close();
  }
}

const send = (queue) => (client) => client.createSender(queue).sendMessages({ body: "a" });
const refused = (name, key, run) => assert.rejects(as(name, key, run), { code: "UnauthorizedAccess" });

test("a key gives its rights and no others", async () => {
  await as("sender", "sender-key", send("settle"));
  assert.deepEqual(await as("reader", "reader-key", async (client) => bodies(await receive(client.createReceiver("settle"), 1))), ["a"]);
  await refused("reader", "reader-key", send("settle"));
  await refused("sender", "sender-key", (client) => client.createReceiver("settle").receiveMessages(1, { maxWaitTimeInMs: 2_000 }));
});

test("a key of one queue opens no other", async () => {
  await as("plain", "plain-key", send("plain"));
  await refused("plain", "plain-key", send("settle"));
});

test("a wrong key and an unknown name are refused", async () => {
  await refused("sender", "reader-key", send("plain"));
  await refused("nobody", "sender-key", send("plain"));
});
