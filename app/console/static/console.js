// Live updates and keys. Every page works without this.
"use strict";
(() => {
  const body = document.body;
  const banner = document.getElementById("connection");
  const kinds = ["decisions", "processes", "process", "conversations", "conversation"];
  const away = (gone) => { banner.hidden = !gone; };
  const changed = (kind) => body.dispatchEvent(new CustomEvent(kind));

  if (body.dataset.events) {
    const wants = new URLSearchParams();
    for (const one of document.querySelectorAll("[data-of]")) wants.append("of", one.dataset.of);
    const connect = () => {
      const events = new EventSource(`${body.dataset.events}?${wants}`);
      for (const kind of kinds) events.addEventListener(kind, () => changed(kind));
      // At each connection, the first one too: what changed before it was not told.
      events.addEventListener("back", () => { away(false); kinds.forEach(changed); });
      events.addEventListener("away", () => away(true));
      events.addEventListener("error", () => {
        away(true);
        // After an answer that is no stream, the browser itself tries no more.
        if (events.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
      });
      addEventListener("pagehide", () => events.close());
    };
    connect();
  }

  // What is shown anew may change the number in the title.
  document.addEventListener("htmx:after:swap", () => {
    const count = document.querySelector("[data-count]");
    if (count) {
      const title = document.title.replace(/^\(\d+\) /, "");
      document.title = Number(count.dataset.count) ? `(${count.dataset.count}) ${title}` : title;
    }
  });

  const log = document.querySelector("[data-follow]");
  if (log) {
    const most = 2000000;
    let reading = false, again = false;
    const read = async () => {
      again = reading;
      if (reading) return;
      reading = true;
      try {
        const answer = await fetch(`${log.dataset.follow}&offset=${log.dataset.offset}`, { headers: { "HX-Request": "true" } });
        if (!answer.ok) return;
        const { text, offset } = await answer.json();
        if (offset === Number(log.dataset.offset)) return;
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        log.dataset.offset = offset;
        log.append(text);
        while (log.textContent.length > most && log.firstChild !== log.lastChild) log.firstChild.remove();
        if (atEnd) log.scrollTop = log.scrollHeight;
        again = true;
      } catch {
        // The events say when the server answers again.
      } finally {
        reading = false;
        if (again) read();
      }
    };
    log.scrollTop = log.scrollHeight;
    body.addEventListener("process", read);
  }

  const cards = () => [...document.querySelectorAll("[data-keys] .card")];
  const step = (by) => {
    const all = cards();
    const at = all.findIndex((card) => card.contains(document.activeElement));
    const next = all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  };
  const within = (selector) => {
    const card = cards().find((one) => one.contains(document.activeElement));
    return card && card.querySelector(selector);
  };
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = { j: () => step(1), k: () => step(-1), y: () => within(".yes"), n: () => within("[name=reason]"),
      "?": () => document.getElementById("keys").showModal() }[event.key];
    if (!to) return;
    event.preventDefault();
    const found = to();
    // A key alone decides nothing: it moves to the control, which Enter uses.
    if (found) found.focus();
  });
})();
