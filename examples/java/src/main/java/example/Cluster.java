package example;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.SslContext;
import io.grpc.stub.AbstractBlockingStub;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import javax.net.ssl.SSLException;
import viewstamp.api.users.v1.UsersServiceGrpc;
import viewstamp.api.users.v1.UsersServiceOuterClass.LoginRequest;

/** All replicas, the one to call next, and the access token. One thread uses it. */
final class Cluster implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final long PAUSE_FIRST_MS = 10;
  private static final long PAUSE_MAX_MS = 1_000;
  private static final long DELAY_MAX_MS = 30_000;
  /** A unary call that has no answer by then counts as failed. */
  private static final long UNARY_TIMEOUT_MS = 10_000;
  /** Two replicas that are cut off may name each other as the primary for ever. */
  private static final int HINTS_IN_A_ROW_MAX = 2;
  private static final long KEEP_ALIVE_MS = 10_000;
  private static final long KEEP_ALIVE_TIMEOUT_MS = 5_000;

  private final List<String> addresses;
  private final LoginRequest login;
  private final SslContext security; // null without TLS
  private int position = 0; // in the addresses
  private String hint = ""; // the primary's address, if a replica has just told it
  private int hintsInARow = 0;
  private ManagedChannel channel; // null while there is none
  private String token = "";
  private boolean isRenewed = false; // whether the token was renewed since the last success
  private long pauseMs = PAUSE_FIRST_MS;

  /** Uses TLS if there is a file with the authority of the replicas' certificates. */
  Cluster(List<String> addresses, String username, String password, String authority)
      throws SSLException {
    this.addresses = addresses;
    this.login = LoginRequest.newBuilder().setUsername(username).setPassword(password).build();
    this.security =
        authority.isEmpty()
            ? null
            : GrpcSslContexts.forClient().trustManager(new File(authority)).build();
  }

  /** Returns the address of the replica to call. */
  String address() {
    return hint.isEmpty() ? addresses.get(position % addresses.size()) : hint;
  }

  /** Returns a connection to the replica to call; its calls have metadata that identify us. */
  Channel connect() {
    if (channel == null) {
      // A replica whose machine is gone closes no connection: its silence ends it.
      NettyChannelBuilder builder =
          NettyChannelBuilder.forTarget(address())
              .keepAliveTime(KEEP_ALIVE_MS, TimeUnit.MILLISECONDS)
              .keepAliveTimeout(KEEP_ALIVE_TIMEOUT_MS, TimeUnit.MILLISECONDS);
      channel = (security == null ? builder.usePlaintext() : builder.sslContext(security)).build();
    }
    if (token.isEmpty()) {
      token = withDeadline(UsersServiceGrpc.newBlockingStub(channel)).login(login).getAccessToken();
    }
    Metadata metadata = new Metadata();
    metadata.put(AUTHORIZATION, "Bearer " + token);
    return ClientInterceptors.intercept(
        channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
  }

  /**
   * Makes a unary call, again and again for as long as a refusal allows that.
   *
   * <p>A connection that breaks hides whether a command took effect. So use it for reads, and for
   * commands that may be repeated. Submission repeats any command.
   */
  <Stub extends AbstractBlockingStub<Stub>, Response> Response call(
      Function<Channel, Stub> service, Function<Stub, Response> call)
      throws Refusal, InterruptedException {
    while (true) {
      try {
        Response response = call.apply(withDeadline(service.apply(connect())));
        reached();
        return response;
      } catch (StatusRuntimeException error) {
        prepare(Refusal.of(error));
      }
    }
  }

  /** Does what a refusal asks for before the next attempt. Throws one that is final. */
  void prepare(Refusal refusal) throws Refusal, InterruptedException {
    switch (refusal.verdict) {
      case RETRY, RECONNECT -> moveOn(refusal.detail("address"));
      case REOPEN -> {} // the same replica, after a pause
      case RENEW -> {
        if (isRenewed) {
          throw refusal;
        }
        token = "";
        isRenewed = true;
      }
      default -> throw refusal;
    }
    // A little more than was told, so that clients do not return together.
    long moreMs = ThreadLocalRandom.current().nextLong(pauseMs / 2, pauseMs);
    pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS);
    Thread.sleep(Math.min(refusal.delayMs(), DELAY_MAX_MS) + moreMs);
  }

  /** Notes that a replica has served us. */
  void reached() {
    hintsInARow = 0;
    isRenewed = false;
    pauseMs = PAUSE_FIRST_MS;
  }

  /** Closes the connection; the next call opens another one. */
  @Override
  public void close() {
    if (channel != null) {
      channel.shutdownNow();
      channel = null;
    }
  }

  /** Goes to the replica that is said to be the primary, or to the next one of the list. */
  private void moveOn(String told) {
    close();
    if (!told.isEmpty() && hintsInARow < HINTS_IN_A_ROW_MAX) {
      hint = told;
      hintsInARow++;
    } else {
      position++;
      hint = "";
      hintsInARow = 0;
    }
  }

  private static <Stub extends AbstractBlockingStub<Stub>> Stub withDeadline(Stub stub) {
    return stub.withDeadlineAfter(UNARY_TIMEOUT_MS, TimeUnit.MILLISECONDS);
  }
}
