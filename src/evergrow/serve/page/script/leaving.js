/* Asks for confirmation before the page is closed, if work would be lost. */

const reasons = new Set();

addEventListener("beforeunload", (event) => {
  if ([...reasons].some((isAtRisk) => isAtRisk())) event.preventDefault();
});

/**
 * Ask before the page is closed or reloaded while a function returns true.
 * @param {function(): boolean} isAtRisk - Returns whether work would be lost.
 * @param {AbortSignal} [signal] - Ends the guard.
 * @returns {function()} A function that ends the guard.
 */
export function guardLeaving(isAtRisk, signal = null) {
  const end = () => { reasons.delete(isAtRisk); };
  reasons.add(isAtRisk);
  signal?.addEventListener("abort", end);
  return end;
}
