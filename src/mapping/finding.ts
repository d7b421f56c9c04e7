/** One reason why two ranks cannot exchange KV cache. */
export interface Finding {
  readonly field: string;
  readonly a: string;
  readonly b: string;
  readonly verdict: string;
  readonly whichSideToChange: string;
}
