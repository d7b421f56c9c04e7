/**
 * Bounds come from callers and, through runs, from peers: a NaN or a negative number here would silently name a wrong page,
 * so every public function of this folder checks its numbers first.
 * @throws RangeError naming the field and the value
 */
export function assertCount(value: number, field: string): void {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new RangeError(`${field} must be a non-negative integer below 2^53, got ${String(value)}`);
  }
}

/** As `assertCount`, and not zero. */
export function assertPositive(value: number, field: string): void {
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new RangeError(`${field} must be a positive integer below 2^53, got ${String(value)}`);
  }
}

/** Half-open interval. */
export function assertInterval(begin: number, end: number, beginField: string, endField: string): void {
  assertCount(begin, beginField);
  assertCount(end, endField);
  if (end < begin) throw new RangeError(`${endField} ${end} is below ${beginField} ${begin}`);
}

/** Blocks that hold at least one of `tokens` tokens. */
export function blocksCovering(tokens: number, tokensPerBlock: number): number {
  return Math.ceil(tokens / tokensPerBlock);
}

/** Blocks that `tokens` tokens fill completely. */
export function blocksFilledBy(tokens: number, tokensPerBlock: number): number {
  return Math.floor(tokens / tokensPerBlock);
}

/** Int32Array wraps, cuts and drops what is no slot: 2^33 + 1 would become slot 1. So a run is one already when it comes here. */
export function assertSlots(slots: unknown, field: string): void {
  if (!(slots instanceof Int32Array)) throw new RangeError(`${field} must be an Int32Array, got ${typeName(slots)}`);
}

/** Of a value that may be anything: short, and never runs its code. */
export function typeName(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  if (Array.isArray(value)) return 'a list';
  return ArrayBuffer.isView(value) ? 'another typed array' : 'an object';
}
