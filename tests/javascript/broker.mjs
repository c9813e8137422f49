// A real broker process for the official SDK. Its entities come from a file in the official emulator's format.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const config = fileURLToPath(new URL("./emulator-config.json", import.meta.url));

/** Starts a broker with more arguments, and reads the lines that it prints at its start. */
export async function startBroker(...more) {
  const child = spawn(process.env.HEADWATER_BIN, ["broker", "--listen", "127.0.0.1:0", "--ephemeral", "--config", config, ...more],
    { stdio: ["ignore", "pipe", "inherit"] });
  const lines = [];
  const input = createInterface({ input: child.stdout });
  input.on("line", (line) => lines.push(line));
  while (!lines.some((line) => line.startsWith("page: "))) {
    if (child.exitCode !== null) throw new Error(`the broker did not become ready: ${lines}`);
    await Promise.race([once(input, "line"), once(child, "exit")]);
  }
  const address = lines[0].split(/\s+/).find((word) => word.startsWith("127.0.0.1:"));
  if (!address) throw new Error(`the broker did not become ready: ${lines}`);
  let queues = 0;
  return {
    address,
    // The address of its page, with the token for actions if it has no keys.
    page: lines.find((line) => line.startsWith("page: ")).slice("page: ".length),
    // Creates a queue for a test; `settings` are elements of its description, in the service's order.
    async makeQueue(settings = "") {
      const name = `queue-${++queues}`;
      const body = '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">' +
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">' +
        `${settings}</QueueDescription></content></entry>`;
      const answer = await fetch(`http://${address}/${name}?api-version=2021-05`, { method: "PUT", body });
      if (answer.status !== 201) throw new Error(`${name} was not created: ${await answer.text()}`);
      return name;
    },
    connectionString: `Endpoint=sb://${address};SharedAccessKeyName=RootManageSharedAccessKey;` +
      "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
    pause: () => child.kill("SIGSTOP"),
    resume: () => child.kill("SIGCONT"),
    async stop() {
      child.kill("SIGTERM");
      await once(child, "exit");
    },
  };
}
