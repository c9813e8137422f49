// Drains as a second AMQP client sees them.
import assert from "node:assert/strict";
import test from "node:test";
import rhea from "rhea";
import { startBroker } from "./broker.mjs";

test("a drain without credit is answered once", async () => {
  const broker = await startBroker();
  const queue = await broker.makeQueue();
  const [host, port] = broker.address.split(":");
  const connection = rhea.create_container().connect({ host, port: Number(port), reconnect: false });
  const receiver = connection.open_receiver({ source: queue, credit_window: 0, autoaccept: false });
  let answers = 0;
  receiver.on("receiver_flow", () => answers++);
  await new Promise((resolve) => receiver.once("receiver_open", resolve));
  for (let drains = 1; drains <= 20; drains++) {
    const drained = new Promise((resolve) => receiver.once("receiver_flow", resolve));
    receiver.drain_credit();
    await drained;
  }
  // A message comes after everything that the drains caused.
  const message = new Promise((resolve) => receiver.once("message", resolve));
  receiver.drain = false;
  receiver.add_credit(1);
  connection.open_sender(queue).once("sendable", ({ sender }) => sender.send({ body: "m" }));
  await message;
  connection.close();
  await broker.stop();
  assert.equal(answers, 20);
});
