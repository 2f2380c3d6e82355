import type { Identifier } from "../gen/viewstamp/api/common/v1/common";
import { Topic } from "../gen/viewstamp/api/streams/v1/streams";
import { StreamsServiceClient } from "../gen/viewstamp/api/streams/v1/streams_service";
import type { GetStreamResponse } from "../gen/viewstamp/api/streams/v1/streams_service";
import {
  type Change, ChangeKind, WatchRequest, WatchServiceClient, type WatchResponse,
} from "../gen/viewstamp/api/watch/v1/watch_service";
import type { Cluster } from "./cluster";
import { tell } from "./lines";
import { BrokenConnection, refusalOf } from "./refusal";
import { described, listTopics, named } from "./topology";

/** Prints every change of the topics of a stream, from a revision on, until the process ends. */
export async function watchTopics(
  cluster: Cluster, stream: string, fromRevision: bigint,
): Promise<never> {
  const found = await cluster.call<GetStreamResponse>((to, ...how) =>
    to(StreamsServiceClient).getStream({ stream: named(stream) }, ...how));
  // A name may mean another stream tomorrow, and an id never does.
  const id: Identifier = { kind: { $case: "id", value: found.stream!.id } };
  return new TopicWatch(cluster, id, fromRevision - 1n).run();
}

/** Prints each change once, in order, whatever happens to replicas. It keeps only its place. */
class TopicWatch {
  // The cluster that the revision belongs to; empty before it is known.
  private clusterId: Buffer = Buffer.alloc(0);
  // Changes of a revision of which more follow.
  private parts: Change[] = [];

  /** Everything up to the revision `complete` was printed before. */
  constructor(
    private readonly cluster: Cluster,
    private readonly stream: Identifier,
    private complete: bigint,
  ) {}

  async run(): Promise<never> {
    for (;;) {
      try {
        await this.follow();
      } catch (error) {
        await this.prepare(error);
      }
    }
  }

  /** Watches at one replica until it ends the watch. Any replica serves watches. */
  private async follow(): Promise<never> {
    const [to, metadata] = await this.cluster.connect();
    const request = WatchRequest.fromPartial({
      fromRevision: this.complete + 1n,
      clusterId: this.clusterId,
      stream: this.stream,
      entityTypes: ["viewstamp.api.streams.v1.Topic"],
      progressNotifications: true,
    });
    let isFirst = true;
    for await (const response of to(WatchServiceClient).watch(request, metadata)) {
      this.take(response);
      if (!isFirst) {
        this.cluster.reached(); // the first message comes at once, and shows no progress
      }
      isFirst = false;
    }
    throw new BrokenConnection("", "the replica ended the watch without a reason");
  }

  /**
   * Prints what a message completes. Only the header says that a revision is complete; changes
   * behind it wait for the next header.
   */
  private take(response: WatchResponse): void {
    const { clusterId, revision } = response.header!;
    this.parts.push(...response.changes);
    const complete = this.parts.filter((change) => change.revision <= revision);
    complete.forEach(tellChange);
    this.parts = this.parts.slice(complete.length);
    [this.clusterId, this.complete] = [clusterId, revision];
  }

  /** Makes ready for the next call, which begins behind the last complete revision. */
  private async prepare(error: unknown): Promise<void> {
    this.parts = []; // they come again
    const refusal = refusalOf(error);
    if (refusal.reason === "REVISION_COMPACTED") {
      return this.listAnew();
    }
    if (refusal.reason === "ACCESS_CHANGED") {
      // Everything up to the revision that it names has come. The cluster decides anew from there.
      const revision = BigInt(refusal.details["revision"]!);
      this.complete = revision > this.complete ? revision : this.complete;
    }
    await this.cluster.prepare(refusal);
  }

  /**
   * Prints all topics, because the changes since our place are not kept any more. The watch goes on
   * behind the revision of the list.
   */
  private async listAnew(): Promise<void> {
    const [topics, revision] = await listTopics(this.cluster, this.stream);
    tell({ revision: Number(revision), list: topics.map(described) });
    this.complete = revision;
  }
}

function tellChange(change: Change): void {
  const kind = ChangeKind[change.kind]!.replace("CHANGE_KIND_", "").toLowerCase();
  const topic = Topic.decode(change.entity);
  tell({ revision: Number(change.revision), kind, ...described(topic) });
}
