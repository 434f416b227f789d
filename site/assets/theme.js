// The color scheme: that of the system, until somebody chooses one. It runs before the page is drawn.
(function () {
  "use strict";
  var key = "outboxgen-theme";
  var root = document.documentElement;
  var dark = matchMedia("(prefers-color-scheme: dark)");
  function chosen() {
    try { return localStorage.getItem(key) || ""; } catch (e) { return ""; } // storage may be forbidden
  }
  function isDark() {
    return (chosen() || (dark.matches ? "dark" : "light")) === "dark";
  }
  function apply() {
    root.style.colorScheme = chosen();
    // A picture chooses by the system. When somebody has chosen, it must follow.
    document.querySelectorAll("picture source").forEach(function (source) {
      if (!source.dataset.media) source.dataset.media = source.media;
      source.media = chosen() === "" ? source.dataset.media : isDark() === source.dataset.media.includes("dark") ? "all" : "not all";
    });
    var button = document.querySelector("button.theme");
    if (button) button.setAttribute("aria-label", isDark() ? "Use light colors" : "Use dark colors");
  }
  apply();
  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", function () {
    var button = document.querySelector("button.theme");
    button.hidden = false;
    apply();
    button.addEventListener("click", function () {
      var next = isDark() ? "light" : "dark";
      try {
        // To choose what the system has is to follow it again.
        if (next === (dark.matches ? "dark" : "light")) localStorage.removeItem(key);
        else localStorage.setItem(key, next);
      } catch (e) { /* the choice lasts for nothing then */ }
      apply();
    });
    var menu = document.querySelector("button.menu");
    menu.addEventListener("click", function () {
      var open = root.toggleAttribute("data-menu");
      menu.setAttribute("aria-expanded", String(open));
    });
    var here = document.querySelector(".shelf [aria-current]");
    var shelf = document.querySelector(".shelf");
    if (here) shelf.scrollTop = Math.max(0, here.offsetTop - shelf.clientHeight / 2);
  });
  root.classList.add("scripted");
})();
