// Shows /openapi.json for people. Text from the document goes into text nodes only.
const element = (name, text, parent, kind) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  parent?.append(made);
  return made;
};

const example = (schema, schemas, depth = 0) => {
  if (!schema || depth > 6) return null;
  if (schema.$ref) return example(schemas[schema.$ref.split("/").pop()], schemas, depth + 1);
  if (schema.examples?.length) return schema.examples[0];
  if ("example" in schema) return schema.example;
  if ("default" in schema) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return example(choices[0], schemas, depth + 1);
  if (schema.type === "object") {
    return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([k, v]) => [k, example(v, schemas, depth + 1)]));
  }
  if (schema.type === "array") return [example(schema.items, schemas, depth + 1)];
  return { string: schema.format === "binary" || schema.contentMediaType ? "(bytes of a file)" : "…", integer: 1, number: 0.5, boolean: false }[schema.type] ?? null;
};

const show = (document_, path, verb, route, parent) => {
  const schemas = document_.components?.schemas ?? {};
  const box = element("details", "", parent);
  const head = element("summary", "", box);
  element("span", verb.toUpperCase(), head, "verb");
  element("code", path, head);
  element("span", ` ${(route.description ?? "").split("\n")[0]}`, head);
  for (const one of route.parameters ?? []) {
    element("p", `${one.in} ${one.name}${one.required ? "" : " (optional)"}: ${one.description ?? one.schema?.type ?? ""}`, box);
  }
  for (const [type, body] of Object.entries(route.requestBody?.content ?? {})) {
    element("p", `Request, ${type}:`, box);
    element("pre", JSON.stringify(example(body.schema, schemas), null, 1), box);
  }
  for (const [status, answer] of Object.entries(route.responses ?? {})) {
    const shape = Object.values(answer.content ?? {})[0]?.schema;
    element("p", `Answer ${status}: ${answer.description ?? ""}`, box);
    if (Number(status) < 300 && shape) element("pre", JSON.stringify(example(shape, schemas), null, 1), box);
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
  for (const [path, verb, route] of routes) show(described, path, verb, route, main);
}
