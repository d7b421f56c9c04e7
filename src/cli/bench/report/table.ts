import { type Content, type Html, html } from './html.js';

export interface Column {
  readonly title: string;
  /** Text is left aligned, figures right. */
  readonly kind?: 'text' | 'figure';
}

/**
 * A table with a caption, whose first column names each row. It scrolls inside its own box where the page is narrow; the box takes the
 * focus, so that a keyboard can scroll it.
 */
export function table(caption: string, columns: readonly Column[], rows: readonly (readonly Content[])[]): Html {
  const head = columns.map(
    ({ title, kind = 'figure' }, index) => html`<th scope="col" class="${index === 0 ? 'text' : kind}">${title}</th>`,
  );
  const body = rows.map((row) => {
    const cells = row.map((cell, index) =>
      index === 0
        ? html`<th scope="row" class="text">${cell}</th>`
        : html`<td class="${columns[index]?.kind ?? 'figure'}">${cell}</td>`,
    );
    return html`<tr>${cells}</tr>\n`;
  });
  return html`<div class="scroll" role="region" tabindex="0" aria-label="${caption}">
<table><caption><span>${caption}</span></caption>
<thead><tr>${head}</tr></thead>
<tbody>
${body}</tbody></table></div>
`;
}

/** Names and values, one pair a line. */
export function facts(pairs: readonly (readonly [string, Content])[]): Html {
  return html`<dl class="facts">${pairs.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>\n`;
}
