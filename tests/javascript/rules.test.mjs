// Rules over AMQP with the official JavaScript SDK: `createRuleManager` adds, lists and deletes them.
import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { receive, startClient } from "./client.mjs";

const CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
let broker, client, send, stop;
let topics = 0;

before(async () => {
  ({ broker, client, send, stop } = await startClient());
});

after(() => stop());

async function put(path, description) {
  const body = `<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">` +
    `<${description} xmlns="${CONNECT}"></${description}></content></entry>`;
  const answer = await fetch(`http://${broker.address}/${path}?api-version=2021-05`, { method: "PUT", body });
  assert.equal(answer.status, 201);
}

async function makeTopic() {
  const topic = `ruled-${++topics}`;
  await put(topic, "TopicDescription");
  await put(`${topic}/Subscriptions/s`, "SubscriptionDescription");
  const rules = client.createRuleManager(topic, "s");
  return { topic, rules };
}

async function list(rules) {
  const found = [];
  for await (const rule of rules.listRules()) found.push(rule);
  return found;
}

test("rules are added, listed and deleted over AMQP", async () => {
  const { rules } = await makeTopic();
  assert.deepEqual((await list(rules)).map((rule) => rule.name), ["$Default"]);
  const filter = { correlationId: "c1", subject: "order", applicationProperties: { region: "eu", priority: 1, loud: true, since: new Date("2026-01-02T03:04:05Z") } };
  await rules.createRule("correlated", filter);
  await rules.createRule("sql", { sqlExpression: "color = 'red'" }, { sqlExpression: "SET seen = 1" });
  const [, correlated, sql] = await list(rules);
  assert.equal(sql.filter.sqlExpression, "color = 'red'");
  assert.equal(sql.action.sqlExpression, "SET seen = 1");
  assert.equal(correlated.filter.correlationId, "c1");
  assert.equal(correlated.filter.subject, "order");
  assert.deepEqual(correlated.filter.applicationProperties, filter.applicationProperties);
  await assert.rejects(rules.createRule("sql", { sqlExpression: "1 = 1" }), { code: "MessagingEntityAlreadyExists", message: /The messaging entity '.*sql' already exists/ });
  await assert.rejects(rules.createRule("wrong", { sqlExpression: "color = " }), /at character 9/);
  await rules.deleteRule("correlated");
  await assert.rejects(rules.deleteRule("correlated"), { code: "MessagingEntityNotFound" });
  assert.deepEqual((await list(rules)).map((rule) => rule.name), ["$Default", "sql"]);
});

test("a rule selects messages, and its action changes them", async () => {
  const { topic, rules } = await makeTopic();
  await rules.deleteRule("$Default");
  await rules.createRule("red", { sqlExpression: "color = 'red' AND size > 1" });
  await rules.createRule("half", { sqlExpression: "color = 'red'" }, { sqlExpression: "SET size = size / 2; REMOVE color" });
  await send(topic, { body: "a", applicationProperties: { color: "red", size: 4 } },
    { body: "b", applicationProperties: { color: "blue", size: 4 } });
  const receiver = client.createReceiver(topic, "s");
  const got = await receive(receiver, 2);
  assert.deepEqual(got.map((message) => message.body), ["a", "a"]);
  assert.deepEqual(got.map((message) => ({ ...message.applicationProperties })), [
    { color: "red", size: 4 }, { size: 2, RuleName: "half" },
  ]);
  for (const message of got) await receiver.completeMessage(message);
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
  await receiver.close();
});

test("many rules are listed page by page", async () => {
  const { rules } = await makeTopic();
  const names = Array.from({ length: 150 }, (_, n) => `r${String(n).padStart(3, "0")}`);
  for (const name of names) await rules.createRule(name, { subject: name });
  assert.deepEqual((await list(rules)).map((rule) => rule.name), ["$Default", ...names]);
});
