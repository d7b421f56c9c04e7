/**
 * The known name that an unknown one most likely meant, or null when none is close. Case and underscores do not count: they are the
 * spelling, not the name.
 */
export function nearestKey(name: string, known: readonly string[]): string | null {
  const wanted = bare(name);
  let best: string | null = null;
  let bestDistance = Math.floor(wanted.length / 2) + 1;
  for (const candidate of known) {
    const distance = editDistance(wanted, bare(candidate), bestDistance);
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best;
}

function bare(name: string): string {
  return name.toLowerCase().replaceAll('_', '').slice(0, 64);
}

/** Insertions, deletions and replacements from `a` to `b`; `limit` when it is that many or more. */
function editDistance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) >= limit) return limit;
  let row = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (const [index, letter] of [...a].entries()) {
    const next = [index + 1];
    for (let column = 0; column < b.length; column++) {
      const replaced = (row[column] as number) + (letter === b[column] ? 0 : 1);
      next.push(Math.min(replaced, (row[column + 1] as number) + 1, (next[column] as number) + 1));
    }
    row = next;
  }
  return Math.min(row[b.length] as number, limit);
}
