/* The service: every request goes through here, and everything that can go wrong comes back as a Problem in words. */

import { tabStorage } from "./storage.js";

const TOKEN = "evergrow-token";

/** What went wrong with a request: "kind" says what the page can do about it. */
export class Problem extends Error {
  /**
   * @param {string} words - A sentence for people.
   * @param {"offline"|"token"|"stale"|"busy"|"starting"|"refused"} kind - What can be done: wait, give a token, look
   *   again, try later, teach first, or change the request.
   */
  constructor(words, kind, { status = 0, retryAfter = 0, document: told = null } = {}) {
    super(words);
    Object.assign(this, { kind, status, retryAfter, told });
  }
}

const words = {
  offline: "The service cannot be reached. Your work is kept in this browser.",
  401: "The service needs a token.",
  412: "Someone else changed this model.",
};

/** The token of this tab; it is gone when the tab is closed. */
export const token = {
  get: () => tabStorage.getItem(TOKEN) ?? "",
  set: (value) => (value ? tabStorage.setItem(TOKEN, value) : tabStorage.removeItem(TOKEN)),
};

const listeners = new Set();

/** Call a function with true or false whenever the service becomes reachable or stops being so. */
export function onReach(listener) {
  listeners.add(listener);
}

let reachable = true;
function noteReach(now) {
  if (now === reachable) return;
  reachable = now;
  for (const listener of listeners) listener(now);
}

/** Whether the last request reached the service. */
export const isReachable = () => reachable;

/**
 * Send a request and return the answer.
 * @param {string} path - Below /api/v1.
 * @param {Object} [settings] - method, json (sent as JSON), body, match (an ETag), once (an Idempotency-Key), seen (an
 *   ETag that is answered with null if nothing changed), type and accept (media types), signal.
 */
export async function send(path, { method, json, body, match, once, seen, signal, type, accept } = {}) {
  const headers = new Headers();
  if (token.get()) headers.set("Authorization", `Bearer ${token.get()}`);
  if (match) headers.set("If-Match", match);
  if (once) headers.set("Idempotency-Key", once);
  if (seen) headers.set("If-None-Match", seen);
  if (json !== undefined) headers.set("Content-Type", "application/json");
  if (type) headers.set("Content-Type", type);
  if (accept) headers.set("Accept", accept);
  const content = json === undefined ? body : JSON.stringify(json);
  let response;
  try {
    response = await fetch(`/api/v1${path}`, {
      method: method ?? (content === undefined ? "GET" : "POST"), headers, body: content, signal, cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    noteReach(false);
    throw new Problem(words.offline, "offline");
  }
  noteReach(true);
  if (response.status === 304) return null;
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** Send a request and return the JSON document of the answer with its ETag. */
export async function ask(path, settings) {
  const response = await send(path, settings);
  if (response === null) return null;
  const values = await response.json();
  const etag = response.headers.get("ETag");
  return etag ? { ...values, etag } : values;
}

async function problemOf(response) {
  let told = null;
  try { told = await response.json(); } catch { /* a proxy in between may answer with anything */ }
  const { status } = response;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  const kind = status === 401 ? "token" : status === 412 ? "stale"
    : status === 503 || status === 429 ? "busy"
    : status === 409 && told?.error === "NotFittedError" ? "starting" : "refused";
  const detail = told?.detail ? sentence(told.detail) : `The service answered with ${status}.`;
  return new Problem(words[status] ?? (kind === "busy" ? `The service is busy: ${detail}` : detail), kind, {
    status, retryAfter, document: told,
  });
}

/** Return a message of the service as a sentence. */
export function sentence(text) {
  const trimmed = text.trim();
  const upper = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}

/** Return the part of a path that names a model. */
export const modelPath = (name) => `/models/${encodeURIComponent(name)}`;

/** Wait as long as the service asked for after it was busy, more each time. */
export function pauseAfter(problem, tries) {
  const seconds = Math.min(20, Math.max(problem.retryAfter || 1, 0.5 * 2 ** tries));
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

/** Return an image that this browser cannot read as one that it can. */
export async function previewOf(file) {
  const form = new FormData();
  form.append("image", file, file.name || "pasted");
  return (await send("/preview", { body: form })).blob();
}

/** Save an answer of the service as a file. */
export async function download(path, name) {
  save(await (await send(path)).blob(), name);
}

/** Save a blob as a file. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
