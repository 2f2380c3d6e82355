import type { ClientDuplexStream } from "@grpc/grpc-js";
import { randomBytes } from "node:crypto";
import { EventEmitter, once } from "node:events";

import { SessionsServiceClient } from "../gen/viewstamp/api/sessions/v1/sessions_service";
import type { RegisterSessionResponse } from "../gen/viewstamp/api/sessions/v1/sessions_service";
import {
  type CommandReply, CommandRequest, OpenStream, type Span, SubmitServiceClient,
} from "../gen/viewstamp/api/submit/v1/submit_service";
import type { SubmitRequest, SubmitResponse } from "../gen/viewstamp/api/submit/v1/submit_service";
import type { Cluster } from "./cluster";
import { tell } from "./lines";
import { BrokenConnection, Refusal, refusalIn } from "./refusal";

const NONCE_BYTES = 16;
// A session may have so many requests without an answer.
const WINDOW_REQUESTS = 8n;

type SubmitStream = ClientDuplexStream<SubmitRequest, SubmitResponse>;

/**
 * Sends commands in numbered requests of one session. Each takes effect once, however often it is
 * sent and whichever replica leads: a number that the cluster knows gets the same reply.
 */
export class Submission {
  private sessionId = 0n;
  private clusterId: Buffer = Buffer.alloc(0);
  private nextNumber = 1n;
  private unanswered: CommandRequest[] = []; // ascending
  private isLast = false; // whether no more commands come
  private stream: SubmitStream | undefined; // while one is open
  private readonly settled = new EventEmitter();

  constructor(
    private readonly cluster: Cluster,
    private readonly answered: (reply: CommandReply) => void,
  ) {}

  /** Sends the commands and hands out the replies, until each command has its reply. */
  async run(commands: AsyncIterable<Span>): Promise<void> {
    await this.register();
    await Promise.all([this.admitAll(commands), this.serveAll()]);
  }

  /** Opens a session. The same nonce in each attempt finds the same session. */
  private async register(): Promise<void> {
    const nonce = randomBytes(NONCE_BYTES);
    const response = await this.cluster.call<RegisterSessionResponse>((to, ...how) =>
      to(SessionsServiceClient).registerSession({ nonce }, ...how));
    [this.sessionId, this.clusterId] = [response.sessionId, response.header!.clusterId];
  }

  /** Gives each command the next number, as soon as there is room for it. */
  private async admitAll(commands: AsyncIterable<Span>): Promise<void> {
    for await (const command of commands) {
      while (this.nextNumber > this.acked + WINDOW_REQUESTS) {
        await once(this.settled, "reply");
      }
      const request = CommandRequest.fromPartial({ number: this.nextNumber, spans: [command] });
      this.nextNumber += 1n;
      this.unanswered.push(request);
      this.send(request);
    }
    this.isLast = true;
    this.endIfDone();
  }

  /** Serves over one stream after another, until all is done. */
  private async serveAll(): Promise<void> {
    while (!this.isDone) {
      try {
        await this.serve();
      } catch (error) {
        await this.cluster.prepare(error);
      }
    }
  }

  private get isDone(): boolean {
    return this.isLast && this.unanswered.length === 0;
  }

  /** The number up to which every reply has come. */
  private get acked(): bigint {
    return (this.unanswered[0]?.number ?? this.nextNumber) - 1n;
  }

  /** Serves over one stream. Throws the reason for which it ended before all was done. */
  private async serve(): Promise<void> {
    const [to, metadata] = await this.cluster.connect();
    const stream = to(SubmitServiceClient).submit(metadata);
    stream.on("error", () => {}); // the loop below throws it
    const open = OpenStream.fromPartial({ sessionId: this.sessionId });
    stream.write({ kind: { $case: "open", value: open } });
    try {
      for await (const response of stream as AsyncIterable<SubmitResponse>) {
        this.take(response, stream);
      }
    } finally {
      this.stream = undefined;
      stream.cancel();
    }
    if (!this.isDone) {
      throw new BrokenConnection("", "the replica ended the stream without a reason");
    }
  }

  private take({ kind }: SubmitResponse, stream: SubmitStream): void {
    if (kind?.$case === "opened") {
      if (!kind.value.clusterId.equals(this.clusterId)) {
        throw new Refusal("", `another cluster answers at ${this.cluster.address}`);
      }
      this.opened(stream);
    } else if (kind?.$case === "command") {
      this.settle(kind.value);
    }
    this.endIfDone();
  }

  /**
   * Sends everything again that has no answer, under the same numbers. Nothing may be sent before
   * the stream is open: until then an older one may still be read.
   */
  private opened(stream: SubmitStream): void {
    this.stream = stream;
    const again = this.unanswered.map(({ number }) => Number(number));
    tell({ opened: this.cluster.address, sent_again: again });
    this.unanswered.forEach((request) => this.send(request));
  }

  /**
   * Hands out the reply to a request. A request that was refused as a whole stays unanswered: the
   * refusal says what to do, and the next stream sends the request again.
   */
  private settle(reply: CommandReply): void {
    if (reply.error) {
      throw refusalIn(reply.error);
    }
    this.cluster.reached();
    const position = this.unanswered.findIndex(({ number }) => number === reply.number);
    if (position >= 0) { // else it is a second copy of a reply that we have
      this.unanswered.splice(position, 1);
      this.answered(reply);
      this.settled.emit("reply");
    }
  }

  /** Sends a request, unless no stream is open: the next one will send it. */
  private send(request: CommandRequest): void {
    request.acked = this.acked;
    this.stream?.write({ kind: { $case: "command", value: request } });
  }

  private endIfDone(): void {
    if (this.isDone) {
      this.stream?.end();
    }
  }
}
