/* Asks before the page is left while work would be lost. */

const reasons = new Set();

addEventListener("beforeunload", (event) => {
  if ([...reasons].some((isAtRisk) => isAtRisk())) event.preventDefault();
});

/**
 * Ask before the page is closed or reloaded as long as a function returns true.
 * @param {function(): boolean} isAtRisk - Whether work would be lost.
 * @param {AbortSignal} [signal] - Ends it.
 * @returns {function()} Ends it, too.
 */
export function guardLeaving(isAtRisk, signal = null) {
  const end = () => { reasons.delete(isAtRisk); };
  reasons.add(isAtRisk);
  signal?.addEventListener("abort", end);
  return end;
}
