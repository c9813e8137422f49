// Forwarding with the official JavaScript SDK.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { startBroker } from "./broker.mjs";

let broker;
let client;

before(async () => {
  broker = await startBroker();
  client = new ServiceBusClient(broker.connectionString, { retryOptions: { maxRetries: 0 } });
});

after(async () => {
  await client.close();
  await broker.stop();
});

test("a forwarded message arrives once, with its properties", async () => {
  const to = await broker.makeQueue();
  const from = await broker.makeQueue(`<ForwardTo>sb://localhost/${to}</ForwardTo>`);
  await client.createSender(from).sendMessages({ body: "a", messageId: "m1", applicationProperties: { color: "red" } });
  const receiver = client.createReceiver(to);
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 30_000 });
  assert.deepEqual([message.body, message.messageId, message.applicationProperties], ["a", "m1", { color: "red" }]);
  await receiver.completeMessage(message);
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
});

test("a forwarded dead letter names its source", async () => {
  const to = await broker.makeQueue();
  const from = await broker.makeQueue(`<ForwardDeadLetteredMessagesTo>${to}</ForwardDeadLetteredMessagesTo>`);
  await client.createSender(from).sendMessages({ body: "a" });
  const receiver = client.createReceiver(from);
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 30_000 });
  await receiver.deadLetterMessage(message, { deadLetterReason: "why" });
  const [dead] = await client.createReceiver(to).receiveMessages(1, { maxWaitTimeInMs: 30_000 });
  assert.deepEqual([dead.deadLetterReason, dead.deadLetterSource], ["why", from]);
});
