// Holds conversations with a server: a table on standard input, outcomes on standard output, a JSON
// document on each line.
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const readline = require("readline");
const grpc = require("@grpc/grpc-js");

const SERVICE = "/test.Echo/";
const SERVER_NAME = "server.test";
const PATIENCE_MS = 20_000;
const CANCEL_DELAY_MS = 100;
const BYTES_MAX = 4 << 20;
const TOLD = ["initial", "initial-bin", "trailing", "plain", "grpc-status-details-bin"];
const asIs = (bytes) => bytes;

function messageOf(talk) {
  if (!talk.size) return Buffer.from(talk.text ?? "");
  return Buffer.from(Uint8Array.from({ length: talk.size }, (_, at) => at % 256));
}

function metadataOf(talk) {
  const made = new grpc.Metadata();
  for (const [key, value] of Object.entries(talk.metadata ?? {})) {
    const repeat = /^REPEAT (\d+)$/.exec(value);
    if (key.endsWith("-bin")) made.set(key, Buffer.from(value, "base64"));
    else made.set(key, repeat ? "v".repeat(Number(repeat[1])) : value);
  }
  return made;
}

function told(metadata) {
  const kept = {};
  for (const key of TOLD)
    for (const value of metadata.get(key)) kept[key] = Buffer.isBuffer(value) ? value.toString("base64") : value;
  return kept;
}

function opened(client, talk) {
  const options = { deadline: Date.now() + (talk.deadline_ms ?? PATIENCE_MS) };
  const path = SERVICE + talk.path;
  const metadata = metadataOf(talk);
  if (talk.kind === "unary" || talk.kind === "client") {
    // The answer comes by a callback, the status by an event.
    let answered;
    const callback = (_, answer) => answer !== undefined && answered(answer);
    const call =
      talk.kind === "unary"
        ? client.makeUnaryRequest(path, asIs, asIs, messageOf(talk), metadata, options, callback)
        : client.makeClientStreamRequest(path, asIs, asIs, metadata, options, callback);
    return { call, onMessage: (take) => (answered = take) };
  }
  const call =
    talk.kind === "server"
      ? client.makeServerStreamRequest(path, asIs, asIs, messageOf(talk), metadata, options)
      : client.makeBidiStreamRequest(path, asIs, asIs, metadata, options);
  call.on("error", () => {}); // the status tells of it
  return { call, onMessage: (take) => call.on("data", take) };
}

function send(call, talk) {
  const message = messageOf(talk);
  let left = talk.count;
  const more = () => {
    while (left > 0) {
      left -= 1;
      if (!call.write(message) && left > 0) return call.once("drain", more);
    }
    call.end();
  };
  more();
}

function hold(client, talk) {
  return new Promise((resolve) => {
    const digest = crypto.createHash("sha256");
    const outcome = { code: 0, details: "", messages: 0, digest: "", initial: {}, trailing: {} };
    const { call, onMessage } = opened(client, talk);
    const turn = () => (outcome.messages < talk.count ? call.write(messageOf(talk)) : call.end());
    onMessage((message) => {
      // A stream may give what it has in its buffer after it was cancelled.
      if (talk.cancel_after && outcome.messages >= talk.cancel_after) return;
      const size = Buffer.alloc(4);
      size.writeUInt32BE(message.length);
      digest.update(size).update(message);
      outcome.messages += 1;
      if (talk.turns) turn();
      if (outcome.messages === talk.cancel_after) call.cancel();
    });
    call.on("metadata", (metadata) => (outcome.initial = told(metadata)));
    call.on("status", (status) => {
      // After this event the callback of an answer is still to come.
      setImmediate(() => {
        outcome.code = status.code;
        outcome.details = status.details === "OK" && status.code === 0 ? "" : status.details;
        outcome.trailing = told(status.metadata);
        outcome.digest = digest.digest("hex");
        resolve(outcome);
      });
    });
    if (talk.turns) turn();
    else if (talk.kind === "client" || talk.kind === "bidi") send(call, talk);
    if (talk.cancel_after === 0) setTimeout(() => call.cancel(), CANCEL_DELAY_MS);
  });
}

function secured([authority, certificate, key]) {
  if (authority === undefined) return grpc.credentials.createInsecure();
  return grpc.credentials.createSsl(...[authority, key, certificate].map((path) => fs.readFileSync(path)));
}

function clientOf(address, files, options = {}) {
  return new grpc.Client(address, secured(files), {
    "grpc.max_receive_message_length": BYTES_MAX,
    "grpc.ssl_target_name_override": SERVER_NAME,
    "grpc.default_authority": SERVER_NAME,
    ...options,
  });
}

async function main([address, ...files]) {
  const client = clientOf(address, files);
  const compressing = clientOf(address, files, { "grpc.default_compression_algorithm": 2 });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const talk = JSON.parse(line);
    const calls = Array.from({ length: talk.parallel ?? 1 }, () => hold(talk.gzip ? compressing : client, talk));
    process.stdout.write(JSON.stringify({ name: talk.name, outcomes: await Promise.all(calls) }) + "\n");
  }
  client.close();
  compressing.close();
}

main(process.argv.slice(2));
