// Basic, Standard and Premium with the official JavaScript SDK and ATOM.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { startEmptyBroker } from "./broker.mjs";

/** Runs with a broker of a tier that has no entities of a file. */
async function withTier(tier, run) {
  const broker = await startEmptyBroker("--tier", tier);
  const client = new ServiceBusClient(broker.connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 20_000 } });
  try {
    await run(broker, client);
  } finally {
    await client.close();
    await broker.stop();
  }
}

const refused = (answer, words) => {
  assert.equal(answer.status, 400, answer.text);
  assert.match(answer.text.replaceAll("&apos;", "'"), words);
};

test("the Basic tier has plain queues and small messages", () => withTier("basic", async (broker, client) => {
  assert.equal((await broker.create("q")).status, 201);
  refused(await broker.create("t", "", "Topic"), /Cannot operate on type Topic because the namespace is using 'Basic' tier/);
  for (const [property, value] of [["AutoDeleteOnIdle", "PT1H"], ["RequiresSession", "true"], ["RequiresDuplicateDetection", "true"],
    ["ForwardTo", "q"], ["ForwardDeadLetteredMessagesTo", "q"]]) {
    refused(await broker.create("other", `<${property}>${value}</${property}>`),
      new RegExp(`SubCode=40000. The property '${property}' cannot be set when creating a Queue because the namespace is using 'Basic' tier`));
  }
  refused(await broker.create("other", "<DefaultMessageTimeToLive>P15D</DefaultMessageTimeToLive>"), /between 00:00:01 and 14.00:00:00/);
  const read = await (await fetch(`http://${broker.address}/q?api-version=2021-05`)).text();
  assert.match(read, /<DefaultMessageTimeToLive>P14D</);
  const sender = client.createSender("q");
  await sender.sendMessages({ body: Buffer.alloc(261_000) });
  await assert.rejects(sender.sendMessages({ body: Buffer.alloc(263_000) }), { code: "MessageSizeExceeded" });
}));

test("the Standard tier has partitions, 100 of them, and 5 GB", () => withTier("standard", async (broker, client) => {
  const partitioned = "<EnablePartitioning>true</EnablePartitioning>";
  const sized = (megabytes) => `<MaxSizeInMegabytes>${megabytes}</MaxSizeInMegabytes>`;
  assert.equal((await broker.create("large", sized(5120))).status, 201);
  refused(await broker.create("larger", sized(10240)), /'MaxSizeInMegabytes' must not exceed 5120 when the namespace is using 'Standard' tier/);
  refused(await broker.create("message", "<MaxMessageSizeInKilobytes>2048</MaxMessageSizeInKilobytes>"), /SubCode=40000. Bad Request/);
  for (let n = 0; n < 100; n++) assert.equal((await broker.create(`p${n}`, partitioned)).status, 201);
  const more = await broker.create("p100", partitioned);
  assert.equal(more.status, 403);
  assert.match(more.text, /SubCode=40300. The maximum number of resources of type `partitioned Queue or Topic` has been reached/);
  await assert.rejects(client.createSender("large").sendMessages({ body: Buffer.alloc(263_000) }), { code: "MessageSizeExceeded" });
}));

test("the Premium tier has large messages and queues", () => withTier("premium", async (broker, client) => {
  refused(await broker.create("p", "<EnablePartitioning>true</EnablePartitioning>"), /'EnablePartitioning' cannot be set .* 'Premium' tier/);
  const settings = "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes><MaxMessageSizeInKilobytes>4096</MaxMessageSizeInKilobytes>";
  assert.equal((await broker.create("large", settings)).status, 201);
  await client.createSender("large").sendMessages({ body: Buffer.alloc(3_000_000) });
  const [message] = await client.createReceiver("large").receiveMessages(1, { maxWaitTimeInMs: 10_000 });
  assert.equal(message.body.length, 3_000_000);
  for (let n = 1; n < 1_000; n++) assert.equal((await broker.create(`q${n}`)).status, 201);
  assert.equal((await broker.create("q1000")).status, 403, "1,000 for a messaging unit");
}));
