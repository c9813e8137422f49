// The official SDK's client for a test's own broker, and helpers that every test uses.
import { ServiceBusClient } from "@azure/service-bus";
import { startBroker } from "./broker.mjs";

export async function startClient() {
  const broker = await startBroker();
  const client = new ServiceBusClient(broker.connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 20_000 } });
  return {
    broker,
    client,
    async stop() {
      await client.close();
      await broker.stop();
    },
    async send(entity, ...messages) {
      const sender = client.createSender(entity);
      await sender.sendMessages(messages);
      await sender.close();
    },
  };
}

// Receives up to this many messages.
export async function receive(receiver, count) {
  const got = [];
  while (got.length < count) {
    const batch = await receiver.receiveMessages(count - got.length, { maxWaitTimeInMs: 10_000 });
    if (batch.length === 0) break;
    got.push(...batch);
  }
  return got;
}

export const bodies = (messages) => messages.map((message) => message.body);
