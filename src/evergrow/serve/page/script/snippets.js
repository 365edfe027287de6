/* Examples of commands, Python and curl for a model. Names are untrusted and are quoted for each language. */

import { modelPath, token } from "./api.js";

const shell = (text) => (/^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
// JSON strings are valid in Python. Invisible characters are escaped too.
const unseen = /[\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;
const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
const python = (text) => JSON.stringify(text).replace(unseen, escaped);

const SAMPLE = {
  images: { command: "photo.jpg", python: '["photo.jpg"]', form: "-F images=@photo.jpg" },
  texts: { command: '--text "where is it"', python: '["where is it"]', json: { texts: ["where is it"] } },
  features: { command: "rows.npz", python: "[[0.1, 0.7, 0.2]]", json: { rows: [[0.1, 0.7, 0.2]] } },
};
const DATA = { images: "folder/", texts: "samples.csv", features: "samples.npz" };

/** Examples by name: a title, and a function that returns { command, python, curl } for the result of forSnippets. */
export const SNIPPETS = {
  predict: { title: "Ask", of: (m) => ({
    command: `evergrow predict ${m.file} ${SAMPLE[m.kind].command} --top 3`,
    python: m.learner([`print(learner.predict(${SAMPLE[m.kind].python}))`]),
    curl: m.samples("predict", {}),
  }) },
  teach: { title: "Teach", of: (m) => ({
    command: `evergrow update ${m.file} ${DATA[m.kind]}`,
    python: m.changing([`learner.partial_fit(${python(DATA[m.kind])})`]),
    curl: m.samples("teach", { label: m.name }),
  }) },
  unlearn: { title: "Unlearn examples", of: (m) => ({
    command: `evergrow unlearn ${m.file} ${DATA[m.kind]}`,
    python: m.changing([`learner.unlearn(${python(DATA[m.kind])})`]),
    curl: m.samples("unlearn", { label: m.name }),
  }) },
  evaluate: { title: "Test", of: (m) => ({
    command: `evergrow evaluate ${m.file} ${DATA[m.kind]}`,
    python: m.learner([`print(learner.evaluate(${python(DATA[m.kind])}).accuracy)`]),
    curl: m.samples("evaluate", { label: m.name }),
  }) },
  forget: { title: "Delete a class", of: (m) => ({
    command: `evergrow forget ${m.file} ${shell(m.name)}`,
    python: m.changing([`learner.forget_classes([${python(m.name)}])`]),
    curl: m.json("forget", { names: [m.name] }),
  }) },
  rename: { title: "Rename a class", of: (m) => ({
    command: `evergrow rename ${m.file} ${shell(m.name)} ${shell("new name")}`,
    python: m.changing([`learner.rename_classes({${python(m.name)}: ${python("new name")}})`]),
    curl: m.json("rename", { old: m.name, new: "new name" }),
  }) },
  merge: { title: "Merge classes", of: (m) => ({
    command: `evergrow merge-classes ${m.file} ${shell(m.name)} ${shell(m.other)} --into ${shell(m.name)}`,
    python: m.changing([`learner.merge_classes([${python(m.name)}, ${python(m.other)}], ${python(m.name)})`]),
    curl: m.json("merge-classes", { names: [m.name, m.other], into: m.name }),
  }) },
  rollback: { title: "Undo", of: (m) => ({
    command: `evergrow rollback ${m.file}`,
    python: `from evergrow.learner.modelfile import rollback\n\nrollback(${python(m.fileName)})`,
    curl: m.json("rollback", { n: 1 }),
  }) },
};

/** Return the facts about a model that the examples contain. */
export function forSnippets(model) {
  const fileName = `${model.name}.evg`;
  const address = `${location.origin}/api/v1${modelPath(model.name)}`;
  const secret = token.get() ? ' -H "Authorization: Bearer $EVERGROW_TOKEN"' : "";
  const [first, second] = model.record.classes;
  const json = (route, values) => [
    `curl${secret} ${address}/${route}`, "-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(values))}`,
  ].join(" \\\n  ");
  return {
    kind: model.kind, fileName, file: shell(fileName), name: first?.name ?? "a", other: second?.name ?? "b", json,
    samples: (route, fields) => {
      const sample = SAMPLE[model.kind];
      if (sample.json) return json(route, { ...sample.json, ...fields });
      const given = Object.entries(fields).map(([key, value]) => ` --form-string ${shell(`${key}=${value}`)}`).join("");
      return `curl${secret} ${sample.form}${given} \\\n  ${address}/${route}`;
    },
    learner: (lines) => [
      "from evergrow import Learner", "", `learner = Learner.load(${python(fileName)})`, ...lines,
    ].join("\n"),
    changing: (lines) => ["from evergrow.learner.modelfile import commit, locked_model", "",
      `with locked_model(${python(fileName)}) as learner:`, ...lines.map((line) => `    ${line}`),
      `    commit(${python(fileName)}, learner)`].join("\n"),
  };
}
