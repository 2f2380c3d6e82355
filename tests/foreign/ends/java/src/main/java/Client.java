import com.google.gson.Gson;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Holds conversations with a server: a table on standard input, outcomes on standard output, a JSON
 * document on each line.
 */
public final class Client {
  private static final String SERVICE = "test.Echo/";
  private static final String SERVER_NAME = "server.test";
  private static final int PATIENCE_MS = 20_000;
  private static final int CANCEL_DELAY_MS = 100;
  private static final List<String> TOLD =
      List.of("initial", "initial-bin", "trailing", "plain", "grpc-status-details-bin");
  private static final Gson GSON = new Gson();

  /** One row of the table. */
  private static final class Conversation {
    String name;
    String kind;
    String path;
    String text = "";
    int size;
    int count;
    boolean turns;
    Map<String, String> metadata = Map.of();
    int deadline_ms = PATIENCE_MS;
    Integer cancel_after;
    int parallel = 1;
    boolean gzip;
    int pause_ms;

    boolean sendsStream() {
      return kind.equals("client") || kind.equals("bidi");
    }

    byte[] message() {
      if (size == 0) {
        return text.getBytes(StandardCharsets.UTF_8);
      }
      byte[] made = new byte[size];
      for (int at = 0; at < size; at++) {
        made[at] = (byte) (at % 256);
      }
      return made;
    }

    MethodDescriptor<byte[], byte[]> method() {
      MethodDescriptor.MethodType type =
          switch (kind) {
            case "unary" -> MethodDescriptor.MethodType.UNARY;
            case "server" -> MethodDescriptor.MethodType.SERVER_STREAMING;
            case "client" -> MethodDescriptor.MethodType.CLIENT_STREAMING;
            default -> MethodDescriptor.MethodType.BIDI_STREAMING;
          };
      return MethodDescriptor.newBuilder(Raw.AS_IS, Raw.AS_IS)
          .setType(type)
          .setFullMethodName(SERVICE + path)
          .build();
    }

    Metadata fields() {
      Metadata made = new Metadata();
      metadata.forEach(
          (key, value) -> {
            if (key.endsWith("-bin")) {
              made.put(
                  Metadata.Key.of(key, Metadata.BINARY_BYTE_MARSHALLER),
                  Base64.getDecoder().decode(value));
            } else {
              String repeat = "REPEAT ";
              String text =
                  value.startsWith(repeat)
                      ? "v".repeat(Integer.parseInt(value.substring(repeat.length())))
                      : value;
              made.put(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER), text);
            }
          });
      return made;
    }
  }

  /** What a call came to. */
  private static final class Outcome {
    int code;
    String details = "";
    int messages;
    String digest;
    Map<String, String> initial = Map.of();
    Map<String, String> trailing = Map.of();
  }

  /** Takes what comes, and answers in turn. */
  private static final class Listener extends ClientCall.Listener<byte[]> {
    private final ClientCall<byte[], byte[]> call;
    private final Conversation talk;
    private final MessageDigest digest;
    private final Outcome outcome = new Outcome();
    private final CompletableFuture<Outcome> done = new CompletableFuture<>();
    private boolean isCancelled;
    private boolean isHalfClosed;
    private int sent;

    Listener(ClientCall<byte[], byte[]> call, Conversation talk) throws Exception {
      this.call = call;
      this.talk = talk;
      this.digest = MessageDigest.getInstance("SHA-256");
    }

    void begin() {
      call.start(this, talk.fields());
      // With two a call with one answer learns that there is no second one.
      call.request(2);
      if (!talk.sendsStream()) {
        call.sendMessage(talk.message());
        call.halfClose();
      } else {
        sendMore();
      }
    }

    /** Both the one who begins and the channel call this, in threads of their own. */
    private synchronized void sendMore() {
      int until = talk.turns ? Math.min(talk.count, outcome.messages + 1) : talk.count;
      while (sent < until && (talk.turns || call.isReady())) {
        sent++;
        call.sendMessage(talk.message());
      }
      boolean isAnswered = !talk.turns || outcome.messages == talk.count;
      if (sent == talk.count && isAnswered && !isHalfClosed) {
        isHalfClosed = true;
        call.halfClose();
      }
    }

    @Override
    public void onReady() {
      if (talk.sendsStream() && !talk.turns) {
        sendMore();
      }
    }

    @Override
    public void onHeaders(Metadata headers) {
      outcome.initial = told(headers);
    }

    @Override
    public void onMessage(byte[] message) {
      if (isCancelled) {
        return;
      }
      digest.update(ByteBuffer.allocate(4).putInt(message.length).array());
      digest.update(message);
      outcome.messages++;
      pause();
      if (talk.cancel_after != null && outcome.messages == talk.cancel_after) {
        isCancelled = true;
        call.cancel("enough", null);
      }
      if (talk.turns) {
        sendMore();
      }
      call.request(1);
    }

    private void pause() {
      try {
        Thread.sleep(talk.pause_ms);
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      }
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      outcome.code = status.getCode().value();
      outcome.details = status.getDescription() == null ? "" : status.getDescription();
      outcome.trailing = told(trailers);
      outcome.digest = HexFormat.of().formatHex(digest.digest());
      done.complete(outcome);
    }
  }

  private static Map<String, String> told(Metadata metadata) {
    Map<String, String> kept = new TreeMap<>();
    for (String key : TOLD) {
      if (key.endsWith("-bin")) {
        byte[] value = metadata.get(Metadata.Key.of(key, Metadata.BINARY_BYTE_MARSHALLER));
        if (value != null) {
          kept.put(key, Base64.getEncoder().encodeToString(value));
        }
      } else {
        String value = metadata.get(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER));
        if (value != null) {
          kept.put(key, value);
        }
      }
    }
    return kept;
  }

  private static CompletableFuture<Outcome> hold(
      ManagedChannel channel, Conversation talk, java.util.concurrent.ScheduledExecutorService clock)
      throws Exception {
    CallOptions options =
        CallOptions.DEFAULT.withDeadlineAfter(talk.deadline_ms, TimeUnit.MILLISECONDS);
    if (talk.gzip) {
      options = options.withCompression("gzip");
    }
    ClientCall<byte[], byte[]> call = channel.newCall(talk.method(), options);
    Listener listener = new Listener(call, talk);
    listener.begin();
    if (talk.cancel_after != null && talk.cancel_after == 0) {
      clock.schedule(
          () -> call.cancel("enough", null), CANCEL_DELAY_MS, TimeUnit.MILLISECONDS);
    }
    return listener.done;
  }

  private static ManagedChannel opened(String[] arguments) throws Exception {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forTarget(arguments[0])
            .overrideAuthority(SERVER_NAME)
            .maxInboundMessageSize(Raw.BYTES_MAX);
    if (arguments.length == 1) {
      return builder.usePlaintext().build();
    }
    return builder
        .sslContext(
            GrpcSslContexts.forClient()
                .trustManager(new File(arguments[1]))
                .keyManager(new File(arguments[2]), new File(arguments[3]))
                .build())
        .build();
  }

  public static void main(String[] arguments) throws Exception {
    ManagedChannel channel = opened(arguments);
    var clock = Executors.newSingleThreadScheduledExecutor();
    var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      Conversation talk = GSON.fromJson(line, Conversation.class);
      List<CompletableFuture<Outcome>> calls = new ArrayList<>();
      for (int number = 0; number < talk.parallel; number++) {
        calls.add(hold(channel, talk, clock));
      }
      List<Outcome> outcomes = calls.stream().map(CompletableFuture::join).toList();
      System.out.println(GSON.toJson(Map.of("name", talk.name, "outcomes", outcomes)));
    }
    clock.shutdownNow();
    channel.shutdownNow();
  }
}
