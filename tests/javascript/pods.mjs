// Starts real pods that share a MongoDB, a broker, and a configuration.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { startBroker } from "./broker.mjs";

const LISTENING = "admin server listening";

function mongodb() {
  const uri = process.env.HEADWATER_TEST_MONGODB_URI;
  if (!uri) throw new Error("HEADWATER_TEST_MONGODB_URI names no MongoDB; `cargo xtask test` starts one and sets it");
  return uri;
}

const configuration = (broker, uri, name) => `format: 1
pipeline: shop
source: { uri: "${uri}", database: ${name}, collection: events, sequence: version }
coordination: { database: ${name}_coordination, lease: { ttl: 8s, renew_deadline: 6s, heartbeat: 1s } }
service_bus: { connection_string: "${broker.connectionString}", topic: events, subscription: read-models }
producer: { start: now }
read_models:
  order_summary: { when: { OrderPlaced: { $set: { status: placed } } } }
  shipments: { when: { OrderShipped: { $set: { shipped: true } } } }
  customers: { key: $$event.payload.customer, when: { OrderPlaced: { $inc: { orders: $$event.payload.count } } } }
admin: { listen: "127.0.0.1:0" }
`;

/** Starts a pod and waits for its admin server. */
async function startPod(id, file, environment) {
  const child = spawn(process.env.HEADWATER_BIN, ["run", "--config", file, "--set", `pod_id=${id}`],
    { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, RUST_LOG: "info", ...environment } });
  const log = [];
  const address = await new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on("line", (line) => {
      log.push(line);
      if (line.includes(LISTENING)) resolve(JSON.parse(line).address);
    });
    child.once("exit", () => reject(new Error(`${id} exited early:\n${log.join("\n")}`)));
  });
  return {
    id,
    url: `http://${address}/`,
    log,
    pause: () => child.kill("SIGSTOP"),
    resume: () => child.kill("SIGCONT"),
    async kill(signal = "SIGKILL") {
      if (child.exitCode !== null || child.signalCode !== null) return;
      child.kill(signal);
      await once(child, "exit");
    },
  };
}

/** `environment` gets the number of the pod. */
export async function startPods(count, environment = () => ({})) {
  const folder = await mkdtemp(join(tmpdir(), "headwater-dashboard-"));
  const broker = await startBroker();
  const file = join(folder, "headwater.yaml");
  const [uri, name] = [mongodb(), `dashboard_${randomBytes(6).toString("hex")}`];
  await writeFile(file, configuration(broker, uri, name));
  const pods = await Promise.all(Array.from({ length: count }, (_, n) => startPod(`pod-${n}`, file, environment(n))));
  return {
    pods,
    broker,
    file,
    uri,
    source: name,
    async stop() {
      await Promise.all(pods.map((pod) => pod.kill("SIGTERM")));
      await broker.stop();
      await rm(folder, { recursive: true });
    },
  };
}
