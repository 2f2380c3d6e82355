import { Channel, credentials, Metadata } from "@grpc/grpc-js";
import type { CallOptions, ChannelCredentials, ServiceError } from "@grpc/grpc-js";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { LoginResponse, UsersServiceClient } from "../gen/viewstamp/api/users/v1/users_service";
import { refusalOf, Verdict } from "./refusal";

const PAUSE_FIRST_MS = 10;
const PAUSE_MAX_MS = 1_000;
const DELAY_MAX_MS = 30_000;
// A unary call that has no answer by then counts as failed.
const UNARY_TIMEOUT_MS = 10_000;
// Two replicas that are cut off may name each other as the primary for ever.
const HINTS_IN_A_ROW_MAX = 2;
const CHANNEL_OPTIONS = {
  // A replica whose machine is gone closes no connection: its silence ends it.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
  // We decide when to connect again, so each channel has connections of its own.
  "grpc.use_local_subchannel_pool": 1,
};

type ClientClass<Client> = new (
  address: string, security: ChannelCredentials, options: { channelOverride: Channel },
) => Client;
/** Returns a client of a service over the present connection. */
type Connection = <Client>(client: ClientClass<Client>) => Client;
type Answered<Response> = (error: ServiceError | null, response: Response) => void;
/** Begins a unary call; `how` are the last three arguments of the method. */
type Begin<Response> = (
  to: Connection, ...how: [Metadata, Partial<CallOptions>, Answered<Response>]
) => void;

export interface Settings {
  addresses: string[];
  username: string;
  password: string;
  /** PEM file with the authority of the replicas' certificates; no TLS without it. */
  authority?: string | undefined;
}

/** All replicas, the one to call next, and the access token. */
export class Cluster {
  private readonly security: ChannelCredentials;
  private position = 0; // in the addresses
  private hint = ""; // the primary's address, if a replica has just told it
  private hintsInARow = 0;
  private channel: Channel | undefined;
  private token = "";
  private isRenewed = false; // whether the token was renewed since the last success
  private pauseMs = PAUSE_FIRST_MS;

  constructor(private readonly settings: Settings) {
    const { authority } = settings;
    this.security = authority
      ? credentials.createSsl(readFileSync(authority))
      : credentials.createInsecure();
  }

  /** The address of the replica to call. */
  get address(): string {
    const { addresses } = this.settings;
    return this.hint || addresses[this.position % addresses.length]!;
  }

  /** Returns a connection to the replica to call, and metadata that identify us. */
  async connect(): Promise<[Connection, Metadata]> {
    const { address, security } = this;
    this.channel ??= new Channel(address, security, CHANNEL_OPTIONS);
    const channelOverride = this.channel;
    const to: Connection = (Client) => new Client(address, security, { channelOverride });
    const metadata = new Metadata();
    if (!this.token) {
      const { username, password } = this.settings;
      const answer = await once<LoginResponse>((done) =>
        to(UsersServiceClient).login({ username, password }, metadata, withDeadline(), done));
      this.token = answer.accessToken;
    }
    metadata.set("authorization", `Bearer ${this.token}`);
    return [to, metadata];
  }

  /**
   * Makes a unary call, again and again for as long as a refusal allows that.
   *
   * A connection that breaks hides whether a command took effect. So use it for reads, and for
   * commands that may be repeated. Submission repeats any command.
   */
  async call<Response>(begin: Begin<Response>): Promise<Response> {
    for (;;) {
      try {
        const [to, metadata] = await this.connect();
        const response = await once<Response>((done) => begin(to, metadata, withDeadline(), done));
        this.reached();
        return response;
      } catch (error) {
        await this.prepare(error);
      }
    }
  }

  /** Does what an error asks for before the next attempt. Throws an error that is final. */
  async prepare(error: unknown): Promise<void> {
    const refusal = refusalOf(error);
    switch (refusal.verdict) {
      case Verdict.Retry:
      case Verdict.Reconnect:
        this.moveOn(refusal.details["address"]);
        break;
      case Verdict.Reopen:
        break; // the same replica, after a pause
      case Verdict.Renew:
        if (this.isRenewed) {
          throw refusal;
        }
        [this.token, this.isRenewed] = ["", true];
        break;
      default:
        throw refusal;
    }
    // A little more than was told, so that clients do not return together.
    const pauseMs = this.pauseMs * (0.5 + Math.random() / 2);
    this.pauseMs = Math.min(2 * this.pauseMs, PAUSE_MAX_MS);
    await sleep(Math.min(refusal.delayMs, DELAY_MAX_MS) + pauseMs);
  }

  /** Notes that a replica has served us. */
  reached(): void {
    [this.hintsInARow, this.isRenewed, this.pauseMs] = [0, false, PAUSE_FIRST_MS];
  }

  /** Closes the connection; the next call opens another one. */
  close(): void {
    this.channel?.close();
    this.channel = undefined;
  }

  /** Goes to the replica that is said to be the primary, or to the next one of the list. */
  private moveOn(hint: string | undefined): void {
    this.close();
    if (hint && this.hintsInARow < HINTS_IN_A_ROW_MAX) {
      this.hint = hint;
      this.hintsInARow += 1;
    } else {
      this.position += 1;
      [this.hint, this.hintsInARow] = ["", 0];
    }
  }
}

function withDeadline(): Partial<CallOptions> {
  return { deadline: Date.now() + UNARY_TIMEOUT_MS };
}

function once<Response>(begin: (done: Answered<Response>) => void): Promise<Response> {
  return new Promise((resolve, reject) => {
    begin((error, response) => (error ? reject(error) : resolve(response)));
  });
}
