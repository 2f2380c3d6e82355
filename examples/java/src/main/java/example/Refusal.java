package example;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.util.HashMap;
import java.util.Map;
import viewstamp.api.errors.v1.Errors;

/**
 * An error of the cluster: a reason for programs, a message for people, and the names and numbers
 * that the message mentions. The reason is empty if no replica said it: the connection broke.
 */
final class Refusal extends Exception {
  private static final long serialVersionUID = 1;

  final String reason;
  final Verdict verdict;
  private final transient Map<String, String> details;

  private Refusal(String reason, String message, Map<String, String> details, Verdict verdict) {
    super(reason + ": " + message);
    this.reason = reason;
    this.details = details;
    this.verdict = verdict;
  }

  /** Returns a failure that no replica has a reason for. */
  static Refusal without(String message, Verdict verdict) {
    return new Refusal("", message, Map.of(), verdict);
  }

  /** Returns why a call failed: the google.rpc.ErrorInfo in its status. */
  static Refusal of(Throwable error) {
    com.google.rpc.Status told = StatusProto.fromThrowable(error);
    if (told != null) {
      for (Any detail : told.getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = unpacked(detail);
          Map<String, String> details = info.getMetadataMap();
          Verdict verdict = Verdict.on(info.getReason(), details);
          return new Refusal(info.getReason(), told.getMessage(), details, verdict);
        }
      }
    }
    Status status = Status.fromThrowable(error);
    boolean isBroken = status.getCode() == Status.Code.UNAVAILABLE;
    return without(status.toString(), isBroken ? Verdict.RECONNECT : Verdict.FINAL);
  }

  /** Returns the refusal that a reply carries among its results. */
  static Refusal in(Errors.Error refused) {
    Map<String, String> details = new HashMap<>();
    refused.getDetailsList().forEach((detail) -> details.put(detail.getKey(), detail.getValue()));
    String reason = refused.getReason().name().replace("REASON_", "");
    return new Refusal(reason, refused.getMessage(), details, Verdict.on(reason, details));
  }

  /** Returns a detail; empty if there is none. */
  String detail(String key) {
    return details.getOrDefault(key, "");
  }

  /** Returns how long the cluster asks to wait before the next attempt. */
  long delayMs() {
    return Long.parseLong(details.getOrDefault("retry_delay_ms", "0"));
  }

  private static ErrorInfo unpacked(Any detail) {
    try {
      return detail.unpack(ErrorInfo.class);
    } catch (InvalidProtocolBufferException error) {
      throw new IllegalStateException("a status of the cluster cannot be read", error);
    }
  }
}
