// What a page does in the browser: it looks again every two seconds and at every event, and says when it cannot.

import { showAges } from "./ages.js";
import { confirmations, shortcuts } from "./actions.js";
import { morph } from "./morph.js";
import * as series from "./series.js";
import { follow } from "./stream.js";

const EVERY_MS = 2000;
const SOON_MS = 150;
const PATIENCE_MS = 5000;

const state = { goodAt: Date.now(), stream: true, looks: true, busy: false, again: null };

function main() {
  showAges();
  setInterval(showAges, 1000);
  shortcuts();
  confirmations();
  if (!document.body.hasAttribute("data-live")) return;
  series.restore();
  series.draw(document);
  addEventListener("pagehide", series.keep);
  document.addEventListener("visibilitychange", () => document.hidden || look());
  follow(Number(document.body.dataset.after), { event: heard, good: () => told(true), lost: () => told(false) });
  showLink();
  plan(EVERY_MS);
}

function plan(ms) {
  clearTimeout(state.again);
  state.again = setTimeout(look, ms);
}

// One look at the page as it is now. Hidden tabs do not look.
async function look() {
  if (document.hidden || state.busy) return plan(EVERY_MS);
  state.busy = true;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(PATIENCE_MS) });
    if (new URL(answer.url).pathname === "/login") return location.reload();
    if (answer.status >= 500 && answer.status !== 503) throw new Error(`status ${answer.status}`);
    show(new DOMParser().parseFromString(await answer.text(), "text/html"));
    state.looks = true;
    state.goodAt = Date.now();
  } catch {
    state.looks = false;
  } finally {
    state.busy = false;
  }
  showLink();
  plan(Math.max(EVERY_MS, 10 * (performance.now() - began))); // a server that is slow is not asked more
}

function show(fresh) {
  document.title = fresh.title;
  morph(document.getElementById("main"), fresh.getElementById("main"));
  series.draw(document);
  showAges();
}

function heard(event) {
  if (event.type === "state" && !event.part) say(`${event.name} is ${event.after}${event.code ? `: ${event.cause}` : ""}`);
  plan(SOON_MS);
}

function told(good) {
  if (good) state.goodAt = Date.now();
  const back = good && !state.stream;
  state.stream = good;
  showLink();
  if (back) plan(0);
}

function say(text) {
  document.getElementById("told").textContent = text;
}

function showLink() {
  const stale = !(state.stream && state.looks);
  const link = document.getElementById("link");
  const banner = document.getElementById("stale");
  const since = new Date(state.goodAt).toLocaleTimeString();
  link.hidden = false;
  link.classList.toggle("lost", stale);
  document.getElementById("link-text").textContent = stale ? `stale since ${since}` : "live";
  document.body.classList.toggle("is-stale", stale);
  if (banner.hidden !== stale) return;
  banner.hidden = !stale;
  banner.textContent = stale ? `Stale since ${since}: the server does not answer. What you see is what was true then; it is tried again and again.` : "";
}

main();
