/** Edits (insert, delete, replace) that turn `a` into `b`. */
function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const replace = (previous[column - 1] ?? 0) + (a[row - 1] === b[column - 1] ? 0 : 1);
      current.push(Math.min((previous[column] ?? 0) + 1, (current[column - 1] ?? 0) + 1, replace));
    }
    previous = current;
  }
  return previous[b.length] ?? 0;
}

/** The candidate the user most likely meant, or null when none is close. */
export function nearestName(name: string, candidates: readonly string[]): string | null {
  const begun = candidates.filter((candidate) => name.length > 2 && candidate.startsWith(name.toLowerCase()));
  if (begun.length === 1) return begun[0] ?? null;
  let best: string | null = null;
  let bestDistance = Number.POSITIVE_INFINITY;
  for (const candidate of candidates) {
    const distance = editDistance(name.toLowerCase(), candidate.toLowerCase());
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  const tolerance = Math.max(2, Math.floor(name.length / 2));
  return bestDistance <= tolerance ? best : null;
}
