// What hands do: shortcuts, and questions before what cannot be taken back.

export function shortcuts() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    const wanted = document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`);
    if (!wanted) return;
    event.preventDefault();
    wanted.focus();
  });
}

export function confirmations() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener) document.getElementById(opener.dataset.opens).showModal();
    const closer = event.target.closest("[data-closes]");
    if (closer) closer.closest("dialog").close();
  });
  document.addEventListener("submit", (event) => {
    for (const button of event.target.querySelectorAll("button:not([data-closes])")) button.disabled = true;
  });
}
