/** Points of the empirical distribution that a chart draws at most: more cannot be told apart on paper. */
const MOST_POINTS = 400;

/**
 * The empirical distribution as a staircase: at each value the share of the samples that are at most as large, in percent.
 * Of many samples evenly spaced ranks are kept, the first and the last always.
 */
export function ecdf(values: readonly number[]): readonly (readonly [number, number])[] {
  const sorted = [...values].sort((a, b) => a - b);
  const count = sorted.length;
  const kept = Math.min(count, MOST_POINTS);
  const points: [number, number][] = [];
  let share = 0;
  for (let index = 0; index < kept; index++) {
    const rank = kept === 1 ? count - 1 : Math.round((index * (count - 1)) / (kept - 1));
    const value = sorted[rank] as number;
    points.push([value, share]);
    share = (100 * (rank + 1)) / count;
    points.push([value, share]);
  }
  return points;
}
