package example;

import com.google.protobuf.ByteString;
import com.google.protobuf.CodedInputStream;
import com.google.protobuf.CodedOutputStream;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import viewstamp.api.routing.v1.Routing;
import viewstamp.api.streams.v1.StreamsServiceOuterClass;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.CreatePartitionsRequest;
import viewstamp.api.streams.v1.StreamsServiceOuterClass.CreatePartitionsResponse;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.CommandReply;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.Span;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.SpanReply;

/**
 * Adds partitions to a topic. A command that took effect twice, or never, would show in the counts
 * of all later answers.
 */
final class Partitions {
  /** Messages in a span are encoded as `repeated Message items = 1` would be. */
  private static final int ITEMS_FIELD = 1;
  /** The number of the command, which is an option of its method in the protos. */
  private static final int CODE =
      StreamsServiceOuterClass.getDescriptor()
          .findServiceByName("StreamsService")
          .findMethodByName("CreatePartitions")
          .getOptions()
          .getExtension(Routing.command)
          .getCode();

  private Partitions() {}

  /** Adds as many partitions at a time as each line of the input says. */
  static void add(Cluster cluster, String stream, String topic)
      throws Refusal, InterruptedException {
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines();
    new Submission(cluster, Partitions::tell)
        .run(lines.map((line) -> command(stream, topic, line)).iterator());
  }

  /** Returns the command as a span, which is how a Submit stream carries it. */
  private static Span command(String stream, String topic, String line) {
    CreatePartitionsRequest request =
        CreatePartitionsRequest.newBuilder()
            .setStream(Topology.named(stream))
            .setTopic(Topology.named(topic))
            .setPartitionsCount(Integer.parseInt(line))
            .build();
    ByteString.Output items = ByteString.newOutput();
    try {
      CodedOutputStream encoded = CodedOutputStream.newInstance(items);
      encoded.writeMessage(ITEMS_FIELD, request);
      encoded.flush();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return Span.newBuilder().setCode(CODE).setCount(1).setItems(items.toByteString()).build();
  }

  /** Prints the result of the only command of a request. */
  private static void tell(CommandReply reply) {
    Map<String, Object> line =
        Lines.line("number", reply.getNumber(), "revision", reply.getHeader().getRevision());
    SpanReply span = reply.getSpans(0);
    if (span.getErrorsCount() > 0) {
      // The cluster decided so: a result like any other, which a retry gets again.
      line.put("refused", Refusal.in(span.getErrors(0).getError()).reason);
    } else {
      line.put("partitions_count", result(span.getResults()).getPartitionsCount());
    }
    Lines.tell(line);
  }

  private static CreatePartitionsResponse result(ByteString results) {
    try {
      CodedInputStream encoded = results.newCodedInput();
      encoded.readTag();
      return CreatePartitionsResponse.parseFrom(encoded.readBytes());
    } catch (IOException error) {
      throw new UncheckedIOException("a result cannot be read", error);
    }
  }
}
