// Requests to the console's own address. An answer that is a refusal becomes a Refused.

const TIMEOUT_MS = 20_000;

export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.reason = error.reason;
  }

  get isOver() {
    return this.status === 401;
  }
}

async function answered(path, options) {
  let response;
  try {
    response = await fetch(path, {
      credentials: "same-origin",
      signal: AbortSignal.timeout(TIMEOUT_MS),
      ...options,
    });
  } catch {
    throw new Refused(0, { reason: "NO_ANSWER", message: "the replica does not answer" });
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  throw new Refused(response.status, body.error ?? {
    reason: "HTTP", message: `the answer has status ${response.status}`,
  });
}

export function read(path, query = {}) {
  const asked = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const text = new URLSearchParams(asked).toString();
  return answered(text ? `${path}?${text}` : path, {});
}

export function send(path, value) {
  return answered(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(value),
  });
}
