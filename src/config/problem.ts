/** One reason to reject a configuration. */
export interface ConfigProblem {
  /** Path of the setting to change, in camelCase. */
  readonly setting: string;
  /** Starts with the setting and says what to change. */
  readonly message: string;
}

/** Something the operator should know; the configuration is used all the same. */
export interface ConfigWarning {
  readonly setting: string;
  readonly message: string;
}
