/** Markup that is known to be well formed and escaped. */
export class Html {
  readonly markup: string;

  constructor(markup: string) {
    this.markup = markup;
  }
}

/** What may stand in a hole of a template: everything but `Html` is text, and is escaped. */
export type Content = Html | string | number | null | readonly Content[];

/**
 * Model, host and file names may hold anything; only what this tag made is taken for markup.
 * Attributes are to be quoted, and elements without content closed as in XML, so that the page is well formed as XML too.
 */
export function html(parts: TemplateStringsArray, ...holes: readonly Content[]): Html {
  let markup = '';
  parts.forEach((part, index) => {
    markup += part + (index < holes.length ? render(holes[index] ?? null) : '');
  });
  return new Html(markup);
}

function render(content: Content): string {
  if (content === null) return '';
  if (content instanceof Html) return content.markup;
  if (typeof content === 'string') return escapeText(content);
  if (typeof content === 'number') return String(content);
  return content.map(render).join('');
}

/** Safe in text and in quoted attributes. Control characters, which no document may hold, become visible. */
export function escapeText(text: string): string {
  return (
    text
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      .replaceAll(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\ufffe\uffff]/g, '\ufffd')
      .replaceAll('&', '&amp;')
      .replaceAll('<', '&lt;')
      .replaceAll('>', '&gt;')
      .replaceAll('"', '&quot;')
      .replaceAll("'", '&#39;')
  );
}
