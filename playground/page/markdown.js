// The Markdown of docs and explanations as nodes: paragraphs, `code`, **bold**, and links as their text. No text becomes
// HTML.
export function markdown(text) {
  const made = document.createDocumentFragment();
  for (const part of text.split(/\n{2,}/)) {
    if (part.trim() === "") continue;
    const p = document.createElement("p");
    for (const piece of part.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]+\))/)) {
      if (/^`.+`$/s.test(piece)) p.append(element("code", piece.slice(1, -1)));
      else if (/^\*\*.+\*\*$/s.test(piece)) p.append(element("strong", piece.slice(2, -2)));
      else p.append(piece.replace(/^\[([^\]]+)\]\([^)]+\)$/, "$1"));
    }
    made.append(p);
  }
  return made;
}

// Returns an element with a text.
export function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
