// For tests of other applications: first use, reset, clock, faults and idle deletion, with the official JavaScript SDK.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { startBroker } from "./broker.mjs";
import { bodies, receive } from "./client.mjs";

let broker;
let client;

before(async () => {
  broker = await startBroker("--create-on-first-use", "--test-token", "t0ken");
  client = connect();
});

after(async () => {
  await client.close();
  await broker.stop();
});

const connect = (maxRetries = 0, timeoutInMs = 20_000) =>
  new ServiceBusClient(broker.connectionString, { retryOptions: { maxRetries, retryDelayInMs: 100, timeoutInMs } });

const advance = (ms) => broker.hook("clock", { advance_ms: ms });
const arm = (kind, entity, more = {}) => broker.hook("faults", { kind, entity, ...more });
const status = async (path) => (await fetch(`http://${broker.address}/${path}?api-version=2021-05`)).status;

test("a queue is created by its sender", async () => {
  assert.equal(await status("first-use"), 404);
  await client.createSender("first-use").sendMessages({ body: "a" });
  assert.deepEqual(bodies(await receive(client.createReceiver("first-use"), 1)), ["a"]);
});

test("a subscription and a queue with sessions are created", async () => {
  const subscription = client.createReceiver("first-topic", "all");
  await subscription.peekMessages(1);
  await client.createSender("first-topic").sendMessages({ body: "a" });
  assert.deepEqual(bodies(await receive(subscription, 1)), ["a"]);
  const session = await client.acceptSession("first-sessions", "s");
  await client.createSender("first-sessions").sendMessages({ body: "b", sessionId: "s" });
  assert.deepEqual(bodies(await receive(session, 1)), ["b"]);
  await session.close();
});

test("messages expire and are due when the clock moves", async () => {
  const queue = await broker.makeQueue("<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>");
  const sender = client.createSender(queue);
  await sender.sendMessages({ body: "expires", timeToLive: 60_000 });
  await sender.scheduleMessages({ body: "later" }, new Date(Date.now() + 3_600_000));
  const receiver = client.createReceiver(queue);
  await advance(61_000);
  const [dead] = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 1);
  assert.deepEqual([dead.body, dead.deadLetterReason], ["expires", "TTLExpiredException"]);
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  await advance(3_600_000);
  assert.deepEqual(bodies(await receive(receiver, 1)), ["later"]);
});

test("a lock expires when the clock moves", async () => {
  const queue = await broker.makeQueue("<LockDuration>PT1M</LockDuration>");
  await client.createSender(queue).sendMessages({ body: "a" });
  const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
  const [message] = await receive(receiver, 1);
  await advance(61_000);
  await assert.rejects(receiver.completeMessage(message), { code: "MessageLockLost" });
  const [again] = await receive(receiver, 1);
  assert.equal(again.deliveryCount, 1);
  await receiver.completeMessage(again);
});

test("an idle queue is deleted, others stay", async () => {
  const idleTime = "<AutoDeleteOnIdle>PT5M</AutoDeleteOnIdle>";
  const [idle, used, held] = [await broker.makeQueue(idleTime), await broker.makeQueue(idleTime), await broker.makeQueue(idleTime)];
  const receiver = client.createReceiver(held);
  // A peek does not attach the receiver.
  await receiver.receiveMessages(1, { maxWaitTimeInMs: 100 });
  await advance(4 * 60_000);
  await client.createSender(used).sendMessages({ body: "a" });
  await advance(2 * 60_000);
  assert.deepEqual(await Promise.all([idle, used, held].map(status)), [404, 200, 200]);
  await receiver.close();
});

test("a throttled send stores nothing", async () => {
  const queue = await broker.makeQueue();
  await arm("server_busy", queue);
  const sender = client.createSender(queue);
  await assert.rejects(sender.sendMessages({ body: "refused" }), { code: "ServiceBusy", message: /50009\. Please wait 2 seconds/ });
  await sender.sendMessages({ body: "taken" });
  assert.deepEqual(bodies(await receive(client.createReceiver(queue), 1)), ["taken"]);
});

test("a send with a lost acknowledgement is stored once", async () => {
  const queue = await broker.makeQueue("<RequiresDuplicateDetection>true</RequiresDuplicateDetection>");
  await arm("lose_acknowledgement", queue);
  const retrying = connect(5, 2_000);
  try {
    await retrying.createSender(queue).sendMessages({ body: "once", messageId: "1" });
    const receiver = retrying.createReceiver(queue);
    assert.deepEqual(bodies(await receive(receiver, 1)), ["once"]);
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  } finally {
    await retrying.close();
  }
});

test("an expired session lock is reported", async () => {
  const queue = await broker.makeQueue("<RequiresSession>true</RequiresSession>");
  await client.createSender(queue).sendMessages({ body: "a", sessionId: "s" });
  const receiver = await client.acceptSession(queue, "s");
  const [message] = await receive(receiver, 1);
  await arm("expire_session_lock", queue, { session: "s" });
  await assert.rejects(receiver.completeMessage(message), { code: "SessionLockLost" });
  const again = await client.acceptNextSession(queue);
  assert.equal((await receive(again, 1))[0].deliveryCount, 1);
  await again.close();
});

test("faults are listed and disarmed", async () => {
  await arm("server_busy", await broker.makeQueue());
  assert.equal((await broker.hook("state", undefined, "GET")).armed.length, 1);
  await broker.hook("faults", undefined, "DELETE");
  assert.equal((await broker.hook("state", undefined, "GET")).armed.length, 0);
});

test("a reset deletes everything", async () => {
  await client.createSender("before-reset").sendMessages({ body: "a" });
  assert.equal(await status("before-reset"), 200);
  await broker.hook("reset");
  assert.equal(await status("before-reset"), 404);
  assert.equal(await status("plain"), 200, "entities of the file are there again");
});
