package example;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.security.SecureRandom;
import java.util.Iterator;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;
import viewstamp.api.sessions.v1.SessionsServiceGrpc;
import viewstamp.api.sessions.v1.SessionsServiceOuterClass.RegisterSessionRequest;
import viewstamp.api.sessions.v1.SessionsServiceOuterClass.RegisterSessionResponse;
import viewstamp.api.submit.v1.SubmitServiceGrpc;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.CommandReply;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.CommandRequest;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.OpenStream;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.Span;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.StreamOpened;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.SubmitRequest;
import viewstamp.api.submit.v1.SubmitServiceOuterClass.SubmitResponse;

/**
 * Sends commands in numbered requests of one session. Each takes effect once, however often it is
 * sent and whichever replica leads: a number that the cluster knows gets the same reply.
 *
 * <p>One thread admits commands, another one serves the stream. They share what follows.
 */
final class Submission {
  private static final int NONCE_BYTES = 16;
  /** A session may have so many requests without an answer. */
  private static final int WINDOW_REQUESTS = 8;

  private final Cluster cluster;
  private final Consumer<CommandReply> answered;
  private long sessionId;
  private ByteString clusterId;
  private long nextNumber = 1;
  private final TreeMap<Long, Span> unanswered = new TreeMap<>();
  private boolean isLast = false; // whether no more commands come
  private RuntimeException failure; // of the commands; null without one
  private StreamObserver<SubmitRequest> stream; // null while none is open

  Submission(Cluster cluster, Consumer<CommandReply> answered) {
    this.cluster = cluster;
    this.answered = answered;
  }

  /** Sends the commands and hands out the replies, until each command has its reply. */
  void run(Iterator<Span> commands) throws Refusal, InterruptedException {
    register();
    Thread admitting = new Thread(() -> admitAll(commands));
    admitting.setDaemon(true);
    admitting.start();
    while (!isDone()) {
      try {
        serve();
      } catch (StatusRuntimeException error) {
        cluster.prepare(Refusal.of(error));
      } catch (Refusal refusal) {
        cluster.prepare(refusal);
      }
    }
    admitting.join();
    if (failure != null) {
      throw failure;
    }
  }

  /** Opens a session. The same nonce in each attempt finds the same session. */
  private void register() throws Refusal, InterruptedException {
    byte[] nonce = new byte[NONCE_BYTES];
    new SecureRandom().nextBytes(nonce);
    RegisterSessionRequest request =
        RegisterSessionRequest.newBuilder().setNonce(ByteString.copyFrom(nonce)).build();
    RegisterSessionResponse response =
        cluster.call(SessionsServiceGrpc::newBlockingStub, (stub) -> stub.registerSession(request));
    sessionId = response.getSessionId();
    clusterId = response.getHeader().getClusterId();
  }

  private void admitAll(Iterator<Span> commands) {
    try {
      while (commands.hasNext()) {
        admit(commands.next());
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    } catch (RuntimeException error) {
      failure = error;
    }
    noMore();
  }

  /** Gives a command the next number, as soon as there is room for it. */
  private synchronized void admit(Span command) throws InterruptedException {
    while (nextNumber > acked() + WINDOW_REQUESTS) {
      wait();
    }
    unanswered.put(nextNumber, command);
    send(nextNumber, command);
    nextNumber++;
  }

  private synchronized void noMore() {
    isLast = true;
    endIfDone();
  }

  private synchronized boolean isDone() {
    return isLast && unanswered.isEmpty();
  }

  /** Returns the number up to which every reply has come. */
  private long acked() {
    return (unanswered.isEmpty() ? nextNumber : unanswered.firstKey()) - 1;
  }

  /** Serves over one stream. Throws the reason for which it ended before all was done. */
  private void serve() throws Refusal, InterruptedException {
    Responses responses = new Responses();
    var requests = SubmitServiceGrpc.newStub(cluster.connect()).submit(responses);
    OpenStream open = OpenStream.newBuilder().setSessionId(sessionId).build();
    requests.onNext(SubmitRequest.newBuilder().setOpen(open).build());
    try {
      opened(requests, responses.next().getOpened());
      for (var response = responses.next(); response != null; response = responses.next()) {
        settle(response.getCommand());
      }
    } finally {
      close(requests);
    }
    if (!isDone()) {
      throw Refusal.without("the replica ended the stream without a reason", Verdict.RECONNECT);
    }
  }

  /**
   * Sends everything again that has no answer, under the same numbers. Nothing may be sent before
   * the stream is open: until then an older one may still be read.
   */
  private synchronized void opened(StreamObserver<SubmitRequest> requests, StreamOpened opened)
      throws Refusal {
    if (!opened.getClusterId().equals(clusterId)) {
      String message = "another cluster answers at " + cluster.address();
      throw Refusal.without(message, Verdict.FINAL);
    }
    stream = requests;
    Lines.tell(
        Lines.line("opened", cluster.address(), "sent_again", List.copyOf(unanswered.keySet())));
    unanswered.forEach(this::send);
    endIfDone();
  }

  private synchronized void close(StreamObserver<SubmitRequest> requests) {
    stream = null;
    requests.onError(Status.CANCELLED.asException()); // nothing happens if it has ended
  }

  /**
   * Hands out the reply to a request. A request that was refused as a whole stays unanswered: the
   * refusal says what to do, and the next stream sends the request again.
   */
  private synchronized void settle(CommandReply reply) throws Refusal {
    if (reply.hasError()) {
      throw Refusal.in(reply.getError());
    }
    cluster.reached();
    if (unanswered.remove(reply.getNumber()) != null) { // else it is a second copy of a reply
      answered.accept(reply);
      notifyAll();
    }
    endIfDone();
  }

  /** Sends a request, unless no stream is open: the next one will send it. */
  private void send(long number, Span command) {
    if (stream != null) {
      CommandRequest.Builder request =
          CommandRequest.newBuilder().setNumber(number).setAcked(acked()).addSpans(command);
      stream.onNext(SubmitRequest.newBuilder().setCommand(request).build());
    }
  }

  private void endIfDone() {
    if (isDone() && stream != null) {
      stream.onCompleted();
      stream = null;
    }
  }

  /** What comes over a stream, as steps that return the next message, or throw why there is none. */
  private static final class Responses implements StreamObserver<SubmitResponse> {
    private interface Step {
      SubmitResponse take() throws Refusal;
    }

    private final BlockingQueue<Step> steps = new LinkedBlockingQueue<>();

    /** Returns the next message; null at the end of the stream. */
    SubmitResponse next() throws Refusal, InterruptedException {
      return steps.take().take();
    }

    @Override
    public void onNext(SubmitResponse response) {
      steps.add(() -> response);
    }

    @Override
    public void onError(Throwable error) {
      steps.add(
          () -> {
            throw Refusal.of(error);
          });
    }

    @Override
    public void onCompleted() {
      steps.add(() -> null);
    }
  }
}
