import { status, type ServiceError } from "@grpc/grpc-js";
import { ErrorInfo } from "nice-grpc-error-details";
import { Status } from "nice-grpc-error-details/lib/proto/google/rpc/status";

import { Error as CommandError, Reason } from "../gen/viewstamp/api/errors/v1/errors";

/** What to do about a refusal. */
export enum Verdict {
  Final = "tell the caller",
  Retry = "send the same again, a little later",
  Reconnect = "send the same again, to another replica",
  Reopen = "send the same again, over a new stream to the same replica",
  Renew = "log in again, then send the same",
  Ended = "the session is over",
  Lost = "the answer is gone: nobody can say what happened",
}

/** The table of docs/other-languages.md. Reasons that are not listed are final. */
const VERDICTS: Partial<Record<string, Verdict>> = {
  NOT_PRIMARY: Verdict.Reconnect,
  VIEW_CHANGE: Verdict.Retry,
  DOMAIN_RESTARTING: Verdict.Retry,
  NO_QUORUM: Verdict.Retry,
  OVERLOADED: Verdict.Retry,
  QUOTA_EXCEEDED: Verdict.Retry,
  OUTCOME_UNKNOWN: Verdict.Retry,
  REQUEST_GAP: Verdict.Retry,
  STREAM_REPLACED: Verdict.Reopen,
  ACCESS_CHANGED: Verdict.Reopen,
  UNAUTHENTICATED: Verdict.Renew,
  SESSION_EVICTED: Verdict.Ended,
  REQUEST_NUMBER_REUSED: Verdict.Lost,
  REQUEST_TOO_OLD: Verdict.Lost,
};

const DETAILS_KEY = "grpc-status-details-bin";
const ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo";

type Details = Record<string, string>;

/**
 * An error of the cluster: a reason for programs, a message for people, and the names and numbers
 * that the message mentions. The reason is empty if no replica said it: the connection broke.
 */
export class Refusal extends Error {
  readonly verdict: Verdict;

  constructor(readonly reason: string, message: string, readonly details: Details = {}) {
    super(`${reason}: ${message}`);
    // A replica that lags will catch up with what another one has answered.
    const lags = "last_applied" in details;
    this.verdict = lags ? Verdict.Retry : (VERDICTS[reason] ?? Verdict.Final);
  }

  /** How long the cluster asks to wait before the next attempt. */
  get delayMs(): number {
    return Number(this.details["retry_delay_ms"] ?? 0);
  }
}

/** Nobody is there, or the connection broke: another replica may answer. */
export class BrokenConnection extends Refusal {
  override readonly verdict = Verdict.Reconnect;
}

/** Returns why a call failed: the google.rpc.ErrorInfo in its trailing metadata. */
export function refusalOf(error: unknown): Refusal {
  if (error instanceof Refusal) {
    return error;
  }
  const failure = error as ServiceError;
  const [encoded] = failure.metadata?.get(DETAILS_KEY) ?? [];
  if (encoded instanceof Buffer) {
    const told = Status.decode(encoded);
    const any = told.details.find((detail) => detail.typeUrl === ERROR_INFO);
    const info = any && ErrorInfo.decode(any.value);
    if (info?.domain === "viewstamp") {
      return new Refusal(info.reason, told.message, info.metadata);
    }
  }
  const isBroken = failure.code === status.UNAVAILABLE;
  return new (isBroken ? BrokenConnection : Refusal)("", failure.message);
}

/** Returns the refusal that a reply carries among its results. */
export function refusalIn(refused: CommandError): Refusal {
  const details = refused.details.map(({ key, value }) => [key, value] as const);
  const reason = (Reason[refused.reason] ?? "").replace("REASON_", "");
  return new Refusal(reason, refused.message, Object.fromEntries(details));
}
