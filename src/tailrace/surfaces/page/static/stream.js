// The server's events: one stream for a browser, whatever the number of its tabs. The tab that holds the lock reads it
// and tells the others; when it goes, another one resumes after the last event that was told.

const LOCK = "tailrace-stream";
const QUIET_MS = 25000; // the server says something every ten seconds
const RETRY_MS = 1000;
const RETRY_MOST_MS = 5000;

let last = 0;

// `handlers.event` hears of each event, `good` of every sign of life, `lost` when there is none.
export function follow(after, handlers) {
  last = after;
  const channel = new BroadcastChannel(LOCK);
  channel.onmessage = ({ data }) => take(data, handlers);
  const tell = (message) => {
    channel.postMessage(message);
    take(message, handlers);
  };
  if (navigator.locks) navigator.locks.request(LOCK, () => lead(tell));
  else lead(tell); // the browser has locks for TLS and loopback alone
}

function take(message, handlers) {
  if (message.kind === "lost") return handlers.lost();
  handlers.good();
  if (message.kind !== "event") return;
  last = Math.max(last, message.id);
  handlers.event(message.event);
}

async function lead(tell) {
  let pause = RETRY_MS;
  for (;;) {
    try {
      await read(tell, () => (pause = RETRY_MS));
    } catch {
      // It is told below.
    }
    tell({ kind: "lost" });
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(RETRY_MOST_MS, pause * 2);
  }
}

// One connection, until it breaks.
async function read(tell, alive) {
  const control = new AbortController();
  let watch = setTimeout(() => control.abort(), QUIET_MS);
  try {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": String(last) };
    const answer = await fetch("/v1/events", { headers, signal: control.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    tell({ kind: "good" });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(() => control.abort(), QUIET_MS);
      alive();
      const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = parts.pop();
      parts.forEach((part) => tell(message(part)));
    }
  } finally {
    clearTimeout(watch);
  }
}

// `field: value` in each line; a comment is a sign of life.
function message(part) {
  const fields = Object.fromEntries(part.split("\n").map((line) => line.split(/: ?(.*)/s).slice(0, 2)));
  if (fields.data === undefined) return { kind: "good" };
  const event = { ...JSON.parse(fields.data), type: fields.event };
  return { kind: "event", id: Number(fields.id ?? last), event };
}
