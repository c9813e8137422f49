// Just enough of MongoDB's wire protocol to write events, as a shop would: OP_MSG, one insert at a time.
import { once } from "node:events";
import { connect } from "node:net";

const OP_MSG = 2013;

const cstring = (text) => Buffer.from(`${text}\0`);
const int32 = (number) => { const bytes = Buffer.alloc(4); bytes.writeInt32LE(number); return bytes; };

function element(name, value) {
  if (typeof value === "string") {
    const text = cstring(value);
    return Buffer.concat([Buffer.of(0x02), cstring(name), int32(text.length), text]);
  }
  if (typeof value === "number") return Buffer.concat([Buffer.of(0x10), cstring(name), int32(value)]);
  if (typeof value === "boolean") return Buffer.concat([Buffer.of(0x08), cstring(name), Buffer.of(value ? 1 : 0)]);
  return Buffer.concat([Buffer.of(Array.isArray(value) ? 0x04 : 0x03), cstring(name), document(value)]);
}

function document(fields) {
  const elements = Buffer.concat(Object.entries(fields).map(([name, value]) => element(name, value)));
  return Buffer.concat([int32(elements.length + 5), elements, Buffer.of(0)]);
}

/** A connection to the first server of a URI. */
export async function openMongo(uri) {
  const { hostname, port } = new URL(uri.replace("mongodb:", "http:"));
  const socket = connect(Number(port), hostname);
  await once(socket, "connect");
  let asked = 0;

  async function answer() {
    let bytes = Buffer.alloc(0);
    while (bytes.length < 4 || bytes.length < bytes.readInt32LE(0)) {
      const [more] = await once(socket, "data");
      bytes = Buffer.concat([bytes, more]);
    }
    return bytes;
  }

  return {
    async insert(database, collection, documents) {
      const body = document({ insert: collection, documents, writeConcern: { w: "majority" }, $db: database });
      asked += 1;
      const head = [16 + 5 + body.length, asked, 0, OP_MSG, 0].map(int32);
      const answered = answer();
      socket.write(Buffer.concat([...head, Buffer.of(0), body]));
      const text = (await answered).toString("latin1");
      if (text.includes("errmsg") || text.includes("writeErrors")) throw new Error("the events were not written");
    },
    close: () => socket.destroy(),
  };
}
