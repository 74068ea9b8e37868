// Before the first paint: the colors chosen last time. Afterwards the button changes them.
(() => {
  const KEY = "canopy-theme";
  const root = document.documentElement;
  const chosen = localStorage.getItem(KEY);
  if (chosen) root.dataset.theme = chosen;

  const ICONS = {
    light: "M12 4V2M12 22v-2M4 12H2M22 12h-2M5.6 5.6 4.2 4.2M19.8 19.8l-1.4-1.4M5.6 18.4l-1.4 1.4M19.8 4.2l-1.4 1.4M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z",
    dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
  };

  const current = () =>
    root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  function show(button) {
    const other = current() === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to ${other} colors`);
    button.innerHTML = `<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8"
      stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="${ICONS[other]}"/></svg>`;
  }

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    show(button);
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      localStorage.setItem(KEY, root.dataset.theme);
      show(button);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(button));
  });
})();
