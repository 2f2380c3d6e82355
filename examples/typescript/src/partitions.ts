import { BinaryReader, BinaryWriter } from "@bufbuild/protobuf/wire";
import { createInterface } from "node:readline";

import {
  CreatePartitionsRequest, CreatePartitionsResponse,
} from "../gen/viewstamp/api/streams/v1/streams_service";
import { type CommandReply, Span } from "../gen/viewstamp/api/submit/v1/submit_service";
import type { Cluster } from "./cluster";
import { tell } from "./lines";
import { refusalIn } from "./refusal";
import { Submission } from "./submission";
import { named } from "./topology";

// The code of CreatePartitions: an option of the method in streams_service.proto, the same for ever.
const CREATE_PARTITIONS = 220;
// Messages in a span are encoded as `repeated Message items = 1` would be: tag, length, bytes.
const ITEMS_TAG = (1 << 3) | 2;

/**
 * Adds partitions to a topic: as many at a time as each line of the input says. A command that took
 * effect twice, or never, would show in the counts of all later answers.
 */
export async function addPartitions(
  cluster: Cluster, stream: string, topic: string,
): Promise<void> {
  await new Submission(cluster, tellReply).run(commandsOfInput(stream, topic));
}

async function* commandsOfInput(stream: string, topic: string): AsyncIterable<Span> {
  for await (const line of createInterface({ input: process.stdin })) {
    if (!/^\d{1,9}$/.test(line)) {
      throw new Error(`"${line}" is no count of partitions`);
    }
    const request = CreatePartitionsRequest.fromPartial({
      stream: named(stream), topic: named(topic), partitionsCount: Number(line),
    });
    const encoded = CreatePartitionsRequest.encode(request).finish();
    const items = Buffer.from(new BinaryWriter().uint32(ITEMS_TAG).bytes(encoded).finish());
    yield Span.fromPartial({ code: CREATE_PARTITIONS, count: 1, items });
  }
}

/** Prints the result of the only command of a request. */
function tellReply(reply: CommandReply): void {
  const line = { number: Number(reply.number), revision: Number(reply.header!.revision) };
  const { results, errors } = reply.spans[0]!;
  const refused = errors[0]?.error;
  if (refused) {
    // The cluster decided so: a result like any other, which a retry gets again.
    tell({ ...line, refused: refusalIn(refused).reason });
    return;
  }
  const reader = new BinaryReader(results);
  if (reader.uint32() !== ITEMS_TAG) {
    throw new Error(`the result of request ${reply.number} cannot be read`);
  }
  const { partitionsCount } = CreatePartitionsResponse.decode(reader.bytes());
  tell({ ...line, partitions_count: partitionsCount });
}
