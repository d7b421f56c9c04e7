/** From values to percent of a figure's width or height. */
export interface Scale {
  readonly min: number;
  readonly max: number;
  at(value: number): number;
  /** Round values, a few of them. */
  readonly ticks: readonly number[];
}

/** From 0 to `max`; a figure without extent is given one. */
export function linearScale(max: number, wantedTicks: number): Scale {
  const end = max > 0 && Number.isFinite(max) ? max : 1;
  const step = roundStep(end / wantedTicks);
  const ticks: number[] = [];
  for (let index = 0; index * step <= end * (1 + 1e-9); index++) ticks.push(index * step);
  return { min: 0, max: end, ticks, at: (value) => (100 * value) / end };
}

/** The next of 1, 2, 5 times a power of ten. */
function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10;
  return step * power;
}

/** A tick's text without the noise of binary fractions. */
export function tickText(value: number): string {
  return String(Number(value.toPrecision(6)));
}

/** Percent with the digits that a screen can show. */
export function percent(value: number): string {
  return `${Number(value.toFixed(3))}%`;
}

/** Coordinates inside a figure: thousandths of its width or height. */
export function coordinate(percentOfSide: number): string {
  return String(Number((10 * percentOfSide).toFixed(2)));
}
