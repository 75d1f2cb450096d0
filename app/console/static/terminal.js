// One live terminal. Output comes as events; keys go by requests, one after the other, so that they stay in order.
"use strict";
(() => {
  const place = document.getElementById("terminal");
  const said = document.getElementById("said");
  const button = document.getElementById("keyboard");
  const { at, csrf } = place.dataset;
  const term = new Terminal({ disableStdin: true, scrollback: 5000, screenReaderMode: true, cursorBlink: false });
  term.open(place);
  let viewer = "", mine = false, state = {}, note = "";

  const tell = () => {
    const who = !state.typing ? "Nobody types" : mine ? "You have the keyboard" : `${state.typing} has the keyboard`;
    said.textContent = `${who}; ${state.viewers} watching; ${state.cols} columns by ${state.rows} rows. ${note}`;
  };
  const post = async (to, fields) => {
    try {
      const answer = await fetch(`${at}/${to}`, { method: "POST", body: new URLSearchParams({ csrf, viewer, ...fields }) });
      note = answer.ok ? "" : await answer.text();
      if (!answer.ok && note.startsWith("<")) note = "Refused: load the page again.";
    } catch {
      note = "The server does not answer; what was typed last may be lost.";
    }
    if (note) tell();
  };

  let waiting = "", sending = false;
  const send = async () => {
    if (sending) return;
    sending = true;
    while (waiting && mine) {
      // Never between the two halves of a character.
      const data = waiting.slice(0, /[\uD800-\uDBFF]/.test(waiting[15999] || "") ? 15999 : 16000);
      waiting = waiting.slice(data.length);
      await post("keys", { data });
    }
    waiting = "";
    sending = false;
  };
  const type = (data) => { if (mine) { waiting += data; send(); } };
  term.onData(type);

  const fitting = () => {
    const cell = place.querySelector(".xterm-screen").getBoundingClientRect();
    const width = cell.width / term.cols, height = cell.height / term.rows;
    if (!width || !height) return null;
    const room = window.innerHeight - place.getBoundingClientRect().top - window.scrollY - 16;
    return { rows: Math.max(10, Math.floor(room / height)), cols: Math.max(20, Math.floor((place.clientWidth - 16) / width)) };
  };
  const fit = () => { const size = mine && fitting(); if (size) post("size", size); };
  let later = 0;
  addEventListener("resize", () => { clearTimeout(later); later = setTimeout(fit, 200); });

  const hold = (now) => {
    if (now === mine) return;
    mine = now;
    term.options.disableStdin = !mine;
    if (button) {
      button.setAttribute("aria-pressed", String(mine));
      button.textContent = mine ? "Give the keyboard back" : "Take the keyboard";
    }
    if (mine) { term.focus(); fit(); }
  };
  if (button) button.addEventListener("click", () => post("keyboard", { take: mine ? "no" : "yes" }));
  term.attachCustomKeyEventHandler((event) => {
    if (mine && event.ctrlKey && event.altKey && event.key === "Escape") {
      if (event.type === "keydown") { post("keyboard", { take: "no" }); button.focus(); }
      return false;
    }
    // Without the keyboard, Tab and the keys of the page do what they do elsewhere.
    return mine;
  });

  let events = null;
  const on = (kind, act) => events.addEventListener(kind, (event) => act(JSON.parse(event.data)));
  const connect = () => {
    events = new EventSource(`${at}/output`);
    on("hello", (told) => { viewer = told.viewer; if (button) button.disabled = false; });
    on("state", (told) => {
      state = told;
      if (told.rows !== term.rows || told.cols !== term.cols) term.resize(told.cols, told.rows);
      hold(told.mine);
      tell();
    });
    on("fresh", ({ text, skipped }) => {
      note = skipped ? `Skipped ${skipped} characters, because there was too much output; this is the newest.` : note;
      term.reset();
      term.write(text);
      tell();
    });
    on("output", ({ text }) => term.write(text));
    on("end", ({ said: how, again }) => {
      hold(false);
      if (button) button.disabled = true;
      state.typing = null;
      note = again ? `${how}. It is tried again.` : `The process ${how}.`;
      tell();
      if (!again) events.close();
    });
    events.addEventListener("error", () => {
      hold(false);
      if (button) button.disabled = true;
      // After an answer that is no stream, the browser itself tries no more.
      if (events.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
    });
  };
  connect();
  addEventListener("pagehide", () => events.close());
  place.terminal = term;
})();
