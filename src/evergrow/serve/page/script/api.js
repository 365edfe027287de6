/* Requests to the service. Failures are raised as a Problem with a message for people. */

import { tabStorage } from "./storage.js";

const TOKEN = "evergrow-token";

/** A request that failed. Its "kind" says what the page or the user can do. */
export class Problem extends Error {
  /**
   * @param {string} words - A sentence for people.
   * @param {"offline"|"token"|"stale"|"busy"|"starting"|"refused"} kind - What to do: wait for the service, enter a
   *   token, reload the model, try later, teach a class first, or change the request.
   * @param {Object} [settings] - status: HTTP status; retryAfter: seconds to wait.
   */
  constructor(words, kind, { status = 0, retryAfter = 0 } = {}) {
    super(words);
    Object.assign(this, { kind, status, retryAfter });
  }
}

const words = {
  offline: "The service cannot be reached. Your work is kept in this browser.",
  401: "The service needs a token.",
  412: "Someone else changed this model.",
};

/** The access token. It is stored until this tab is closed. */
export const token = {
  get: () => tabStorage.getItem(TOKEN) ?? "",
  set: (value) => (value ? tabStorage.setItem(TOKEN, value) : tabStorage.removeItem(TOKEN)),
};

const listeners = new Set();

/** Call a function with true when the service becomes reachable, and with false when it becomes unreachable. */
export function onReach(listener) {
  listeners.add(listener);
}

let reachable = true;

/** Remember whether the last request reached the service, and tell the listeners if that changed. */
function noteReach(now) {
  if (now === reachable) return;
  reachable = now;
  for (const listener of listeners) listener(now);
}

/** Whether the last request reached the service. */
export const isReachable = () => reachable;

/**
 * Send a request and return the response.
 * @param {string} path - Path below /api/v1.
 * @param {Object} [settings] - method; json: value of a JSON body; body: any other body; match: ETag for If-Match;
 *   once: Idempotency-Key; seen: ETag for If-None-Match; type, accept: media types; signal: AbortSignal.
 * @returns {Promise<Response|null>} The response; null if the model still has the ETag "seen".
 * @throws {Problem} If the service is not reachable or refuses the request.
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

/** Send a request and return the JSON of the response, with its ETag as "etag". Null as in "send". */
export async function ask(path, settings) {
  const response = await send(path, settings);
  if (response === null) return null;
  const values = await response.json();
  const etag = response.headers.get("ETag");
  return etag ? { ...values, etag } : values;
}

const KINDS = { 401: "token", 412: "stale", 429: "busy", 503: "busy" };

/** Return the Problem for a response with an error status. */
async function problemOf(response) {
  let report = null;
  try { report = await response.json(); } catch { /* a proxy may respond with anything */ }
  const { status } = response;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  const isStarting = status === 409 && report?.error === "NotFittedError"; // the model has no class yet
  const kind = isStarting ? "starting" : KINDS[status] ?? "refused";
  const detail = report?.detail ? sentence(report.detail) : `The service answered with ${status}.`;
  const message = words[status] ?? (kind === "busy" ? `The service is busy: ${detail}` : detail);
  return new Problem(message, kind, { status, retryAfter });
}

/** Return a message with a capital letter and a full stop. */
export function sentence(text) {
  const trimmed = text.trim();
  const upper = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}

/** Return the part of a path that names a model. */
export const modelPath = (name) => `/models/${encodeURIComponent(name)}`;

/** Wait before a request is repeated: as long as the service asked for, and longer with each try. */
export function pauseAfter(problem, tries) {
  const seconds = Math.min(20, Math.max(problem.retryAfter || 1, 0.5 * 2 ** tries));
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

/** Let the service convert an image file that browsers cannot read. Return a JPEG as a blob. */
export async function previewOf(file) {
  const form = new FormData();
  form.append("image", file, file.name || "pasted");
  return (await send("/preview", { body: form })).blob();
}

/** Download a file from the service. */
export async function download(path, name) {
  save(await (await send(path)).blob(), name);
}

/** Save a blob as a file of this name. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
