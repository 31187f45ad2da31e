// Refreshes the table of live locks in place. The page is complete without it: there is a link.
(() => {
  "use strict";
  const bar = document.getElementById("lockapp-refresh");
  const label = bar.querySelector("label");
  const status = bar.querySelector("[role=status]");
  const wanted = label.querySelector("input");
  label.hidden = false;

  // Replacing what somebody is reading with the keyboard, or has selected, would take it away.
  const inUse = (live) => live.contains(document.activeElement) || !getSelection().isCollapsed;

  async function refresh() {
    const live = document.getElementById("lockapp-live");
    if (!wanted.checked || document.hidden || inUse(live)) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("lockapp-live");
      if (!fresh) return location.reload(); // logged out, or no longer allowed
      // The same again is left alone: a screen reader would read an alert anew.
      if (wanted.checked && !inUse(live) && fresh.innerHTML !== live.innerHTML) {
        live.replaceWith(document.adoptNode(fresh));
      }
      status.textContent = "";
    } catch {
      status.textContent = bar.dataset.failed;
    }
  }

  (async () => {
    for (;;) {
      await new Promise((resume) => setTimeout(resume, Number(bar.dataset.seconds) * 1000));
      await refresh();
    }
  })();
})();
