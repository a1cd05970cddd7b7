"""Finds calls that the signature of what they call does not take, without running them."""

import ast
import collections
import importlib
import inspect


def wrong_calls(source, modules):
    """Binds every call of what the source imports to its signature.

    A call of what its module does not have is wrong, too. A call with `*` or `**`, and one of a name that the source
    also binds otherwise, cannot be told and is passed over.

    Args:
      source: Python, as text.
      modules: the packages and modules whose functions and classes count; they are imported.

    Returns:
      list of "line 12: f(): missing a required argument: 'x'".
    """
    tree = ast.parse(source)
    names = _imported(tree, modules)
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        try:
            called = _resolve(call.func, names)
        except AttributeError as error:
            found.append(f"line {call.lineno}: {error}")
            continue
        told = not any(isinstance(each, ast.Starred) for each in call.args) and all(k.arg for k in call.keywords)
        if not told or not callable(called):
            continue
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):  # Of a class or function in C.
            continue
        try:
            signature.bind(*call.args, **{keyword.arg: keyword for keyword in call.keywords})
        except TypeError as error:
            found.append(f"line {call.lineno}: {ast.unparse(call.func)}(): {error}")
    return found


def _imported(tree, modules):
    """Returns a dict of name -> object for all imports in the tree whose names are bound only once."""
    found, bound = {}, collections.Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] in modules:
                    name = each.name if each.asname else each.name.partition(".")[0]
                    found[each.asname or name] = importlib.import_module(name)
        elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in modules:
            module = importlib.import_module(node.module)
            for each in node.names:
                if not hasattr(module, each.name):
                    importlib.import_module(f"{node.module}.{each.name}")
                found[each.asname or each.name] = getattr(module, each.name)
    return {name: each for name, each in found.items() if not bound[name]}


def _resolve(function, names):
    """Returns the object of an expression `a.b.c`, given the names; None if it is unknown without running the code.

    Raises:
      AttributeError: a module has no such name.
    """
    if isinstance(function, ast.Name):
        return names.get(function.id)
    owner = _resolve(function.value, names) if isinstance(function, ast.Attribute) else None
    if inspect.ismodule(owner):
        return getattr(owner, function.attr)
    return None if owner is None else getattr(owner, function.attr, None)
