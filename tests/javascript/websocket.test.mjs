// AMQP over WebSocket with the official JavaScript SDK.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import WebSocket from "ws";
import { startBroker } from "./broker.mjs";

let broker;

before(async () => {
  broker = await startBroker();
});

after(() => broker.stop());

// The SDK writes wss://; the broker of this test has no certificate.
class PlainWebSocket extends WebSocket {
  constructor(url, protocols) {
    super(`ws://${broker.address}${new URL(url).pathname}`, protocols);
  }
}

test("messages go over a WebSocket", async () => {
  const queue = await broker.makeQueue();
  const client = new ServiceBusClient(broker.connectionString, { webSocketOptions: { webSocket: PlainWebSocket } });
  const sent = Array.from({ length: 50 }, (_, n) => `${n} ${"x".repeat(3000)}`);
  await client.createSender(queue).sendMessages(sent.map((body) => ({ body })));
  const receiver = client.createReceiver(queue);
  const got = [];
  while (got.length < sent.length) {
    const batch = await receiver.receiveMessages(sent.length - got.length, { maxWaitTimeInMs: 30_000 });
    assert.notEqual(batch.length, 0);
    for (const message of batch) await receiver.completeMessage(message);
    got.push(...batch.map((message) => message.body));
  }
  assert.deepEqual(got, sent);
  await client.close();
});

test("a WebSocket with an unknown sub-protocol is refused", async () => {
  const socket = new WebSocket(`ws://${broker.address}/$servicebus/websocket`, ["mqtt"]);
  const outcome = await new Promise((resolve) => {
    socket.onopen = () => resolve("open");
    socket.onerror = () => resolve("refused");
  });
  assert.equal(outcome, "refused");
});
