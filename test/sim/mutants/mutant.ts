/**
 * One seeded fault of the code under test: a passage of one source file and what replaces it. Applied to the text of the file when the
 * simulator is compiled, so that no build of the package ever holds one.
 */
export interface Mutant {
  readonly name: string;
  readonly file: string;
  /** Stands there exactly once; anything else is an error, so that a mutant cannot silently stop to exist. */
  readonly find: string;
  readonly replace: string;
}
