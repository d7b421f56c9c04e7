import type { ErrorCode, YAMLError } from 'yaml';

/** What each kind of fault is called here, and what to do about it. */
const TEXTS: Readonly<Partial<Record<ErrorCode, string>>> = {
  ALIAS_PROPS: 'an alias (*name) takes no tag and no anchor of its own; remove it',
  BAD_ALIAS: 'an alias (*name) needs its anchor (&name) above it',
  BAD_COLLECTION_TYPE: 'a tag (!name) does not fit its value; remove it',
  BAD_DIRECTIVE: 'a line that begins with % is not understood; remove it',
  BAD_DQ_ESCAPE: 'a backslash in double quotes begins nothing known; write two of them, or use single quotes',
  BAD_INDENT: 'the indentation does not fit the lines above; keys of one map begin in the same column',
  BAD_PROP_ORDER: 'an anchor or a tag stands in the wrong place; write it between the key and its value',
  BAD_SCALAR_START: 'a value cannot begin with this character; put the value in quotes',
  BLOCK_AS_IMPLICIT_KEY: 'one line has two keys; write the second on a line of its own, or put the value in quotes',
  BLOCK_IN_FLOW: 'a list with - or a key on its own line cannot stand inside { } or [ ]',
  KEY_OVER_1024_CHARS: 'a key is longer than 1024 characters',
  MISSING_CHAR: 'something is missing here, such as a : behind a key or a , between entries',
  MULTILINE_IMPLICIT_KEY: 'this is no `key: value`; a : is missing, or the indentation is wrong',
  MULTIPLE_ANCHORS: 'a value has several anchors (&name); keep one',
  MULTIPLE_DOCS: 'the file has more than one document; remove the line --- and what is behind it',
  MULTIPLE_TAGS: 'a value has several tags (!name); keep one',
  NON_STRING_KEY: 'a key must be plain text',
  RESOURCE_EXHAUSTION: 'lists and maps are nested too deeply',
  TAB_AS_INDENT: 'the line is indented with a tab; use spaces',
  TAG_RESOLVE_FAILED: 'a tag (!name) is not known, or does not fit its value; remove it',
  UNEXPECTED_TOKEN: 'something stands where nothing may follow; check quotes, commas and indentation',
};

const UNCLOSED_QUOTE = 'a quote is opened and not closed';

/** A fault of the YAML in our words: the library's are about its own inner parts. */
export function faultText({ code, message }: Pick<YAMLError, 'code' | 'message'>): string {
  if (/^Missing closing ['"]/.test(message)) return UNCLOSED_QUOTE;
  const end = /end with a ([}\]])/.exec(message)?.[1];
  if (end !== undefined)
    return `a ${end === '}' ? '{' : '['} is not closed; add ${end}, and indent what is between them`;
  return TEXTS[code] ?? 'this cannot be read as YAML';
}
