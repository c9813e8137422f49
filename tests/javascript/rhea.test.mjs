// `rhea`, the AMQP client below the SDK, on its own: send, receive, credit, settle, and the encoding of replies.
import assert from "node:assert/strict";
import { once } from "node:events";
import test from "node:test";
import rhea from "rhea";
import { startBroker } from "./broker.mjs";

async function withQueue(use, settings) {
  const broker = await startBroker();
  const queue = await broker.makeQueue(settings);
  const [host, port] = broker.address.split(":");
  const connection = rhea.create_container().connect({ host, port: Number(port), reconnect: false });
  try {
    await use({ queue, connection });
  } finally {
    connection.close();
    await once(connection, "connection_close");
    await broker.stop();
  }
}

async function send(connection, queue, ...bodies) {
  const sender = connection.open_sender(queue);
  await once(sender, "sendable");
  let accepted = 0;
  const all = new Promise((resolve) => sender.on("accepted", () => ++accepted === bodies.length && resolve()));
  for (const body of bodies) sender.send({ body });
  await all;
  sender.close();
}

// The next messages of a receiver that settles by hand.
function receive(receiver, count) {
  const got = [];
  return new Promise((resolve) => receiver.on("message", function take(context) {
    got.push(context);
    if (got.length < count) return;
    receiver.removeListener("message", take);
    resolve(got);
  }));
}

test("messages never exceed the credit, and arrive in order", () => withQueue(async ({ queue, connection }) => {
  await send(connection, queue, ...Array.from({ length: 10 }, (_, number) => `m${number}`));
  const receiver = connection.open_receiver({ source: queue, credit_window: 0, autoaccept: false });
  let arrived = 0;
  receiver.on("message", () => arrived++);
  const expected = Array.from({ length: 10 }, (_, number) => `m${number}`);
  for (const credit of [1, 2, 3, 4]) {
    const batch = receive(receiver, credit);
    receiver.add_credit(credit);
    for (const { message, delivery } of await batch) {
      assert.equal(message.body, expected.shift());
      delivery.accept();
    }
    assert.equal(receiver.credit, 0);
  }
  assert.equal(arrived, 10);
}));

test("every outcome is echoed and means what Service Bus means", () => withQueue(async ({ queue, connection }) => {
  await send(connection, queue, "a");
  const receiver = connection.open_receiver(
    { source: queue, credit_window: 0, autoaccept: false, autosettle: false, rcv_settle_mode: 1 });
  const next = async () => {
    const batch = receive(receiver, 1);
    receiver.add_credit(1);
    return (await batch)[0];
  };
  const settle = async (delivery, outcome) => {
    const answered = once(receiver, "settled");
    delivery.update(false, outcome.described());
    const [{ delivery: echoed }] = await answered;
    return echoed.remote_state.constructor.composite_type;
  };
  let got = await next();
  assert.equal(got.message.delivery_count, 0);
  const { released, modified, rejected } = rhea.message;
  assert.equal(await settle(got.delivery, released()), "released");
  got = await next();
  assert.equal(got.message.delivery_count, 0);
  assert.equal(await settle(got.delivery, modified({ delivery_failed: true })), "modified");
  got = await next();
  assert.equal(got.message.delivery_count, 1);
  assert.equal(await settle(got.delivery, rejected()), "rejected");
  const dead = connection.open_receiver({ source: `${queue}/$DeadLetterQueue`, autoaccept: true });
  const [{ message }] = await receive(dead, 1);
  assert.equal(message.body, "a");
}));

test("a message over the limit is rejected with a reason", () => withQueue(async ({ queue, connection }) => {
  const sender = connection.open_sender(queue);
  await once(sender, "sendable");
  assert.equal(Number(sender.max_message_size), 256 * 1024);
  sender.send({ body: rhea.message.data_section(Buffer.alloc(300_000)) });
  const [{ delivery }] = await Promise.race([once(sender, "rejected"), once(sender, "sender_error")]);
  if (delivery) assert.equal(delivery.remote_state.error.condition, "amqp:link:message-size-exceeded");
  else assert.equal(sender.error.condition, "amqp:link:message-size-exceeded");
}));
