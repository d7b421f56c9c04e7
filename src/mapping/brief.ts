const MAX_LENGTH = 200;

/** A value as a finding shows it: what a peer sent must not make a control frame grow. */
export function brief(value: unknown): string {
  const text = String(value);
  return text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)}...` : text;
}
