/** An element of a page that is well formed as XML. */
export interface Element {
  readonly name: string;
  readonly attributes: ReadonlyMap<string, string>;
  readonly children: (Element | string)[];
}

const NAME = /^[A-Za-z][A-Za-z0-9-]*/;
const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'" };

/**
 * Reads a page and refuses what a lenient browser would repair: elements that are not closed in order, attributes without quotes or given
 * twice, entities nobody wrote, text outside the root.
 */
export function parseMarkup(page: string): Element {
  let at = 0;
  const fail = (why: string): never => {
    throw new Error(`${why} at ${at}: ${JSON.stringify(page.slice(Math.max(0, at - 60), at + 60))}`);
  };
  const decode = (text: string): string =>
    text.replaceAll(/&([^;]{0,8};?)/g, (whole, body: string) => {
      const known = body.endsWith(';') ? ENTITIES[body.slice(0, -1)] : undefined;
      return known ?? fail(`entity ${whole}`);
    });
  const root: Element = { name: '', attributes: new Map(), children: [] };
  const open: Element[] = [root];
  if (!page.startsWith('<!DOCTYPE html>')) fail('no doctype');
  at = '<!DOCTYPE html>'.length;
  while (at < page.length) {
    const current = open.at(-1) as Element;
    if (page[at] !== '<') {
      const end = page.indexOf('<', at);
      const text = page.slice(at, end === -1 ? page.length : end);
      if (text.includes('>')) fail('a bare > in text');
      if (current === root && text.trim() !== '') fail('text outside the root');
      current.children.push(decode(text));
      at += text.length;
      continue;
    }
    if (page.startsWith('</', at)) {
      const close = /^<\/([A-Za-z][A-Za-z0-9-]*)>/.exec(page.slice(at, at + 80)) ?? fail('a broken end tag');
      if (close[1] !== current.name) fail(`</${close[1]}> ends <${current.name}>`);
      open.pop();
      at += close[0].length;
      continue;
    }
    at++;
    const name = NAME.exec(page.slice(at, at + 40))?.[0] ?? fail('a broken tag');
    at += name.length;
    const attributes = new Map<string, string>();
    for (;;) {
      const found = /^\s+([A-Za-z][A-Za-z0-9-]*)="([^"<]*)"/.exec(page.slice(at, at + 100_000));
      if (found === null) break;
      const [whole, key = '', text = ''] = found;
      if (attributes.has(key)) fail(`attribute ${key} twice`);
      attributes.set(key, decode(text));
      at += whole.length;
    }
    const element: Element = { name, attributes, children: [] };
    current.children.push(element);
    if (page.startsWith('/>', at)) at += 2;
    else if (page[at] === '>') {
      at++;
      open.push(element);
    } else fail(`a broken tag <${name}`);
  }
  if (open.length !== 1) fail(`<${open.at(-1)?.name}> is not closed`);
  const elements = root.children.filter((child) => typeof child !== 'string');
  if (elements.length !== 1) fail(`${elements.length} roots`);
  return elements[0] as Element;
}

export function* elementsOf(element: Element): Iterable<Element> {
  yield element;
  for (const child of element.children) if (typeof child !== 'string') yield* elementsOf(child);
}

export function textOf(element: Element): string {
  return element.children.map((child) => (typeof child === 'string' ? child : textOf(child))).join('');
}

/** Cells of the table with that caption, its head included. */
export function tableCells(page: Element, caption: string): readonly (readonly string[])[] {
  const captions: string[] = [];
  for (const table of elementsOf(page)) {
    if (table.name !== 'table') continue;
    const own = [...elementsOf(table)].find(({ name }) => name === 'caption');
    captions.push(own === undefined ? '' : textOf(own));
    if (captions.at(-1) !== caption) continue;
    return [...elementsOf(table)]
      .filter(({ name }) => name === 'tr')
      .map((row) => row.children.filter((child) => typeof child !== 'string').map((cell) => textOf(cell as Element)));
  }
  throw new Error(`no table '${caption}' among ${JSON.stringify(captions)}`);
}
