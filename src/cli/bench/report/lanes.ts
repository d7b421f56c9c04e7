/** Something with a begin and an end on a time axis. */
export interface Span {
  readonly begin: number;
  readonly end: number;
}

/** Puts spans into as few lanes as their order allows, so that none overlaps another in its lane. Each takes the first free lane. */
export function intoLanes<T extends Span>(spans: readonly T[]): readonly (readonly T[])[] {
  const lanes: T[][] = [];
  for (const span of [...spans].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    const free = lanes.find((lane) => (lane.at(-1)?.end ?? 0) <= span.begin);
    if (free === undefined) lanes.push([span]);
    else free.push(span);
  }
  return lanes;
}
