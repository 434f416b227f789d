// Texts in the fragment of an address: JSON, compressed, as base64 for addresses. "#1." says that they are written so.
const prefix = "#1.";
const maxBytes = 4 << 20; // unpacked

async function through(bytes, transform, limit) {
  const reader = new Blob([bytes]).stream().pipeThrough(transform).getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    size += value.length;
    if (size > limit) {
      reader.cancel().catch(() => {});
      throw new Error("the text is too long");
    }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

// Returns the fragment that has the texts.
export async function pack(texts) {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(texts)), new CompressionStream("deflate-raw"), Infinity);
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return prefix + btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// Returns the texts of a fragment, null if it has none. It throws an Error if the fragment is damaged.
export async function unpack(fragment) {
  if (!fragment.startsWith(prefix)) return null;
  let texts;
  try {
    const binary = atob(fragment.slice(prefix.length).replaceAll("-", "+").replaceAll("_", "/"));
    const packed = Uint8Array.from(binary, (c) => c.charCodeAt(0));
    const bytes = await through(packed, new DecompressionStream("deflate-raw"), maxBytes);
    texts = JSON.parse(new TextDecoder("utf-8", {fatal: true}).decode(bytes));
  } catch (error) {
    throw new Error("The address has no text that can be read: it may have been cut off.", {cause: error});
  }
  const text = (v) => (typeof v === "string" ? v : "");
  return {yaml: text(texts?.yaml), older: text(texts?.older)};
}
