// Times as how long ago they are, by the server's clock.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function showAges() {
  const main = document.getElementById("main");
  if (main.dataset.now !== main.dataset.seen) {
    main.dataset.seen = main.dataset.now;
    main.dataset.ahead = String(Date.now() / 1000 - Number(main.dataset.now));
  }
  const now = Date.now() / 1000 - Number(main.dataset.ahead);
  for (const each of document.querySelectorAll("time[data-at]")) {
    const text = ago(now - Number(each.dataset.at));
    if (each.textContent !== text) each.textContent = text;
  }
}

export function ago(seconds) {
  if (seconds < 1) return "now";
  const [unit, name] = UNITS.find(([unit]) => seconds >= unit);
  return `${Math.floor(seconds / unit)} ${name} ago`;
}
