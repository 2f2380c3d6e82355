// A client of Viewstamp in TypeScript, made from the published protos with stock gRPC.
//
// Each command is an example of its own: `login` and `topology` (topology.ts), `watch` (watch.ts)
// and `add-partitions` (partitions.ts, submission.ts). They print a JSON object on each line.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

import { Cluster } from "./cluster";
import { addPartitions } from "./partitions";
import { ensureTopology, logIn } from "./topology";
import { watchTopics } from "./watch";

const USAGE = `usage: node built/src/main.js [FLAGS] COMMAND
  login                          log in
  topology STREAM TOPIC...       create what is missing, then list the topics
  watch STREAM FROM_REVISION     print every change of the topics, until Ctrl-C
  add-partitions STREAM TOPIC    add as many partitions as each line of the input says`;

async function run(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      addresses: { type: "string", default: "localhost:7400" }, // all replicas, with commas between
      username: { type: "string", default: "root" },
      "password-file": { type: "string", default: "data/root_password" },
      "tls-ca": { type: "string" }, // PEM file of the authority; no TLS without it
    },
  });
  const cluster = new Cluster({
    addresses: values.addresses!.split(","),
    username: values.username!,
    password: readFileSync(values["password-file"]!, "utf8").trim(),
    authority: values["tls-ca"],
  });
  await command(cluster, positionals);
  cluster.close();
}

async function command(cluster: Cluster, words: string[]): Promise<void> {
  const [name, stream = "", ...rest] = words;
  if (name === "login" && words.length === 1) {
    await logIn(cluster);
  } else if (name === "topology" && stream) {
    await ensureTopology(cluster, stream, rest);
  } else if (name === "watch" && words.length === 3 && /^[1-9]\d*$/.test(rest[0]!)) {
    await watchTopics(cluster, stream, BigInt(rest[0]!));
  } else if (name === "add-partitions" && words.length === 3) {
    await addPartitions(cluster, stream, rest[0]!);
  } else {
    throw new Error(`"${words.join(" ")}" is no command\n${USAGE}`);
  }
}

run().catch((error: Error) => {
  console.error("example:", error.message);
  process.exit(1);
});
