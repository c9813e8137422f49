// A minimal MongoDB client over OP_MSG: inserts events, holds documents in a transaction, and advances the cluster time.
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { connect } from "node:net";

const OP_MSG = 2013;

const cstring = (text) => Buffer.from(`${text}\0`);
const int32 = (number) => { const bytes = Buffer.alloc(4); bytes.writeInt32LE(number); return bytes; };

const int64 = (number) => { const bytes = Buffer.alloc(8); bytes.writeBigInt64LE(number); return bytes; };

class Timestamp {
  constructor(seconds) { this.seconds = seconds; }
}

function element(name, value) {
  if (typeof value === "string") {
    const text = cstring(value);
    return Buffer.concat([Buffer.of(0x02), cstring(name), int32(text.length), text]);
  }
  if (typeof value === "number") return Buffer.concat([Buffer.of(0x10), cstring(name), int32(value)]);
  if (typeof value === "bigint") return Buffer.concat([Buffer.of(0x12), cstring(name), int64(value)]);
  if (value instanceof Timestamp) return Buffer.concat([Buffer.of(0x11), cstring(name), int32(0), int32(value.seconds)]);
  // A UUID, or the placeholder of a signature.
  if (value instanceof Uint8Array) {
    return Buffer.concat([Buffer.of(0x05), cstring(name), int32(value.length), Buffer.of(value.length === 16 ? 4 : 0), value]);
  }
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

  async function run(command) {
    const body = document(command);
    asked += 1;
    const head = [16 + 5 + body.length, asked, 0, OP_MSG, 0].map(int32);
    const answered = answer();
    socket.write(Buffer.concat([...head, Buffer.of(0), body]));
    const text = (await answered).toString("latin1");
    if (text.includes("errmsg") || text.includes("writeErrors")) throw new Error(`${Object.keys(command)[0]} was refused`);
  }

  return {
    insert: (database, collection, documents) =>
      run({ insert: collection, documents, writeConcern: { w: "majority" }, $db: database }),
    set: (database, collection, _id, fields) =>
      run({ update: collection, updates: [{ q: { _id }, u: { $set: fields } }], writeConcern: { w: "majority" }, $db: database }),
    /** Makes the server's logical clock, and with it its oplog, reach so far into the future: it believes whoever says that it is later. */
    async advance(seconds) {
      const clusterTime = new Timestamp(Math.floor(Date.now() / 1_000) + seconds);
      const signature = { hash: new Uint8Array(20), keyId: 0n };
      await run({ ping: 1, $clusterTime: { clusterTime, signature }, $db: "admin" });
    },
    /** Writes documents in a transaction that stays open, so that nobody else can write them; returns how it is ended, with nothing written. */
    async hold(database, collection, ids) {
      const transaction = { lsid: { id: randomBytes(16) }, txnNumber: 1n, autocommit: false };
      await run({ insert: collection, documents: ids.map((_id) => ({ _id })), ...transaction, startTransaction: true, $db: database });
      return () => run({ abortTransaction: 1, ...transaction, $db: "admin" });
    },
    close: () => socket.destroy(),
  };
}
