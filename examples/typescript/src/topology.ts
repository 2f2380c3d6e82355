import type { Identifier } from "../gen/viewstamp/api/common/v1/common";
import type { Topic } from "../gen/viewstamp/api/streams/v1/streams";
import {
  CreateStreamRequest, CreateTopicRequest, ListTopicsRequest, StreamsServiceClient,
} from "../gen/viewstamp/api/streams/v1/streams_service";
import type { ListTopicsResponse } from "../gen/viewstamp/api/streams/v1/streams_service";
import { UsersServiceClient } from "../gen/viewstamp/api/users/v1/users_service";
import type { WhoAmIResponse } from "../gen/viewstamp/api/users/v1/users_service";
import type { Cluster } from "./cluster";
import { tell } from "./lines";
import { refusalOf } from "./refusal";

const PARTITIONS_COUNT = 1;
// So small that the example shows several pages; 1000 is the most.
const PAGE_SIZE = 2;

/** Shows who we are: every other command logs in by itself, in Cluster.connect. */
export async function logIn(cluster: Cluster): Promise<void> {
  const { user } = await cluster.call<WhoAmIResponse>((to, ...how) =>
    to(UsersServiceClient).whoAmI({}, ...how));
  tell({ user_id: Number(user?.id), username: user?.username });
}

/** Makes sure that a stream and its topics exist, and lists the topics. */
export async function ensureTopology(
  cluster: Cluster, stream: string, topics: string[],
): Promise<void> {
  const inStream = CreateStreamRequest.fromPartial({ name: stream });
  const wasCreated = await isNew("STREAM_EXISTS", cluster.call((to, ...how) =>
    to(StreamsServiceClient).createStream(inStream, ...how)));
  tell({ stream, created: wasCreated });
  for (const topic of topics) {
    const request = CreateTopicRequest.fromPartial({
      stream: named(stream), name: topic, partitionsCount: PARTITIONS_COUNT,
    });
    const created = await isNew("TOPIC_EXISTS", cluster.call((to, ...how) =>
      to(StreamsServiceClient).createTopic(request, ...how)));
    tell({ topic, created });
  }
  const [listed] = await listTopics(cluster, named(stream));
  listed.map(described).forEach(tell);
}

/**
 * Returns whether a command created an entity. That it exists is no error: the command may even
 * have created it in an attempt whose answer was lost.
 */
async function isNew(exists: string, command: Promise<unknown>): Promise<boolean> {
  try {
    await command;
    return true;
  } catch (error) {
    if (refusalOf(error).reason !== exists) {
      throw error;
    }
    return false;
  }
}

/**
 * Returns all topics of a stream, and the revision of the first page. Pages may be of several
 * revisions: a watch from behind the first one brings what has changed in between.
 */
export async function listTopics(
  cluster: Cluster, stream: Identifier,
): Promise<[Topic[], bigint]> {
  const topics: Topic[] = [];
  const revisions: bigint[] = [];
  let pageToken = "";
  do {
    const request = ListTopicsRequest.fromPartial({ stream, pageSize: PAGE_SIZE, pageToken });
    const page: ListTopicsResponse = await cluster.call<ListTopicsResponse>((to, ...how) =>
      to(StreamsServiceClient).listTopics(request, ...how));
    topics.push(...page.topics);
    revisions.push(page.header!.revision);
    pageToken = page.nextPageToken;
  } while (pageToken);
  return [topics, revisions[0]!];
}

export function named(name: string): Identifier {
  return { kind: { $case: "name", value: name } };
}

export function described(topic: Topic): object {
  return { topic: topic.name, id: Number(topic.id), partitions_count: topic.partitionsCount };
}
