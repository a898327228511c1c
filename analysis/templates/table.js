// Tables: details by hover, focus and touch, arrow keys between numbers, columns to be hidden, texts to be copied.
(() => {
  const VALUE = "figure.table button.value";
  let waiting;

  const beside = (details, button) => {
    const box = button.getBoundingClientRect(), below = box.bottom + details.offsetHeight + 8 < innerHeight;
    const top = below ? box.bottom + 4 : Math.max(4, box.top - details.offsetHeight - 4);
    const left = Math.max(4, Math.min(box.left, innerWidth - details.offsetWidth - 8));
    Object.assign(details.style, { position: "fixed", margin: 0, inset: "auto", top: `${top}px`, left: `${left}px` });
  };
  const show = (button) => { const details = button.popoverTargetElement; if (details && !details.matches(":popover-open")) details.showPopover(); };
  const hide = () => document.querySelectorAll("figure.table .details:popover-open").forEach((details) => details.hidePopover());

  document.addEventListener("toggle", (event) => {
    const button = event.newState === "open" && document.querySelector(`figure.table [popovertarget="${CSS.escape(event.target.id)}"]`);
    if (button) beside(event.target, button);
  }, true);
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const button = event.target.closest(VALUE);
    clearTimeout(waiting);
    if (button) waiting = setTimeout(show, 250, button);
    else if (!event.target.closest("[popover]") && !document.activeElement.matches(VALUE)) waiting = setTimeout(hide, 250);
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches(VALUE)) { if (event.target.matches(":focus-visible")) show(event.target); }
    else if (!event.target.closest("[popover]")) hide();
  });

  // From a number to the next one in a row or column; a table is one stop of the tab key.
  const next = (button, [across, down]) => {
    const cell = button.closest("td"), rows = [...cell.closest("tbody").rows], width = cell.parentElement.cells.length;
    let row = rows.indexOf(cell.parentElement) + down, column = cell.cellIndex + across;
    for (; rows[row] && column > 0 && column < width; row += down, column += across) {
      const found = rows[row].cells[column]?.querySelector("button.value");
      if (found?.offsetParent) return found;
    }
  };
  const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  document.addEventListener("keydown", (event) => {
    const found = event.target.matches(VALUE) && ARROWS[event.key] && next(event.target, ARROWS[event.key]);
    if (!found) return;
    event.preventDefault();
    event.target.tabIndex = -1; found.tabIndex = 0;
    found.focus();
  });
  document.querySelectorAll("figure.table").forEach((figure) => {
    figure.querySelectorAll("button.value").forEach((button, i) => { button.tabIndex = i ? -1 : 0; });
    figure.querySelectorAll(".tools").forEach((tools) => { tools.hidden = false; });
  });

  document.addEventListener("change", (event) => {
    const cells = event.target.dataset.cells;
    if (!cells) return;
    for (const row of event.target.closest("figure").querySelectorAll(".tools ~ .scroll tr:not(.group)"))
      for (const i of cells.split(" ")) row.cells[i].hidden = !event.target.checked;
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("figure.table [data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy), status = button.parentElement.querySelector(".copied");
    try { await navigator.clipboard.writeText(text.value); }
    catch { text.hidden = false; text.select(); document.execCommand("copy"); text.hidden = true; }
    status.textContent = `${button.textContent} copied`;
  });
})();
