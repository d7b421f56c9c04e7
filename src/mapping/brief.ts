const MAX_LENGTH = 200;
/** Entries of a list that are shown. */
const MAX_ENTRIES = 40;

/**
 * A value as a finding shows it: what a peer sent must not make a control frame grow. Never throws, runs no code of the value that could
 * take long, and looks at the first entries of a list only.
 */
export function brief(value: unknown): string {
  try {
    const text = Array.isArray(value) ? listed(value) : plain(value);
    return text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)}...` : text;
  } catch {
    // A revoked proxy does not even say whether it is a list.
    return 'unreadable';
  }
}

/** What a thrown value says, `brief`; anything can be thrown, and reading it can throw again. */
export function briefReason(thrown: unknown): string {
  try {
    const text: unknown = thrown instanceof Error ? thrown.message : null;
    return typeof text === 'string' ? brief(text) : 'unknown error';
  } catch {
    return 'unknown error';
  }
}

function listed(list: readonly unknown[]): string {
  const shown: string[] = [];
  for (let i = 0; i < Math.min(list.length, MAX_ENTRIES); i++) shown.push(plain(list[i]));
  if (list.length > MAX_ENTRIES) shown.push(`... (${list.length} entries)`);
  return shown.join(',');
}

function plain(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  return (typeof value === 'object' && value !== null) || typeof value === 'function'
    ? `a value of type ${typeof value}`
    : String(value);
}
