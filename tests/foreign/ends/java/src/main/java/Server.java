import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.ServerCall;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.ClientAuth;
import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.cert.X509Certificate;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;

/**
 * Serves all kinds of calls: it gets the files of an authority, a certificate and a key, prints its
 * two addresses, the second one with TLS, and serves until its input ends.
 */
public final class Server {
  private static final String SERVICE = "test.Echo";
  private static final int WINDOW_BYTES = 1 << 16;
  private static final int STREAMS_MAX = 100;
  private static final int FALTERED = 3;
  private static final int DRAINED = 5;
  private static final int DRAIN_GAP_MS = 100;
  private static final int SLOW_GAP_MS = 5;
  private static final int LOOK_AGAIN_MS = 10;
  private static final AtomicInteger CANCELLED = new AtomicInteger();
  private static final List<io.grpc.Server> SERVERS = new ArrayList<>();
  private static final ScheduledExecutorService CLOCK =
      Executors.newSingleThreadScheduledExecutor();

  /** One call; what is written waits until the client's windows have room. */
  private static class Served extends ServerCall.Listener<byte[]> {
    final ServerCall<byte[], byte[]> call;
    final Metadata given;
    private final Queue<byte[]> waiting = new ArrayDeque<>();
    private boolean hasBegun;
    private boolean isComplete;

    Served(ServerCall<byte[], byte[]> call, Metadata given) {
      this.call = call;
      this.given = given;
      call.request(1);
    }

    void take(byte[] request) {}

    void end() {}

    synchronized void write(byte[] message) {
      waiting.add(message);
      send();
    }

    synchronized void complete() {
      isComplete = true;
      send();
    }

    void begin(Metadata initial) {
      hasBegun = true;
      call.sendHeaders(initial);
    }

    private void send() {
      while (!waiting.isEmpty() && (!hasBegun || call.isReady())) {
        if (!hasBegun) {
          begin(new Metadata());
        }
        call.sendMessage(waiting.remove());
      }
      if (waiting.isEmpty()) {
        wantMore();
        if (isComplete && !call.isCancelled()) {
          isComplete = false;
          close();
        }
      }
    }

    void wantMore() {
      call.request(1);
    }

    void close() {
      call.close(Status.OK, new Metadata());
    }

    @Override
    public void onMessage(byte[] request) {
      take(request);
    }

    @Override
    public void onHalfClose() {
      end();
    }

    @Override
    public synchronized void onReady() {
      send();
    }
  }

  /** Answers one request with one message. */
  private static class Answering extends Served {
    private final Function<byte[], byte[]> answer;

    Answering(
        ServerCall<byte[], byte[]> call, Metadata given, Function<byte[], byte[]> answer) {
      super(call, given);
      this.answer = answer;
    }

    @Override
    void take(byte[] request) {
      write(answer.apply(request));
    }

    @Override
    void end() {
      complete();
    }
  }

  private static final class Counting extends Served {
    private int left = -1;
    private int number;
    private int size;

    Counting(ServerCall<byte[], byte[]> call, Metadata given) {
      super(call, given);
    }

    @Override
    void take(byte[] request) {
      String[] words = text(request).split(" ");
      left = Integer.parseInt(words[0]);
      size = Integer.parseInt(words[1]);
    }

    @Override
    void end() {
      more();
    }

    @Override
    public synchronized void onReady() {
      super.onReady();
      more();
    }

    private synchronized void more() {
      while (left > 0 && (number == 0 || call.isReady())) {
        left--;
        byte[] message = new byte[size];
        Arrays.fill(message, (byte) number++);
        write(message);
      }
      if (left == 0) {
        left = -1;
        complete();
      }
    }

    @Override
    void wantMore() {}
  }

  private static final class Adding extends Served {
    private final int gapMs;
    private int messages;
    private long size;

    Adding(ServerCall<byte[], byte[]> call, Metadata given, int gapMs) {
      super(call, given);
      this.gapMs = gapMs;
    }

    @Override
    void take(byte[] request) {
      messages++;
      size += request.length;
      pause(gapMs);
      call.request(1);
    }

    @Override
    void end() {
      write(bytes(messages + " " + size));
      complete();
    }
  }

  private static final class Chatting extends Served {
    Chatting(ServerCall<byte[], byte[]> call, Metadata given) {
      super(call, given);
    }

    @Override
    void take(byte[] request) {
      write(request);
    }

    @Override
    void end() {
      complete();
    }
  }

  /** Refuses after a request, and some answers. */
  private static final class Refusing extends Served {
    private final Status status;
    private final int answers;
    private boolean hasRefused;

    Refusing(ServerCall<byte[], byte[]> call, Metadata given, Status status, int answers) {
      super(call, given);
      this.status = status;
      this.answers = answers;
    }

    @Override
    void take(byte[] request) {
      if (hasRefused) {
        return;
      }
      for (int number = 0; number < answers; number++) {
        write(request);
      }
      Metadata trailing = new Metadata();
      trailing.put(binary("grpc-status-details-bin"), new byte[] {0, (byte) 255});
      trailing.put(plain("plain"), "words");
      Status told = status.getDescription() == null ? status.withDescription(text(request)) : status;
      hasRefused = true;
      call.close(told, trailing);
    }
  }

  private static final class Telling extends Answering {
    Telling(ServerCall<byte[], byte[]> call, Metadata given) {
      super(call, given, request -> told(given));
    }

    @Override
    void begin(Metadata initial) {
      initial.put(plain("initial"), "first");
      initial.put(binary("initial-bin"), new byte[] {1});
      super.begin(initial);
    }

    @Override
    void close() {
      Metadata trailing = new Metadata();
      trailing.put(plain("trailing"), "last");
      call.close(Status.OK, trailing);
    }
  }

  private static final class Sleeping extends Served {
    Sleeping(ServerCall<byte[], byte[]> call, Metadata given) {
      super(call, given);
    }

    @Override
    public void onCancel() {
      CANCELLED.incrementAndGet();
    }
  }

  private static final class Draining extends Served {
    private int number;

    Draining(ServerCall<byte[], byte[]> call, Metadata given) {
      super(call, given);
    }

    @Override
    void take(byte[] request) {
      write(bytes("before"));
      SERVERS.forEach(io.grpc.Server::shutdown);
      CLOCK.schedule(this::more, DRAIN_GAP_MS, TimeUnit.MILLISECONDS);
    }

    private void more() {
      write(bytes(Integer.toString(number++)));
      if (number < DRAINED) {
        CLOCK.schedule(this::more, DRAIN_GAP_MS, TimeUnit.MILLISECONDS);
      } else {
        complete();
      }
    }
  }

  private static byte[] told(Metadata given) {
    List<String> lines = new ArrayList<>();
    for (String key : given.keys().stream().filter(each -> each.startsWith("x-")).toList()) {
      if (key.endsWith("-bin")) {
        given
            .getAll(binary(key))
            .forEach(value -> lines.add(key + "=" + Base64.getEncoder().encodeToString(value)));
      } else {
        given.getAll(plain(key)).forEach(value -> lines.add(key + "=" + value));
      }
    }
    lines.sort(null);
    return bytes((Context.current().getDeadline() != null) + " " + String.join("\n", lines));
  }

  private static byte[] proven(ServerCall<byte[], byte[]> call) {
    var session = call.getAttributes().get(Grpc.TRANSPORT_ATTR_SSL_SESSION);
    if (session == null) {
      return bytes("insecure");
    }
    try {
      X509Certificate certificate = (X509Certificate) session.getPeerCertificates()[0];
      return bytes(session.getProtocol() + certificate.getSubjectAlternativeNames());
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  private static byte[] seen(byte[] request) {
    while (CANCELLED.get() < Integer.parseInt(text(request))) {
      pause(LOOK_AGAIN_MS);
    }
    return request;
  }

  private static byte[] fail() {
    throw new IllegalStateException("as planned");
  }

  private static Metadata.Key<String> plain(String key) {
    return Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER);
  }

  private static Metadata.Key<byte[]> binary(String key) {
    return Metadata.Key.of(key, Metadata.BINARY_BYTE_MARSHALLER);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static String text(byte[] message) {
    return new String(message, StandardCharsets.UTF_8);
  }

  private static void pause(int pauseMs) {
    try {
      Thread.sleep(pauseMs);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static ServerServiceDefinition service() {
    Map<String, io.grpc.ServerCallHandler<byte[], byte[]>> methods =
        Map.ofEntries(
            Map.entry("Echo", (call, given) -> new Answering(call, given, each -> each)),
            Map.entry("Count", Counting::new),
            Map.entry("Sum", (call, given) -> new Adding(call, given, 0)),
            Map.entry("Slow", (call, given) -> new Adding(call, given, SLOW_GAP_MS)),
            Map.entry("Chat", Chatting::new),
            Map.entry("Refuse", (call, given) -> new Refusing(call, given, Status.ALREADY_EXISTS, 0)),
            Map.entry("Falter", (call, given) -> new Refusing(call, given, FALTERS, FALTERED)),
            Map.entry("Halt", (call, given) -> new Refusing(call, given, HALTS, 0)),
            Map.entry("Break", (call, given) -> new Answering(call, given, each -> fail())),
            Map.entry("Tell", Telling::new),
            Map.entry("Who", (call, given) -> new Answering(call, given, each -> proven(call))),
            Map.entry("Sleep", Sleeping::new),
            Map.entry("Seen", (call, given) -> new Answering(call, given, Server::seen)),
            Map.entry("Drain", Draining::new));
    ServerServiceDefinition.Builder builder = ServerServiceDefinition.builder(SERVICE);
    methods.forEach(
        (name, handler) ->
            builder.addMethod(
                MethodDescriptor.newBuilder(Raw.AS_IS, Raw.AS_IS)
                    .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
                    .setFullMethodName(SERVICE + "/" + name)
                    .build(),
                handler));
    return builder.build();
  }

  private static final Status FALTERS = Status.DATA_LOSS.withDescription("after some answers");
  private static final Status HALTS = Status.OUT_OF_RANGE.withDescription("after one request");

  private static NettyServerBuilder builder() {
    return NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0))
        .maxInboundMessageSize(Raw.BYTES_MAX)
        .maxConcurrentCallsPerConnection(STREAMS_MAX)
        .initialFlowControlWindow(WINDOW_BYTES)
        .addService(service());
  }

  private static String started(NettyServerBuilder builder) throws Exception {
    io.grpc.Server server = builder.build().start();
    SERVERS.add(server);
    return "127.0.0.1:" + server.getPort();
  }

  public static void main(String[] files) throws Exception {
    var encrypted =
        GrpcSslContexts.forServer(new File(files[1]), new File(files[2]))
            .trustManager(new File(files[0]))
            .clientAuth(ClientAuth.REQUIRE)
            .build();
    System.out.println(started(builder()) + " " + started(builder().sslContext(encrypted)));
    while (System.in.read() >= 0) {}
    System.exit(0);
  }
}
