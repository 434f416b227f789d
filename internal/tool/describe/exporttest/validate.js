// Checks exports with the official tools: JSON Schemas with Ajv against the meta-schema and against payloads, AsyncAPI documents
// with the parser of the AsyncAPI project. The input on stdin is {schemas: [{name, schema, valid: [text], invalid: [text]}],
// documents: [{name, text}], patterns: [{pattern, matches: [text], others: [text]}]}. It prints a line per fault.
const { Parser } = require("@asyncapi/parser");
const Ajv = require("ajv/dist/2020");
const addFormats = require("ajv-formats");

const read = () => new Promise((resolve) => {
  let text = "";
  process.stdin.on("data", (part) => (text += part)).on("end", () => resolve(JSON.parse(text)));
});

async function main() {
  const input = await read();
  const faults = [];
  for (const { name, schema, valid, invalid } of input.schemas) {
    const ajv = new Ajv({ strict: true, strictRequired: false, allErrors: false });
    addFormats(ajv);
    if (!ajv.validateSchema(schema)) faults.push(`${name}: ${ajv.errorsText()}`);
    const check = ajv.compile(schema);
    for (const text of valid) if (!check(JSON.parse(text))) faults.push(`${name}: refuses ${text}: ${ajv.errorsText(check.errors)}`);
    for (const text of invalid) if (check(JSON.parse(text))) faults.push(`${name}: accepts ${text}`);
  }
  for (const { name, text } of input.documents) {
    const { document, diagnostics } = await new Parser().parse(text);
    for (const d of diagnostics) if (d.severity <= 1) faults.push(`${name}: ${d.path.join("/")}: ${d.message}`);
    if (!document) faults.push(`${name}: is not a document`);
  }
  for (const { pattern, matches, others } of input.patterns) {
    const re = new RegExp(pattern, "u");
    for (const text of matches) if (!re.test(text)) faults.push(`${pattern}: does not match ${JSON.stringify(text)}`);
    for (const text of others) if (re.test(text)) faults.push(`${pattern}: matches ${JSON.stringify(text)}`);
  }
  console.log(faults.join("\n"));
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
