// Shows /openapi.json as a page. Text of the document is inserted as text only, never as markup.

const MOST_DEPTH = 6; // levels of an example, since schemas can contain themselves

/** Append a new element with a text and a CSS class to its parent, and return it. */
const element = (name, text, parent, kind) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  parent?.append(made);
  return made;
};

/** Return an example of a value that fits a schema. "schemas" are those that it may refer to. */
const example = (schema, schemas, depth = 0) => {
  if (!schema || depth > MOST_DEPTH) return null;
  if (schema.$ref) return example(schemas[schema.$ref.split("/").pop()], schemas, depth + 1);
  if (schema.examples?.length) return schema.examples[0];
  if ("example" in schema) return schema.example;
  if ("default" in schema) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return example(choices[0], schemas, depth + 1);
  if (schema.type === "object") {
    const properties = Object.entries(schema.properties ?? {});
    return Object.fromEntries(properties.map(([name, inner]) => [name, example(inner, schemas, depth + 1)]));
  }
  if (schema.type === "array") return [example(schema.items, schemas, depth + 1)];
  const isFile = schema.format === "binary" || schema.contentMediaType;
  const plain = { string: isFile ? "(bytes of a file)" : "…", integer: 1, number: 0.5, boolean: false };
  return plain[schema.type] ?? null;
};

/** Append a route to an element: its parameters, and examples of its requests and responses. */
const show = (path, verb, route, schemas, parent) => {
  const box = element("details", "", parent);
  const head = element("summary", "", box);
  element("span", verb.toUpperCase(), head, "verb");
  element("code", path, head);
  element("span", ` ${(route.description ?? "").split("\n")[0]}`, head);
  for (const { in: place, name, required, description, schema } of route.parameters ?? []) {
    const about = description ?? schema?.type ?? "";
    element("p", `${place} ${name}${required ? "" : " (optional)"}: ${about}`, box);
  }
  for (const [type, body] of Object.entries(route.requestBody?.content ?? {})) {
    element("p", `Request, ${type}:`, box);
    element("pre", JSON.stringify(example(body.schema, schemas), null, 1), box);
  }
  for (const [status, answer] of Object.entries(route.responses ?? {})) {
    const content = Object.values(answer.content ?? {})[0];
    element("p", `Response ${status}: ${answer.description ?? ""}`, box);
    const shown = content?.example ?? example(content?.schema, schemas);
    if (Number(status) < 300 && shown) element("pre", JSON.stringify(shown, null, 1), box);
  }
};

const answer = await fetch("/openapi.json");
const described = await answer.json();
document.getElementById("about").textContent = described.info.description;
const main = document.getElementById("routes");
main.textContent = "";
const groups = new Map();
for (const [path, verbs] of Object.entries(described.paths)) {
  for (const [verb, route] of Object.entries(verbs)) {
    const tag = route.tags?.[0] ?? "other";
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push([path, verb, route]);
  }
}
for (const [tag, routes] of groups) {
  element("h2", tag, main);
  const schemas = described.components?.schemas ?? {};
  for (const [path, verb, route] of routes) show(path, verb, route, schemas, main);
}
