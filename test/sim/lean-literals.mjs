import ts from 'typescript';

/**
 * The same objects and functions, made so that they end with their run.
 * Why: V8 makes a new hidden class for every object whose literal begins with a spread, once something is added to it: that takes a microsecond, no
 *   access to such objects is ever fast, and the classes last until all of the heap is looked at. A function that is assigned to a property is made
 *   among what is old, on the guess that it is a method, and holds what it sees, a whole cluster, just as long. Of what a run leaves behind, nearly
 *   all was left so.
 */
export function leanLiterals(context) {
  const { factory } = context;
  /** `{ ...undefined, ...a, b }`: what V8 makes a class for each time is only what it copies first. */
  const classed = (literal) => {
    const nothing = factory.createSpreadAssignment(factory.createVoidZero());
    return factory.updateObjectLiteralExpression(literal, [nothing, ...literal.properties]);
  };
  /** What V8 does not see as a function that is assigned: `(0, f)`. */
  const young = (value) =>
    factory.createParenthesizedExpression(factory.createComma(factory.createNumericLiteral(0), value));
  const visit = (node) => {
    const visited = ts.visitEachChild(node, visit, context);
    if (ts.isObjectLiteralExpression(visited) && visited.properties[0]?.kind === ts.SyntaxKind.SpreadAssignment)
      return classed(visited);
    if (isAssignment(visited) && isFunction(visited.right))
      return factory.updateBinaryExpression(visited, visited.left, visited.operatorToken, young(visited.right));
    if (ts.isPropertyDeclaration(visited) && isFunction(visited.initializer)) {
      const { modifiers, name, exclamationToken, type, initializer } = visited;
      return factory.updatePropertyDeclaration(visited, modifiers, name, exclamationToken, type, young(initializer));
    }
    return visited;
  };
  return (file) => ts.visitNode(file, visit);
}

function isAssignment(node) {
  return (
    ts.isBinaryExpression(node) &&
    node.operatorToken.kind === ts.SyntaxKind.EqualsToken &&
    (ts.isPropertyAccessExpression(node.left) || ts.isElementAccessExpression(node.left))
  );
}

function isFunction(node) {
  if (node === undefined) return false;
  const inner = ts.skipOuterExpressions(node);
  return ts.isArrowFunction(inner) || ts.isFunctionExpression(inner);
}
