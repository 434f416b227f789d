// Colors of code. They are found when the site is built, so that a page needs no script for them.
import { createHighlighter } from "shiki";
import { transformerStyleToClass } from "@shikijs/transformers";

const languages = ["go", "yaml", "sql", "sh", "json", "ini", "js", "dockerfile", "python", "diff"];
const themes = { light: "github-light-high-contrast", dark: "github-dark-high-contrast" };

const highlighter = await createHighlighter({ langs: languages, themes: Object.values(themes) });
const classes = transformerStyleToClass({ classPrefix: "c-" });

/** Returns the HTML of a block. A language without colors is shown as it is; an unknown one is an error. */
export function highlight(code, language) {
  const lang = language || "text";
  if (lang !== "text" && !languages.includes(lang)) throw new Error(`a block has the unknown language ${lang}`);
  return highlighter.codeToHtml(code.replace(/\n$/, ""), {
    lang, themes, defaultColor: "light-dark()", transformers: [classes, ourBlock(language)],
  });
}

/** The style sheet of all blocks that were highlighted so far. */
export const highlightCSS = () => classes.getCSS();

/** Colors of letters are from the theme, but not the color behind them, and long blocks can be scrolled with the keyboard. */
function ourBlock(language) {
  return {
    name: "our-block",
    pre(node) {
      node.properties = { class: "code", tabindex: "0", "data-language": language || undefined };
    },
  };
}
