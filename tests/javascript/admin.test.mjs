// The official JavaScript administration client. It supports https only; a pipeline policy turns that into plain HTTP.
import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { ServiceBusAdministrationClient } from "@azure/service-bus";
import { startBroker } from "./broker.mjs";

const inTheClear = {
  name: "inTheClear",
  sendRequest(request, next) {
    request.url = request.url.replace(/^https:/, "http:");
    request.allowInsecureConnection = true;
    return next(request);
  },
};

let broker;
let admin;

before(async () => {
  broker = await startBroker();
  admin = new ServiceBusAdministrationClient(broker.connectionString);
  admin.pipeline.addPolicy(inTheClear);
});

after(() => broker.stop());

async function names(listed) {
  const found = [];
  for await (const entity of listed) found.push(entity.name ?? entity.subscriptionName);
  return found;
}

test("a queue is created, found, changed, listed and deleted", async () => {
  assert.equal(await admin.queueExists("made"), false);
  const created = await admin.createQueue("made", { lockDuration: "PT42S", requiresSession: true, maxDeliveryCount: 7 });
  assert.deepEqual([created.lockDuration, created.requiresSession, created.maxDeliveryCount], ["PT42S", true, 7]);
  assert.equal(await admin.queueExists("made"), true);
  await admin.updateQueue({ ...created, maxDeliveryCount: 9 });
  assert.equal((await admin.getQueue("made")).maxDeliveryCount, 9);
  await assert.rejects(admin.createQueue("made"), { code: "MessageEntityAlreadyExistsError" });
  assert.ok((await names(admin.listQueues())).includes("made"));
  assert.equal((await admin.getQueueRuntimeProperties("made")).totalMessageCount, 0);
  await admin.deleteQueue("made");
  assert.equal(await admin.queueExists("made"), false);
  await assert.rejects(admin.getQueue("made"), { code: "MessageEntityNotFoundError" });
  await assert.rejects(admin.deleteQueue("made"), { code: "MessageEntityNotFoundError" });
});

test("topics and subscriptions of any creator are listed", async () => {
  for (const [topic, there] of [["events", true], ["EVENTS", true], ["nothing", false]]) {
    assert.equal(await admin.topicExists(topic), there, topic);
  }
  const topic = await admin.getTopic("events");
  assert.deepEqual([topic.requiresDuplicateDetection, topic.duplicateDetectionHistoryTimeWindow], [true, "PT20S"]);
  assert.ok((await names(admin.listTopics())).includes("events"));
  assert.deepEqual(await names(admin.listSubscriptions("events")), ["audit", "read-models"]);
  assert.equal(await admin.subscriptionExists("events", "audit"), true);
  assert.equal(await admin.subscriptionExists("events", "nobody"), false);
  assert.equal((await admin.getSubscription("events", "read-models")).requiresSession, true);
  assert.equal((await admin.getTopicRuntimeProperties("events")).subscriptionCount, 2);
  assert.deepEqual(await names(admin.listRules("events", "audit")), ["$Default"]);
  await admin.createTopic("other", { enablePartitioning: true });
  await admin.createSubscription("other", "s", { maxDeliveryCount: 2000 });
  assert.equal((await admin.getSubscriptionRuntimeProperties("other", "s")).totalMessageCount, 0);
  await admin.deleteSubscription("other", "s");
  assert.equal(await admin.subscriptionExists("other", "s"), false);
  await admin.deleteTopic("other");
  assert.equal(await admin.topicExists("other"), false);
});

test("the namespace is reported, and invalid values are refused", async () => {
  assert.ok((await admin.getNamespaceProperties()).name);
  await assert.rejects(admin.createQueue("wrong", { lockDuration: "PT10M" }), { statusCode: 400 });
});
