/** What a server is for. */
export type ServerRole = 'context' | 'generation' | 'both';

/** What the configuration is checked against. A fact that is not known where the configuration is read is left out, and not checked. */
export interface ConfigFacts {
  /** Whether NIXL loaded. Left out counts as no: DEFAULT never promises what nobody looked for. */
  readonly nixlAvailable?: boolean;
  /** Why NIXL did not load. */
  readonly nixlReason?: string;
  /** Whether the CUDA driver loaded. No setting of this build needs it. */
  readonly cudaAvailable?: boolean;
  readonly scheduleStyle?: 'context_first' | 'generation_first';
  /** What the scheduler really does, which may differ from what it was asked to do. */
  readonly chunkedPrefillEffective?: boolean;
  /** Largest beam width the server accepts. */
  readonly beamWidth?: number;
  /** What the server is started as; must agree with the setting `role` when both are given. */
  readonly role?: ServerRole;
}
