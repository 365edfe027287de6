(function () {
  "use strict";
  var root = document.documentElement;
  var button = document.getElementById("theme");
  var contents = document.getElementById("contents");
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  // A page opened from a file may have no storage; the choice then lasts as long as the page.
  function stored(value) {
    try {
      if (value === undefined) { return window.localStorage.getItem("evergrow-theme"); }
      window.localStorage.setItem("evergrow-theme", value);
    } catch (error) { return null; }
    return value;
  }
  var before = stored();
  if (before === "light" || before === "dark") { root.setAttribute("data-theme", before); }
  button.hidden = false;
  button.addEventListener("click", function () {
    var now = root.getAttribute("data-theme") || (dark.matches ? "dark" : "light");
    var next = now === "dark" ? "light" : "dark";
    root.setAttribute("data-theme", next);
    stored(next);
  });
  // A narrow screen begins with what was measured; a tap shows the rest.
  if (window.innerWidth < 960) {
    contents.open = false;
    document.querySelectorAll("details.published").forEach(function (item) { item.open = false; });
  }
  // Paper shows everything: published tables are opened for printing.
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (item) { item.open = true; });
  });
})();
