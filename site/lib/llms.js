// llms.txt, the list of pages for language models, in the form of https://llmstxt.org.

/** Returns the text of llms.txt for a shelf. plain turns Markdown of one line into text. */
export function llmsText(shelf, plain) {
  const home = shelf.pages.get("README.md");
  const lines = [`# ${home.title}`, "", `> ${home.about}`, "", `- [${home.name}](${home.output}): what it is, and the first steps`];
  for (const section of shelf.sections) {
    lines.push("", `## ${section.name}`, "");
    for (const page of section.pages) lines.push(`- [${page.name}](${page.output}): ${plain(page.about)}`);
  }
  return `${lines.join("\n")}\n`;
}
