package example;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.grpc.StatusRuntimeException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import viewstamp.api.common.v1.Common.Identifier;
import viewstamp.api.streams.v1.Streams.Topic;
import viewstamp.api.streams.v1.StreamsServiceGrpc;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.GetStreamRequest;
import viewstamp.api.watch.v1.WatchServiceGrpc;
import viewstamp.api.watch.v1.WatchServiceOuterClass.Change;
import viewstamp.api.watch.v1.WatchServiceOuterClass.WatchRequest;
import viewstamp.api.watch.v1.WatchServiceOuterClass.WatchResponse;

/**
 * Prints every change of the topics of a stream once, in order, whatever happens to replicas. Its
 * place is all that it has to keep.
 */
final class TopicWatch {
  private final Cluster cluster;
  private final Identifier stream;
  /** Everything up to this revision was printed. */
  private long complete;
  /** The cluster that the revision belongs to; empty before it is known. */
  private ByteString clusterId = ByteString.EMPTY;
  /** Changes of a revision of which more follow. */
  private final Deque<Change> parts = new ArrayDeque<>();

  /** Watches from a revision on. */
  TopicWatch(Cluster cluster, String stream, long fromRevision)
      throws Refusal, InterruptedException {
    GetStreamRequest request =
        GetStreamRequest.newBuilder().setStream(Topology.named(stream)).build();
    long id =
        cluster
            .call(StreamsServiceGrpc::newBlockingStub, (stub) -> stub.getStream(request))
            .getStream()
            .getId();
    this.cluster = cluster;
    // A name may mean another stream tomorrow, and an id never does.
    this.stream = Identifier.newBuilder().setId(id).build();
    this.complete = fromRevision - 1;
  }

  /** Prints changes until the process ends. */
  void run() throws Refusal, InterruptedException, InvalidProtocolBufferException {
    while (true) {
      try {
        follow();
        prepare(Refusal.without("the replica ended the watch", Verdict.RECONNECT));
      } catch (StatusRuntimeException error) {
        prepare(Refusal.of(error));
      }
    }
  }

  /** Watches at one replica until it ends the watch. Any replica serves watches. */
  private void follow() throws InvalidProtocolBufferException {
    WatchRequest request =
        WatchRequest.newBuilder()
            .setFromRevision(complete + 1)
            .setClusterId(clusterId)
            .setStream(stream)
            .addEntityTypes("viewstamp.api.streams.v1.Topic")
            .setProgressNotifications(true)
            .build();
    Iterator<WatchResponse> responses =
        WatchServiceGrpc.newBlockingStub(cluster.connect()).watch(request);
    for (boolean isFirst = true; responses.hasNext(); isFirst = false) {
      take(responses.next());
      if (!isFirst) {
        cluster.reached(); // the first message comes at once, and shows no progress
      }
    }
  }

  /**
   * Prints what a message completes. Only the header says that a revision is complete; changes
   * behind it wait for the next header.
   */
  private void take(WatchResponse response) throws InvalidProtocolBufferException {
    long revision = response.getHeader().getRevision();
    parts.addAll(response.getChangesList());
    while (!parts.isEmpty() && parts.peek().getRevision() <= revision) {
      tell(parts.remove());
    }
    clusterId = response.getHeader().getClusterId();
    complete = revision;
  }

  /** Makes ready for the next call, which begins behind the last complete revision. */
  private void prepare(Refusal refusal) throws Refusal, InterruptedException {
    parts.clear(); // they come again
    if (refusal.reason.equals("REVISION_COMPACTED")) {
      listAnew();
      return;
    }
    if (refusal.reason.equals("ACCESS_CHANGED")) {
      // Everything up to the revision that it names has come. The cluster decides anew from there.
      complete = Math.max(complete, Long.parseLong(refusal.detail("revision")));
    }
    cluster.prepare(refusal);
  }

  /**
   * Prints all topics, because the changes since our place are not kept any more. The watch goes on
   * behind the revision of the list.
   */
  private void listAnew() throws Refusal, InterruptedException {
    Topology.Listed listed = Topology.list(cluster, stream);
    Lines.tell(
        Lines.line(
            "revision", listed.revision(),
            "list", listed.topics().stream().map(Topology::described).toList()));
    complete = listed.revision();
  }

  private static void tell(Change change) throws InvalidProtocolBufferException {
    String kind = change.getKind().name().replace("CHANGE_KIND_", "").toLowerCase(Locale.ROOT);
    Map<String, Object> line = Lines.line("revision", change.getRevision(), "kind", kind);
    line.putAll(Topology.described(Topic.parseFrom(change.getEntity())));
    Lines.tell(line);
  }
}
