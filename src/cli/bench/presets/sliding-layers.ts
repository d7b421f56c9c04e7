/** The layers of a model, numbered from 0, that have a window. */
export function slidingLayers(layerCount: number, isSliding: (layer: number) => boolean): readonly number[] {
  return Array.from({ length: layerCount }, (_, layer) => layer).filter(isSliding);
}
