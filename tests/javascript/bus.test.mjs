// The official JavaScript SDK against the real broker process.
import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import { bodies, receive, startClient } from "./client.mjs";

let broker, client, send, stop;

before(async () => {
  ({ broker, client, send, stop } = await startClient());
});

after(() => stop());

test("messages arrive in order and are removed on complete", async () => {
  await send("plain", ...Array.from({ length: 20 }, (_, n) => ({ body: `m${n}` })));
  const receiver = client.createReceiver("plain");
  const got = await receive(receiver, 20);
  assert.deepEqual(bodies(got), Array.from({ length: 20 }, (_, n) => `m${n}`));
  for (const message of got) await receiver.completeMessage(message);
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  await receiver.close();
});

test("abandon, dead-letter and max delivery count", async () => {
  await send("settle", { body: "poison" }, { body: "bad" });
  const receiver = client.createReceiver("settle");
  const [poison, bad] = await receive(receiver, 2);
  await receiver.deadLetterMessage(bad, { deadLetterReason: "r", deadLetterErrorDescription: "d" });
  await receiver.abandonMessage(poison);
  for (const count of [1, 2]) {
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, count);
    await receiver.abandonMessage(again);
  }
  await receiver.close();
  const dead = client.createReceiver("settle", { subQueueType: "deadLetter" });
  const letters = await receive(dead, 2);
  assert.deepEqual(new Set(letters.map((letter) => letter.deadLetterReason)), new Set(["r", "MaxDeliveryCountExceeded"]));
  for (const letter of letters) await dead.completeMessage(letter);
  await dead.close();
});

test("a deferred message is received by its sequence number", async () => {
  await send("defer", { body: "later" });
  const receiver = client.createReceiver("defer");
  const [message] = await receive(receiver, 1);
  await receiver.deferMessage(message);
  const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  assert.equal(deferred.body, "later");
  await receiver.completeMessage(deferred);
  await receiver.close();
});

test("a scheduled message arrives on time, a cancelled one never", async () => {
  const sender = client.createSender("schedule");
  const at = new Date(Date.now() + 1_500);
  await sender.scheduleMessages({ body: "soon" }, at);
  const [cancelled] = await sender.scheduleMessages({ body: "never" }, new Date(Date.now() + 3_600_000));
  await sender.cancelScheduledMessages(cancelled);
  await sender.close();
  const receiver = client.createReceiver("schedule");
  const [message] = await receive(receiver, 1);
  assert.equal(message.body, "soon");
  assert.ok(Date.now() >= at.getTime() - 50);
  await receiver.completeMessage(message);
  await receiver.close();
});

test("a subscriber gets and completes messages as they arrive", async () => {
  const receiver = client.createReceiver("stream");
  const got = [];
  const all = new Promise((resolve, reject) => {
    receiver.subscribe({
      async processMessage(message) {
        got.push(message.body);
        if (got.length === 50) resolve();
      },
      async processError(fault) { reject(fault.error); },
    });
  });
  await send("stream", ...Array.from({ length: 50 }, (_, n) => ({ body: n })));
  await all;
  assert.deepEqual(got, Array.from({ length: 50 }, (_, n) => n));
  await receiver.close();
});

test("receive and delete removes the message at once", async () => {
  await send("delete", { body: "once" });
  const receiver = client.createReceiver("delete", { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(receiver, 1)), ["once"]);
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  await receiver.close();
});

test("peek does not lock messages", async () => {
  await send("peek", { body: "a" }, { body: "b" });
  const receiver = client.createReceiver("peek");
  assert.deepEqual(bodies(await receiver.peekMessages(5)), ["a", "b"]);
  assert.equal((await receive(receiver, 2)).length, 2);
  await receiver.close();
});

test("a raw AMQP message survives a round trip", async () => {
  const message = {
    body: [1, "two", { three: 3 }], bodyType: "value", applicationProperties: { n: 1 },
    messageAnnotations: { own: "kept" }, footer: { f: "kept" }, header: { priority: 3 },
    properties: { messageId: "raw", subject: "s" },
  };
  const sender = client.createSender("amqp");
  await sender.sendMessages(message);
  await sender.close();
  const receiver = client.createReceiver("amqp");
  const [got] = await receive(receiver, 1);
  assert.deepEqual(got._rawAmqpMessage.body, message.body);
  assert.equal(got._rawAmqpMessage.bodyType, "value");
  assert.equal(got._rawAmqpMessage.messageAnnotations.own, "kept");
  assert.equal(got._rawAmqpMessage.footer.f, "kept");
  assert.equal(got._rawAmqpMessage.header.priority, 3);
  await receiver.completeMessage(got);
  await receiver.close();
});

test("a session is one ordered stream with one holder", async () => {
  await send("sessions", ...Array.from({ length: 10 }, (_, n) => ({ body: n, sessionId: "s" })));
  const receiver = await client.acceptSession("sessions", "s");
  assert.equal(receiver.sessionId, "s");
  assert.ok(receiver.sessionLockedUntilUtc > new Date());
  await assert.rejects(client.acceptSession("sessions", "s"), { code: "SessionCannotBeLocked" });
  const got = await receive(receiver, 10);
  assert.deepEqual(bodies(got), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  for (const message of got) await receiver.completeMessage(message);
  await receiver.close();
});

test("accepting the next session waits and times out", async () => {
  const hasty = new ServiceBusClient(broker.connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 1_000 } });
  await assert.rejects(hasty.acceptNextSession("next"));
  await hasty.close();
  const accepted = client.acceptNextSession("next");
  await send("next", { body: "here", sessionId: "late" });
  const receiver = await accepted;
  assert.equal(receiver.sessionId, "late");
  const [message] = await receive(receiver, 1);
  await receiver.completeMessage(message);
  await receiver.close();
});

test("session state is stored", async () => {
  await send("state", { body: "x", sessionId: "s" });
  const receiver = await client.acceptSession("state", "s");
  assert.equal(await receiver.getSessionState(), null);
  await receiver.setSessionState(Buffer.from("half"));
  assert.equal((await receiver.getSessionState()).toString(), "half");
  const before = receiver.sessionLockedUntilUtc;
  assert.ok((await receiver.renewSessionLock()) >= before);
  await receiver.close();
});

test("duplicate detection feeds each subscription once", async () => {
  for (let n = 0; n < 2; n++) await send("events", { body: "e", sessionId: "order-1", messageId: "same" });
  const receiver = await client.acceptSession("events", "read-models", "order-1");
  const got = await receiver.receiveMessages(2, { maxWaitTimeInMs: 1_000 });
  assert.deepEqual(bodies(got), ["e"]);
  await receiver.completeMessage(got[0]);
  await receiver.close();
  const audit = client.createReceiver("events", "audit");
  assert.deepEqual(bodies(await receive(audit, 1)), ["e"]);
  await audit.close();
});

test("an expired session lock is lost", async () => {
  await send("lost", { body: "x", sessionId: "s" });
  const receiver = await client.acceptSession("lost", "s", { maxAutoLockRenewalDurationInMs: 0 });
  const [message] = await receive(receiver, 1);
  let next;
  const deadline = Date.now() + 20_000;
  while (!next) {
    assert.ok(Date.now() < deadline, "the lock never ran out");
    next = await client.acceptSession("lost", "s").catch(() => undefined);
  }
  await assert.rejects(receiver.completeMessage(message));
  const [again] = await receive(next, 1);
  assert.equal(again.deliveryCount, 1);
  await next.completeMessage(again);
  await next.close();
  await receiver.close();
});

test("a missing entity is reported", async () => {
  const sender = client.createSender("no-such-queue");
  await assert.rejects(sender.sendMessages({ body: "lost" }), { code: "MessagingEntityNotFound" });
  await sender.close();
});
