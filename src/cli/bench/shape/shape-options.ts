import * as read from '../../option-types.js';
import { value } from '../../options.js';

/** Ranks of one side; all of them live in one process. */
export const MAX_RANKS_PER_SIDE = 64;

const size = read.count(1, MAX_RANKS_PER_SIDE);

/** `2`: so many stages; `41,39`: the layers of each. */
const stages: read.ValueReader<readonly number[]> = (option, text) =>
  text.split(',').map((part) => read.count(1)(option, part.trim()));
const layout = read.choice('block layout', ['hnd', 'nhd']);

/** How each side splits the model. */
export const SHAPE_OPTIONS = {
  contextTp: value('N', 'tensor parallel ranks of the context server', size, '1'),
  contextPp: value('N|LIST', 'its pipeline stages: how many, or the layers of each (40,40)', stages, '1'),
  contextCp: value('N', 'its context parallel ranks, which share out the blocks of a prompt', size, '1'),
  generationTp: value('N', 'tensor parallel ranks of the generation server', size, '1'),
  generationPp: value('N|LIST', 'its pipeline stages', stages, '1'),
  generationCp: value('N', 'its context parallel ranks', size, '1'),
  generationBlockSize: value(
    'SIZE',
    "tokens per block of the generation server; default: the context server's",
    read.size,
  ),
  layout: value('NAME', 'order inside a block: hnd (head, token) or nhd (token, head)', layout, 'hnd'),
  generationLayout: value('NAME', "the generation server's; default: the context server's", layout),
} as const;
