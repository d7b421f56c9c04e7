/**
 * Why a bar of the GPU path is not met, and what was tried: one sentence or two by the bar's `name`, or by `name: what` where one
 * measurement has a cause of its own. Shown by scripts/gpu-bars.mjs beside a bar that a result does not meet, and nowhere else.
 */
export const CAUSES = {
  'share-32k-32':
    'Multiprocessors get less out of the link than the copy engines, also without an agent (`pair.json`, and 832 shapes of kernels in `kernel-shapes.txt`); slices of 2,048 pages add the hand-over from one launch to the next. Tiles handed out while a kernel runs instead of dealt out beforehand, and two streams in turns, came out of the search.',
  'share-32k-16': 'The same as with 32 blocks.',
  'share-split':
    'Slices of 2,048 pieces are 8 MiB, 25 µs of the link, and the progress thread takes as long for one (slots, two events, launch); in slices as large as a chunk’s that does not count.',
  'bounce-share':
    'Gather, write and scatter of the first and the last chunk stand alone, and each chunk is waited for by a thread.',
  'bounce-empty':
    'After a pause both progress threads are asleep, and on cores that were asleep each launch, creation and post takes several times as long. Threads stay awake for 200 µs after a slice; longer would cost a core.',
  'slow-down: rdma':
    'UCX makes a copy and an event of each descriptor, which costs the forward by their number and not by their bytes. Other batches, fewer in flight and rarer polling changed nothing. Where p2p reaches the peer it is taken instead.',
};
