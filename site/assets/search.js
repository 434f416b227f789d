// The search. The index is a script that is loaded when somebody begins to search, and all happens in the browser.
(function () {
  "use strict";
  var root = document.documentElement.dataset.root;
  var most = 30;
  var finder = document.querySelector("dialog.finder");
  var input = finder.querySelector("input");
  var found = finder.querySelector("#found");
  var said = finder.querySelector(".said");
  var opener = document.querySelector("button.search");
  var index = null;
  var asked = false;

  window.outboxgenSearch = function (json, options) {
    index = window.MiniSearch.loadJSON(json, options);
    show();
  };
  function load(name) {
    var script = document.createElement("script");
    script.src = root + "assets/" + name;
    script.async = false; // in the order in which they are added
    script.onerror = function () { said.textContent = "The index of the search is missing."; };
    document.head.append(script);
  }
  function open() {
    if (finder.open) return;
    if (!asked) {
      asked = true;
      load("minisearch.js");
      load("search-index.js");
    }
    finder.showModal();
    input.select();
    show();
  }

  function show() {
    var words = input.value.trim();
    found.replaceChildren();
    said.textContent = words === "" || index ? "" : "Loading …";
    if (!index || words === "") return;
    var hits = index.search(words, {
      boost: { title: 3, heading: 4 }, prefix: true, combineWith: "AND",
      fuzzy: function (term) { return term.length > 4 ? 0.2 : false; },
      boostDocument: weight, weights: { fuzzy: 0.2, prefix: 0.6 },
    });
    said.textContent = hits.length === 0 ? "Nothing found." : hits.length === 1 ? "1 place" : hits.length + " places";
    hits.slice(0, most).forEach(function (hit) { found.append(entry(hit)); });
  }
  // Guides come before lists and before what is for those who work on outboxgen.
  function weight(id) {
    return /^(reference|inside)\/|^(changelog|contributing|documents)\.html/.test(id) ? 0.5 : 1;
  }
  function entry(hit) {
    var item = document.createElement("li");
    var link = document.createElement("a");
    link.href = root + hit.id;
    var head = document.createElement("strong");
    mark(head, hit.heading || hit.title, hit.terms);
    link.append(head);
    if (hit.heading) {
      var where = document.createElement("small");
      where.textContent = hit.title;
      link.append(" ", where);
    }
    var text = document.createElement("span");
    mark(text, around(hit.text, hit.terms), hit.terms);
    link.append(text);
    link.addEventListener("click", function () { finder.close(); });
    item.append(link);
    return item;
  }
  // pattern finds the terms in a text, the longest first.
  function pattern(terms) {
    var sorted = terms.slice().sort(function (a, b) { return b.length - a.length; });
    return new RegExp("(" + sorted.map(function (t) { return t.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"); }).join("|") + ")", "gi");
  }
  // around is the part of a text with the first term in it.
  function around(text, terms) {
    var at = text.search(pattern(terms));
    var from = Math.max(0, at - 60);
    if (from > 0) from = text.indexOf(" ", from) + 1;
    return (from > 0 ? "… " : "") + text.slice(from, from + 180) + (from + 180 < text.length ? " …" : "");
  }
  function mark(element, text, terms) {
    text.split(pattern(terms)).forEach(function (part, i) {
      if (i % 2 === 0) return element.append(part);
      var m = document.createElement("mark");
      m.textContent = part;
      element.append(m);
    });
  }
  // The arrows move between the field and what was found.
  function move(by) {
    var stops = [input].concat(Array.from(found.querySelectorAll("a")));
    stops[(stops.indexOf(document.activeElement) + by + stops.length) % stops.length].focus();
  }

  opener.hidden = false;
  opener.addEventListener("click", open);
  input.addEventListener("input", show);
  finder.addEventListener("click", function (event) { if (event.target === finder) finder.close(); });
  finder.addEventListener("keydown", function (event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Enter" && event.target === input) {
      event.preventDefault();
      var first = found.querySelector("a");
      if (first) first.click();
    }
  });
  document.addEventListener("keydown", function (event) {
    var typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      open();
    } else if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      open();
    }
  });
})();
