import ts from 'typescript';

/**
 * Private members as ordinary ones, `#name` of `Class` as `name$Class`.
 * Why: most of what a series runs is code that is not optimized yet, and there a private name costs a keyed access, a private method a brand check
 *   beside it, and a field a call of its own. The simulator runs the same statements in the same order; that nothing outside a class reads what is
 *   private in it is the compiler's to say, and the tests of the sources run them as they ship.
 * The class is part of the name, so that a subclass may have a private member of the same name.
 */
export function plainFields(context) {
  const { factory } = context;
  /** Classes around the node, innermost last. */
  const around = [];
  const plain = (name) => {
    const owner = around.findLast(({ members }) => members.has(name.text));
    if (owner === undefined) throw new Error(`${name.text} is no private member of a class around it`);
    return factory.createIdentifier(`${name.text.slice(1)}$${owner.className}`);
  };
  const visit = (node) => {
    if (ts.isPrivateIdentifier(node)) return plain(node);
    if (ts.isBinaryExpression(node) && ts.isPrivateIdentifier(node.left))
      throw new Error(`'${node.left.text} in' asks for a brand, which plain members have none of`);
    if (!ts.isClassLike(node)) return ts.visitEachChild(node, visit, context);
    around.push({ className: node.name?.text ?? 'Unnamed', members: privateNames(node) });
    const visited = ts.visitEachChild(node, visit, context);
    around.pop();
    return visited;
  };
  return (file) => ts.visitNode(file, visit);
}

function privateNames({ members }) {
  return new Set(members.filter(({ name }) => name && ts.isPrivateIdentifier(name)).map(({ name }) => name.text));
}
