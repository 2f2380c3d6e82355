package example;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import viewstamp.api.common.v1.Common.Identifier;
import viewstamp.api.streams.v1.Streams.Topic;
import viewstamp.api.streams.v1.StreamsServiceGrpc;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.CreateStreamRequest;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.CreateTopicRequest;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.ListTopicsRequest;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.ListTopicsResponse;
import viewstamp.api.users.v1.Users.User;
import viewstamp.api.users.v1.UsersServiceGrpc;
import viewstamp.api.users.v1.UsersServiceOuterClass.WhoAmIRequest;

/** Who we are, and what streams and topics there are. */
final class Topology {
  private static final int PARTITIONS_COUNT = 1;
  /** So small that the example shows several pages; 1000 is the most. */
  private static final int PAGE_SIZE = 2;

  private Topology() {}

  /** All topics of a stream, and the revision of the first page. */
  record Listed(List<Topic> topics, long revision) {}

  /** A call of a command. */
  private interface Command {
    void run() throws Refusal, InterruptedException;
  }

  /** Shows who we are: every other command logs in by itself, in Cluster.connect. */
  static void logIn(Cluster cluster) throws Refusal, InterruptedException {
    WhoAmIRequest request = WhoAmIRequest.getDefaultInstance();
    User user =
        cluster.call(UsersServiceGrpc::newBlockingStub, (stub) -> stub.whoAmI(request)).getUser();
    Lines.tell(Lines.line("user_id", user.getId(), "username", user.getUsername()));
  }

  /** Makes sure that a stream and its topics exist, and lists the topics. */
  static void ensure(Cluster cluster, String stream, List<String> topics)
      throws Refusal, InterruptedException {
    CreateStreamRequest inStream = CreateStreamRequest.newBuilder().setName(stream).build();
    boolean wasCreated =
        isNew(
            "STREAM_EXISTS",
            () -> cluster.call(
                StreamsServiceGrpc::newBlockingStub, (stub) -> stub.createStream(inStream)));
    Lines.tell(Lines.line("stream", stream, "created", wasCreated));
    for (String topic : topics) {
      CreateTopicRequest request =
          CreateTopicRequest.newBuilder()
              .setStream(named(stream))
              .setName(topic)
              .setPartitionsCount(PARTITIONS_COUNT)
              .build();
      boolean isCreated =
          isNew(
              "TOPIC_EXISTS",
              () -> cluster.call(
                  StreamsServiceGrpc::newBlockingStub, (stub) -> stub.createTopic(request)));
      Lines.tell(Lines.line("topic", topic, "created", isCreated));
    }
    list(cluster, named(stream)).topics().forEach((topic) -> Lines.tell(described(topic)));
  }

  /**
   * Returns whether a command created an entity. That it exists is no error: the command may even
   * have created it in an attempt whose answer was lost.
   */
  private static boolean isNew(String exists, Command command)
      throws Refusal, InterruptedException {
    try {
      command.run();
      return true;
    } catch (Refusal refusal) {
      if (!refusal.reason.equals(exists)) {
        throw refusal;
      }
      return false;
    }
  }

  /**
   * Lists all topics of a stream. Pages may be of several revisions: a watch from behind the first
   * one brings what has changed in between.
   */
  static Listed list(Cluster cluster, Identifier stream) throws Refusal, InterruptedException {
    List<Topic> topics = new ArrayList<>();
    long revision = 0;
    String pageToken = "";
    do {
      ListTopicsRequest request =
          ListTopicsRequest.newBuilder()
              .setStream(stream)
              .setPageSize(PAGE_SIZE)
              .setPageToken(pageToken)
              .build();
      ListTopicsResponse page =
          cluster.call(StreamsServiceGrpc::newBlockingStub, (stub) -> stub.listTopics(request));
      topics.addAll(page.getTopicsList());
      revision = revision == 0 ? page.getHeader().getRevision() : revision;
      pageToken = page.getNextPageToken();
    } while (!pageToken.isEmpty());
    return new Listed(topics, revision);
  }

  static Identifier named(String name) {
    return Identifier.newBuilder().setName(name).build();
  }

  static Map<String, Object> described(Topic topic) {
    return Lines.line(
        "topic", topic.getName(),
        "id", topic.getId(),
        "partitions_count", topic.getPartitionsCount());
  }
}
