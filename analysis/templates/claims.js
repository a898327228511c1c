// A hint above each table that is wider than the page, since scroll bars may be hidden.
(() => {
  const say = box => { box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth + 1; };
  const watch = new ResizeObserver(entries => entries.forEach(({ target }) => say(target)));
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "note scroll-hint";
    hint.textContent = "More columns to the right: scroll the table sideways →";
    box.before(hint);
    say(box);
    watch.observe(box);
  }
})();

// Claims: search and filters are stored in the page's URL. A link to a folded element opens it.
(() => {
  const claims = [...document.querySelectorAll(".claim")], filters = document.querySelector(".filters");
  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", unfold);
  if (!filters) return unfold();
  const search = filters.querySelector("[name=q]"), boxes = [...filters.querySelectorAll("[type=checkbox]")];
  for (const box of boxes) {
    const count = claims.filter(c => c.dataset[box.name] === box.value).length;
    box.parentElement.querySelector("[data-count]").textContent = `(${count})`;
    box.parentElement.hidden = count === 0;
  }
  function apply() {
    const off = boxes.filter(box => !box.checked), text = search.value.trim().toLowerCase();
    for (const c of claims)
      c.classList.toggle("hidden", off.some(box => c.dataset[box.name] === box.value) || !c.textContent.toLowerCase().includes(text));
    for (const d of document.querySelectorAll(".unrun")) {
      const left = d.querySelectorAll(".claim:not(.hidden)").length;
      d.classList.toggle("hidden", left === 0);
      if (text && left) d.open = true;
    }
    for (const t of document.querySelectorAll(".theme")) t.classList.toggle("hidden", !t.querySelector(".claim:not(.hidden)"));
    const query = new URLSearchParams(off.map(box => ["hide", box.value]));
    if (text) query.set("q", search.value.trim());
    history.replaceState(null, "", (query.size ? "?" + query : location.pathname.split("/").pop()) + location.hash);
  }
  const requested = new URLSearchParams(location.search);
  search.value = requested.get("q") || "";
  for (const box of boxes) box.checked = !requested.getAll("hide").includes(box.value);
  filters.hidden = false;
  filters.addEventListener("input", apply);
  if (requested.size) apply();
  unfold();
})();
