// A real broker process for the official SDK. Its entities come from a file in the official emulator's format.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const config = fileURLToPath(new URL("./emulator-config.json", import.meta.url));

export async function startBroker() {
  const child = spawn(process.env.HEADWATER_BIN, ["broker", "--listen", "127.0.0.1:0", "--ephemeral", "--config", config],
    { stdio: ["ignore", "pipe", "inherit"] });
  const [ready] = await once(createInterface({ input: child.stdout }), "line");
  const address = ready.split(/\s+/).find((word) => word.startsWith("127.0.0.1:"));
  if (!address) throw new Error(`the broker did not become ready: ${ready}`);
  return {
    address,
    connectionString: `Endpoint=sb://${address};SharedAccessKeyName=RootManageSharedAccessKey;` +
      "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
    async stop() {
      child.kill("SIGTERM");
      await once(child, "exit");
    },
  };
}
