package example;

import java.util.Map;

/** What to do about a refusal. */
enum Verdict {
  /** Tell the caller. */
  FINAL,
  /** Send the same again, a little later. */
  RETRY,
  /** Send the same again, to another replica. */
  RECONNECT,
  /** Send the same again, over a new stream to the same replica. */
  REOPEN,
  /** Log in again, then send the same. */
  RENEW,
  /** The session is over. */
  ENDED,
  /** The answer is gone: nobody can say what happened. */
  LOST;

  /** The table of docs/other-languages.md. Reasons that are not listed are final. */
  private static final Map<String, Verdict> VERDICTS =
      Map.ofEntries(
          Map.entry("NOT_PRIMARY", RECONNECT),
          Map.entry("VIEW_CHANGE", RETRY),
          Map.entry("DOMAIN_RESTARTING", RETRY),
          Map.entry("NO_QUORUM", RETRY),
          Map.entry("OVERLOADED", RETRY),
          Map.entry("QUOTA_EXCEEDED", RETRY),
          Map.entry("OUTCOME_UNKNOWN", RETRY),
          Map.entry("REQUEST_GAP", RETRY),
          Map.entry("STREAM_REPLACED", REOPEN),
          Map.entry("ACCESS_CHANGED", REOPEN),
          Map.entry("UNAUTHENTICATED", RENEW),
          Map.entry("SESSION_EVICTED", ENDED),
          Map.entry("REQUEST_NUMBER_REUSED", LOST),
          Map.entry("REQUEST_TOO_OLD", LOST));

  static Verdict on(String reason, Map<String, String> details) {
    // A replica that lags will catch up with what another one has answered.
    return details.containsKey("last_applied") ? RETRY : VERDICTS.getOrDefault(reason, FINAL);
  }
}
