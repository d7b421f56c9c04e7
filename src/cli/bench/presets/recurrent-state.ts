/** What the recurrent layers of a hybrid model keep of one request (Mamba 2), in the model's dtype. */
export interface RecurrentState {
  readonly layers: readonly number[];
  /** Columns kept of each channel: `conv_kernel` less one. */
  readonly convWidth: number;
  /**
   * Channels of the convolution in order. `units` are what tensor parallelism shares out: heads of x (`mamba_num_heads`), groups of B and
   * of C (`n_groups`); each has `channelsPerUnit` channels.
   */
  readonly convSections: readonly {
    readonly name: 'x' | 'B' | 'C';
    readonly units: number;
    readonly channelsPerUnit: number;
  }[];
  /** `mamba_num_heads`. */
  readonly ssmHeads: number;
  /** `mamba_head_dim` x `ssm_state_size`. */
  readonly ssmHeadElements: number;
}

/** State elements of one request and one layer. */
export function stateElements({ convWidth, convSections, ssmHeads, ssmHeadElements }: RecurrentState): number {
  const channels = convSections.reduce((total, { units, channelsPerUnit }) => total + units * channelsPerUnit, 0);
  return channels * convWidth + ssmHeads * ssmHeadElements;
}
