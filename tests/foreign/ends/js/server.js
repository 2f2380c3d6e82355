// Serves all kinds of calls: it gets the files of an authority, a certificate and a key, prints its
// two addresses, the second one with TLS, and serves until its input ends.
"use strict";

const fs = require("fs");
const { setTimeout: pause } = require("timers/promises");
const { once } = require("events");
const grpc = require("@grpc/grpc-js");

const SERVICE = "/test.Echo/";
const BYTES_MAX = 4 << 20;
const OPTIONS = {
  "grpc.max_receive_message_length": BYTES_MAX,
  "grpc.max_send_message_length": BYTES_MAX,
  "grpc.max_concurrent_streams": 100,
  "grpc-node.flow_control_window": 1 << 16,
};
const FALTERED = 3;
const DRAINED = 5;
const DRAIN_GAP_MS = 100;
const SLOW_GAP_MS = 5;
const LOOK_AGAIN_MS = 10;
const SLEEP_MS = 60_000;
const servers = [];
let cancelled = 0;
const asIs = (bytes) => bytes;

function refusal(code, details) {
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from([0, 255]));
  metadata.set("plain", "words");
  return { code, details, metadata };
}

async function write(call, message) {
  if (!call.write(message)) await Promise.race([once(call, "drain"), once(call, "cancelled")]);
}

async function count(call) {
  const [messages, size] = call.request.toString().split(" ").map(Number);
  for (let number = 0; number < messages && !call.cancelled; number++) await write(call, Buffer.alloc(size, number % 256));
  call.end();
}

async function sum(call, answer, gapMs = 0) {
  let messages = 0;
  let size = 0;
  for await (const request of call) {
    messages += 1;
    size += request.length;
    if (gapMs > 0) await pause(gapMs);
  }
  answer(null, Buffer.from(`${messages} ${size}`));
}

function chat(call) {
  // Not `for await`: it would destroy the stream before its last answers have left.
  call.on("data", (message) => {
    if (!call.write(message)) call.pause().once("drain", () => call.resume());
  });
  call.on("end", () => call.end());
}

async function falter(call) {
  for (let number = 0; number < FALTERED; number++) await write(call, call.request);
  call.emit("error", refusal(grpc.status.DATA_LOSS, "after some answers"));
}

function tell(call, answer) {
  const lines = [];
  for (const key of Object.keys(call.metadata.getMap()).filter((each) => each.startsWith("x-")))
    for (const value of call.metadata.get(key)) lines.push(`${key}=${Buffer.isBuffer(value) ? value.toString("base64") : value}`);
  const [initial, trailing] = [new grpc.Metadata(), new grpc.Metadata()];
  initial.set("initial", "first");
  initial.set("initial-bin", Buffer.from([1]));
  trailing.set("trailing", "last");
  call.sendMetadata(initial);
  answer(null, Buffer.from(`${Number.isFinite(Number(call.getDeadline()))} ${lines.sort().join("\n")}`), trailing);
}

function who(call, answer) {
  const { transportSecurityType, sslPeerCertificate } = call.getAuthContext();
  answer(null, Buffer.from(`${transportSecurityType} ${sslPeerCertificate?.subjectaltname}`));
}

async function sleep(call, answer) {
  call.on("cancelled", () => (cancelled += 1));
  await pause(SLEEP_MS, undefined, { ref: false });
  answer(null, Buffer.alloc(0));
}

async function seen(call, answer) {
  while (cancelled < Number(call.request.toString())) await pause(LOOK_AGAIN_MS);
  answer(null, call.request);
}

async function drain(call) {
  await write(call, Buffer.from("before"));
  for (const server of servers) server.tryShutdown(() => {});
  for (let number = 0; number < DRAINED; number++) {
    await pause(DRAIN_GAP_MS);
    await write(call, Buffer.from(String(number)));
  }
  call.end();
}

const UNARY = {
  Echo: (call, answer) => answer(null, call.request),
  Refuse: (call, answer) => answer(refusal(grpc.status.ALREADY_EXISTS, call.request.toString())),
  Break: (_, answer) => answer(new Error("as planned")),
  Tell: tell,
  Who: who,
  Sleep: sleep,
  Seen: seen,
};
const REQUESTS = { Sum: sum, Slow: (call, answer) => sum(call, answer, SLOW_GAP_MS) };
const ANSWERS = { Count: count, Falter: falter, Drain: drain };
const BOTH = {
  Chat: chat,
  Halt: (call) => call.once("data", () => call.emit("error", refusal(grpc.status.OUT_OF_RANGE, "after one request"))),
};

function made() {
  const server = new grpc.Server(OPTIONS);
  for (const [kind, methods] of Object.entries({ unary: UNARY, clientStream: REQUESTS, serverStream: ANSWERS, bidi: BOTH }))
    for (const [name, serve] of Object.entries(methods)) server.register(SERVICE + name, serve, asIs, asIs, kind);
  servers.push(server);
  return server;
}

function bound(credentials) {
  return new Promise((resolve, reject) => {
    made().bindAsync("127.0.0.1:0", credentials, (error, port) => (error ? reject(error) : resolve(`127.0.0.1:${port}`)));
  });
}

async function main(files) {
  const [root, certificate, key] = files.map((file) => fs.readFileSync(file));
  const encrypted = grpc.ServerCredentials.createSsl(root, [{ private_key: key, cert_chain: certificate }], true);
  console.log(await bound(grpc.ServerCredentials.createInsecure()), await bound(encrypted));
  process.stdin.resume().on("end", () => process.exit());
}

main(process.argv.slice(2));
