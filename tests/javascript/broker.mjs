// A real broker process for the official SDK. Its entities come from a file in the official emulator's format.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const config = fileURLToPath(new URL("./emulator-config.json", import.meta.url));

/** Starts a broker with the entities of the file and more arguments. */
export const startBroker = (...more) => startEmptyBroker("--config", config, ...more);

/** Starts a broker, and reads the lines that it prints at its start. */
export async function startEmptyBroker(...more) {
  const child = spawn(process.env.HEADWATER_BIN, ["broker", "--listen", "127.0.0.1:0", "--ephemeral", ...more],
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
    // Creates an entity; `settings` are elements of its description, in the service's order.
    async create(path, settings = "", kind = "Queue") {
      const body = '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">' +
        `<${kind}Description xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">` +
        `${settings}</${kind}Description></content></entry>`;
      const answer = await fetch(`http://${address}/${path}?api-version=2021-05`, { method: "PUT", body });
      return { status: answer.status, text: await answer.text() };
    },
    // Creates a queue for a test.
    async makeQueue(settings = "") {
      const name = `queue-${++queues}`;
      const { status, text } = await this.create(name, settings);
      if (status !== 201) throw new Error(`${name} was not created: ${text}`);
      return name;
    },
    // A request to its test hooks; the broker needs `--test-token t0ken`.
    async hook(path, body, method = "POST") {
      const answer = await fetch(`http://${address}/$test/${path}`,
        { method, body: body && JSON.stringify(body), headers: { "x-headwater-test-token": "t0ken" } });
      if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
      return answer.json();
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
